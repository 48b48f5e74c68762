r"""Compares the text that a model writes with a cache and without: the same words, whatever the way of choosing them?

    python scripts/studies/cached_text.py --output-dir runs/cached-text
    python scripts/studies/cached_text.py --models model_cards/{tnn,fd-tnn}-python-2m --output-dir runs/cached-text

Models are small ones with random weights, or checkpoints. Two prompts of uneven length are padded on the left to
--prompt tokens, and --tokens are written.

In float64, with the cache of `generate()` and no argument for it:

greedy, sampled   every token equals that of logits without a cache. A random model computes these token by token
                  (`use_cache=False`), a checkpoint in one call on the whole text
beams             two beams, against `use_cache=False`; a checkpoint writes --beam-tokens
assisted          prompt lookup, and an assistant model: the greedy text of the same prompt

In float32, greedily: the largest difference of the logits from those of one call without a cache along the same
tokens, the first place where the largest logit is that of another token, and by how much that token led there.

A difference in float64 stops the command. Writes cached_text.jsonl and a table.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_seqmix.models.auto import AUTO_CLASSES, FAMILIES
from hf_seqmix.training.command import CommandParser, explained, positive
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results

VOCABULARY = 64
ATTENTION = {"attention": {"num_heads": 2}}
RANDOM: dict[str, tuple[str, dict[str, Any]]] = {
    "tnn": ("tnn", {}),
    "tnn, no decay": ("tnn", {"decay": 1.0}),
    "fd_tnn": ("fd_tnn", {"max_position_embeddings": 4096}),
    "tnn, attention": ("seqmix_hybrid", {"mixer_types": ["tnn", "attention"], "mixer_configs": ATTENTION}),
    "fd_tnn, poly of degree 3": (
        "seqmix_hybrid",
        {
            "mixer_types": ["fd_tnn", "poly_transformer"],
            "mixer_configs": {"poly_transformer": {"degree": 3, "num_attention_heads": 2}},
        },
    ),
    "tnn, ipa": ("seqmix_hybrid", {"mixer_types": ["tnn", "ipa"], "mixer_configs": {"ipa": {"num_centers": 4}}}),
}
"""Name -> family and fields of its configuration."""
COLUMNS = {
    "case": "model",
    "tokens": "tokens",
    "greedy": "greedy",
    "sampled": "sampled",
    "beams": "beams",
    "lookup": "prompt lookup",
    "assisted": "assisted",
    "float32_error": "float32, largest difference of logits:.1e",
    "first_other": "first other token",
    "lead": "its lead:.1e",
}
SEED = 1


class TextDiffersError(AssertionError):
    """A text with a cache is not the text without."""


def build(name: str, hidden_size: int = 8) -> Any:
    """Return a causal language model with random weights, biases included."""
    model_type, fields = RANDOM[name]
    family = next(family for family in FAMILIES if family.config_class.model_type == model_type)
    layers: dict[str, Any] = {} if "mixer_types" in fields else {"num_hidden_layers": 2}
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden_size,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = family.classes["ForCausalLM"](family.config_class(**common, **layers, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def prompts_of(vocabulary: int, length: int) -> tuple[Tensor, Tensor]:
    """Return two prompts of uneven length, (2, length), and their mask, pads on the left."""
    ids = torch.randint(3, vocabulary, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for row, pads in enumerate((0, length // 3)):
        ids[row, :pads] = mask[row, :pads] = 0
    return ids, mask


def write(model: Any, ids: Tensor, mask: Tensor, tokens: int, **options: Any) -> Any:
    """Return what `generate` does, warpers of samples left out."""
    torch.manual_seed(SEED)
    free = {"temperature": None, "top_k": 0, "top_p": None} if options.get("do_sample") else {}
    return model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        **({"do_sample": False} | free | options),
    )


def logits_without_cache(model: Any, text: Tensor, mask: Tensor, new: int) -> Tensor:
    """Return the logits of the last `new` tokens, (rows, new, vocabulary), in float32 as `generate` reads them."""
    whole = torch.cat([mask, torch.ones(len(mask), new, dtype=mask.dtype)], dim=1)
    rows = [
        model(row[None], attention_mask=real[None], use_cache=False, logits_to_keep=new + 1).logits[0, :-1].float()
        for row, real in zip(text, whole, strict=True)
    ]
    return torch.stack(rows)


def chosen(logits: Tensor, sampled: bool) -> Tensor:
    """Return the tokens, (rows, new), that `generate` chooses by these logits."""
    if not sampled:
        return logits.argmax(dim=-1)
    torch.manual_seed(SEED)
    steps = [torch.multinomial(step.softmax(dim=-1), 1) for step in logits.unbind(1)]
    return torch.cat(steps, dim=1)


def compare(name: str, way: str, text: Tensor, expected: Tensor) -> str:
    """Return "equal".

    Raises:
        TextDiffersError: naming the first place where two texts, (rows, tokens), differ.
    """
    if not torch.equal(text, expected):
        row, place = (text != expected).nonzero()[0].tolist()
        raise TextDiffersError(f"{name}, {way}: row {row} differs from the text without a cache at token {place}.")
    return "equal"


@torch.no_grad()
def measure(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the row of a model."""
    torch.manual_seed(0)
    checkpoint = name not in RANDOM
    model = AUTO_CLASSES["ForCausalLM"].from_pretrained(name) if checkpoint else build(name)
    model, tokens = model.double().eval(), arguments.tokens
    ids, mask = prompts_of(model.config.vocab_size, arguments.prompt)
    row: dict[str, Any] = {"case": Path(name).name if checkpoint else name, "tokens": tokens}
    texts = {}
    for way in ("greedy", "sampled"):
        sampled = way == "sampled"
        texts[way] = write(model, ids, mask, tokens, do_sample=sampled)
        if checkpoint:
            other = chosen(logits_without_cache(model, texts[way], mask, tokens), sampled)
        else:
            other = write(model, ids, mask, tokens, do_sample=sampled, use_cache=False)[:, -tokens:]
        row[way] = compare(name, way, texts[way][:, -tokens:], other)
    beams = arguments.beam_tokens if checkpoint else tokens
    found = [write(model, ids, mask, beams, num_beams=2, use_cache=cache) for cache in (True, False)]
    row["beams"] = compare(name, "beams", *found)
    assistant = (AUTO_CLASSES["ForCausalLM"].from_pretrained(name) if checkpoint else build(name, 4)).double().eval()
    assistant.generation_config.num_assistant_tokens = 7
    for way, options in (("lookup", {"prompt_lookup_num_tokens": 9}), ("assisted", {"assistant_model": assistant})):
        for number in range(len(ids)):
            own = ids[number, mask[number] != 0][None]
            text = write(model, own, torch.ones_like(own), tokens, **options)
            row[way] = compare(name, way, text[:, -tokens:], texts["greedy"][number : number + 1, -tokens:])
    model = model.float()
    written = write(model, ids, mask, tokens, return_dict_in_generate=True, output_logits=True)
    text, logits = written.sequences, torch.stack(written.logits, dim=1)
    whole = logits_without_cache(model, text, mask, tokens)
    row["float32_error"] = float((logits - whole).abs().max())
    others = (whole.argmax(dim=-1) != text[:, -tokens:]).nonzero()
    if len(others):
        place = others[others[:, 1].argmin()]
        best = whole[place[0], place[1]].topk(2).values
        row |= {"first_other": int(place[1]), "lead": float(best[0] - best[1])}
    print(f"{row['case']}: equal in float64, float32 within {row['float32_error']:.1e}", file=sys.stderr)
    return row


@explained("cached_text.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of the table."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=list(RANDOM), help="random models by name, or folders of checkpoints"
    )
    parser.add_argument("--tokens", type=int, default=2000, help="tokens to write after each prompt")
    parser.add_argument("--beam-tokens", type=int, default=200, help="tokens that a checkpoint writes with beams")
    parser.add_argument("--prompt", type=int, default=40, help="tokens of the longest prompt")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/cached-text"), help="where results and table go")
    arguments = parser.parse_args(argv)
    if min(arguments.tokens, arguments.beam_tokens, arguments.prompt) < 3:
        parser.error("--tokens, --beam-tokens and --prompt must be at least 3.")
    prepare_run_folder(arguments.output_dir, resume=True)
    torch.set_num_threads(arguments.threads)
    rows = [measure(arguments, name) for name in arguments.models]
    title = f"Text with a cache against text without, 2 prompts, torch {torch.__version__}"
    write_report(arguments, "cached_text", [(title, rows, COLUMNS)], row_results(rows, "cached text", "case"))
    return rows


if __name__ == "__main__":
    main()
