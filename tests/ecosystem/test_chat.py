"""Chat templates and streaming: what is streamed is what `generate` returns."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TextIteratorStreamer,
    TextStreamer,
    pipeline,
    set_seed,
)

from tests.ecosystem.tiny import CAUSAL, tiny_model, tiny_tokenizer

TEMPLATE = (Path(__file__).resolve().parents[2] / "scripts" / "examples" / "chat_template.jinja").read_text()
CONVERSATIONS = [
    [{"role": "user", "content": "def add"}],
    [
        {"role": "system", "content": "return x"},
        {"role": "user", "content": "y = 3"},
        {"role": "assistant", "content": "x + y"},
        {"role": "user", "content": "and 4?"},
    ],
]

pytestmark = pytest.mark.ecosystem


@pytest.fixture(params=[*CAUSAL, "copy head"])
def checkpoint(request, tmp_path):
    """A model and its tokenizer, with a template, read from a folder."""
    name = request.param
    model = tiny_model("ipa", copy_head=True, rank=4) if name == "copy head" else tiny_model(name)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == TEMPLATE
    return AutoModelForCausalLM.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)


def prompt(tokenizer: Any, messages: Any, **options: Any) -> Any:
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, **options
    )


def test_a_batch_of_conversations_is_answered_as_each_alone(checkpoint):
    model, tokenizer = checkpoint
    tokenizer.padding_side = "left"
    inputs = prompt(tokenizer, CONVERSATIONS, padding=True)
    text = tokenizer.decode(inputs["input_ids"][1])
    expected = "system:\nreturn x\nuser:\ny = 3\nassistant:\nx + y<|endoftext|>\nuser:\nand 4?\nassistant:\n"
    assert text == expected and not inputs["attention_mask"][0].all()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    together = model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
    for row, messages in enumerate(CONVERSATIONS):
        alone = prompt(tokenizer, messages)
        written = model.generate(**alone, **options)[0, alone["input_ids"].shape[1] :]
        assert written.tolist() == together[row].tolist()


def test_the_pipeline_takes_conversations(checkpoint):
    model, tokenizer = checkpoint
    talk = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    answers = talk(CONVERSATIONS, max_new_tokens=6, do_sample=False, batch_size=2)
    for messages, answer in zip(CONVERSATIONS, answers, strict=True):
        alone = prompt(tokenizer, messages)
        written = model.generate(**alone, max_new_tokens=6, do_sample=False, pad_token_id=1, eos_token_id=0)
        expected = tokenizer.decode(written[0, alone["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answer[0]["generated_text"] == [*messages, {"role": "assistant", "content": expected}]


SAMPLING = {"max_new_tokens": 40, "do_sample": True, "temperature": 3.0, "pad_token_id": 1, "eos_token_id": 0}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.one_in(3)
def test_text_is_printed_as_it_is_returned(checkpoint, cached, capsys):
    model, tokenizer = checkpoint
    inputs = prompt(tokenizer, CONVERSATIONS[1])
    length = inputs["input_ids"].shape[1]
    set_seed(0)
    expected = model.generate(**inputs, use_cache=cached, **SAMPLING)[0]
    for skip_prompt in (True, False):
        set_seed(0)
        streamer = TextStreamer(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
        capsys.readouterr()
        output = model.generate(**inputs, streamer=streamer, use_cache=cached, **SAMPLING)[0]
        assert torch.equal(output, expected)
        shown = output[length:] if skip_prompt else output
        assert capsys.readouterr().out == tokenizer.decode(shown, skip_special_tokens=True) + "\n"


def test_text_arrives_in_another_thread_as_it_is_returned(checkpoint):
    model, tokenizer = checkpoint
    inputs = prompt(tokenizer, CONVERSATIONS[0])
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=60)
    outputs = []
    set_seed(0)
    thread = threading.Thread(
        target=lambda: outputs.append(
            model.generate(**inputs, streamer=streamer, **{**SAMPLING, "eos_token_id": None})
        )
    )
    thread.start()
    pieces = list(streamer)
    thread.join(timeout=60)
    new = outputs[0][0, inputs["input_ids"].shape[1] :]
    assert len(new) == 40 and len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == tokenizer.decode(new, skip_special_tokens=True)
