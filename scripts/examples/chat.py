"""Talk with a checkpoint: each answer is printed while the model writes.

    python scripts/examples/chat.py runs/tnn-sft
    python scripts/examples/chat.py runs/tnn-sft --message "How long is a list x?" --message "And a dictionary?"

The script reads one message a line, or takes the messages given. The whole conversation is the context of the next
answer. Without a chat template of the tokenizer, scripts/examples/chat_template.jinja is used, on which sft.py trains.
"""

import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer, set_seed

# Importing the package registers its families with the Auto classes.
import hf_seqmix
from hf_seqmix.training.command import CommandParser, explained, not_negative, positive

Message = dict[str, str]


def typed_messages() -> Iterable[str]:
    """Yield the lines of the standard input, with a prompt on a terminal."""
    if sys.stdin.isatty():
        print("An empty line ends the conversation.")
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def reply(model: Any, tokenizer: Any, conversation: list[Message], **options: Any) -> tuple[str, int]:
    """Print the answer of the model token by token.

    Args:
        model: a causal language model.
        tokenizer: a tokenizer with a chat template.
        conversation: messages so far; the last message is from a user.
        **options: arguments of `generate`.

    Returns:
        The answer, and its number of tokens.
    """
    inputs = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    with torch.no_grad():
        output = model.generate(
            **inputs, streamer=streamer, pad_token_id=pad, eos_token_id=tokenizer.eos_token_id, **options
        )
    new = output[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), len(new)


@explained("chat.py")
def main(argv: Sequence[str] | None = None) -> list[Message]:
    """Talk as the command line says, and return the conversation."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder with a causal language model and its tokenizer")
    parser.add_argument("--message", action="append", help="say this instead of what is typed; may be repeated")
    parser.add_argument("--system", help="a system message before all others")
    parser.add_argument("--max-new-tokens", type=positive, default=128, help="tokens of an answer, at most")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="temperature of sampling; 0 takes the likeliest token"
    )
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of sampling")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.temperature < math.inf:
        parser.error(f"--temperature is {arguments.temperature}; it must be at least 0 and finite.")

    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, device_map="auto").eval()
    if tokenizer.chat_template is None:
        tokenizer.chat_template = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
    options: dict[str, Any] = {"max_new_tokens": arguments.max_new_tokens, "do_sample": arguments.temperature > 0}
    if arguments.temperature > 0:
        options["temperature"] = arguments.temperature
    set_seed(arguments.seed)

    print(f"hf_seqmix {hf_seqmix.__version__}: {arguments.checkpoint}, {model.config.model_type}")
    conversation = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    tokens, seconds = 0, 0.0
    for message in arguments.message or typed_messages():
        if arguments.message:
            print(f"> {message}")
        conversation.append({"role": "user", "content": message})
        begin = time.perf_counter()
        answer, length = reply(model, tokenizer, conversation, **options)
        seconds, tokens = seconds + time.perf_counter() - begin, tokens + length
        conversation.append({"role": "assistant", "content": answer})
    if tokens:
        print(f"{tokens} tokens, {tokens / seconds:.0f} a second")
    return conversation


if __name__ == "__main__":
    main()
