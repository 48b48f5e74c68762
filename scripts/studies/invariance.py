"""Measures by how much a token's logits depend on what they should not: batch, pads, packing, chunks, decoding.

    python scripts/studies/invariance.py --threads 1 --output-dir runs/invariance
    python scripts/studies/invariance.py --families tnn ipa --dtypes float32 --rounds 0 --output-dir runs/invariance

Each family with random weights, in each dtype and by each implementation, as it is and within
`hf_seqmix.ops.batch_invariant()`. The reference is each sequence in a call of its own. A difference is in units of the
last place (ulps) of the largest logit of the batch; 0 is equal to the last bit.

batch           2, 3 and 8 rows of one length
left, right     8 rows of 1 to `length` tokens, with pads on that side
packed          the same sequences end to end in one row, by `position_ids`
chunks          a cache filled in calls of 64, of 23 and of 1 token (decoding), against one call without a cache
preallocated    the same with a `StaticCache`
padded decode   a step after a cache that was filled with pads, against the row alone

Then the cost: medians of interleaved calls of 8 rows, with the context and without, of the whole length and of one
step of decoding. Writes invariance.jsonl and tables.
"""

import argparse
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

from hf_seqmix.models.auto import FAMILIES
from hf_seqmix.ops import batch_invariant, forced
from hf_seqmix.ops.ski import native
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained, not_negative, positive
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, Timed, interleave, medians_ms

logger = logging.getLogger("invariance")

VOCABULARY = 256
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "tnn": ("tnn", {}, {}),
    "fd_tnn": ("fd_tnn", {}, {}),
    "ski_tnn": ("ski_tnn", {}, {"ski": "torch"}),
    "ski_tnn, in C": ("ski_tnn", {}, {"ski": "native"}),
    "ipa": ("ipa", {"num_centers": 4}, {}),
    "ipa, all extensions": (
        "ipa",
        {"num_centers": 4, "token_shift": 3, "copy_head": True, "kernel_norm": "prod"},
        {},
    ),
    "poly, degree 2": ("poly_transformer", {"degree": 2, "num_attention_heads": 4}, {}),
    "poly, degree 3": ("poly_transformer", {"degree": 3, "num_attention_heads": 4}, {}),
    "poly, degree 4": ("poly_transformer", {"degree": 4, "num_attention_heads": 4}, {}),
    "attention": ("seqmix_hybrid", {"mixer_types": ["attention"] * 2}, {}),
    "hybrid": ("seqmix_hybrid", {"mixer_types": ["tnn", "attention"]}, {}),
}
"""Name -> family, fields of the configuration, implementations; those of an implementation are measured only there."""
COLUMNS = {
    "case": "model",
    "direction": "direction",
    "dtype": "dtype",
    "fixed": "fixed order",
    "batch": "batch:.2g",
    "left": "left:.2g",
    "right": "right:.2g",
    "packed": "packed:.2g",
    "chunks of 64": "chunks of 64:.2g",
    "chunks of 23": "of 23:.2g",
    "steps": "steps:.2g",
    "preallocated": "preallocated:.2g",
    "padded decode": "padded decode:.2g",
}
COST_COLUMNS = {
    "case": "model",
    "direction": "direction",
    "dtype": "dtype",
    "call_ms": "8 rows, ms:.1f",
    "fixed_call_ms": "fixed order, ms:.1f",
    "call_ratio": "ratio:.1f",
    "step_ms": "a step of 8 rows, ms:.1f",
    "fixed_step_ms": "fixed order, ms:.1f",
    "step_ratio": "ratio:.1f",
}


def build(case: str, is_causal: bool, dtype: torch.dtype, hidden_size: int, length: int) -> PreTrainedModel:
    """Return a language model with random weights and perturbed biases."""
    name, fields, _ = CASES[case]
    family = next(family for family in FAMILIES if family.config_class.model_type == name)
    own = dict(fields)
    if not is_causal:
        own.pop("copy_head", None)
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden_size,
        "max_position_embeddings": 2 * length,
    }
    layers: dict[str, Any] = {} if "mixer_types" in own else {"num_hidden_layers": 2}
    config = family.config_class(**common, **layers, **own, is_causal=is_causal)
    model = family.classes["ForCausalLM" if is_causal else "ForMaskedLM"](config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval().to(dtype=dtype)


def ulps(actual: Iterable[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference in units of the last place of the largest number."""
    top = max(float(x.abs().max()) for x in expected)
    unit = torch.finfo(expected[0].dtype).eps * 2.0 ** torch.tensor(top, dtype=torch.float64).log2().floor().item()
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(actual, expected, strict=True)) / unit


def lengths_of(length: int) -> list[int]:
    """Return the tokens of eight sequences, from 1 to `length`."""
    return [length, 3, length // 2, 64, 17, length, 1, length - 5]


class Measurement:
    """The differences of one model, in one dtype, as it is or in a fixed order."""

    def __init__(self, model: PreTrainedModel, ids: Tensor) -> None:
        self.model, self.ids, self.causal = model, ids, model.config.is_causal
        self.lengths = lengths_of(ids.shape[1])
        self.whole = [self._logits(row[None])[0] for row in ids]
        self.alone = [self._logits(row[None, :n])[0] for row, n in zip(ids, self.lengths, strict=True)]

    def differences(self) -> Iterator[tuple[str, float]]:
        """Yield the name of each comparison and the largest difference in ulps."""
        batches = [ulps(self._logits(self.ids[:rows]), self.whole[:rows]) for rows in (2, 3, 8)]
        yield "batch", max(batches)
        for side in ("left", "right"):
            ids, mask = self._padded(side)
            logits = self._logits(ids, attention_mask=mask)
            yield side, ulps([row[real.bool()] for row, real in zip(logits, mask, strict=True)], self.alone)
        parts = [row[:n] for row, n in zip(self.ids, self.lengths, strict=True)]
        positions = torch.cat([torch.arange(n) for n in self.lengths])[None]
        packed = self._logits(torch.cat(parts)[None], position_ids=positions)[0].split(self.lengths)
        yield "packed", ulps(packed, self.alone)
        if not self.causal:
            return
        for name, size in (("chunks of 64", 64), ("chunks of 23", 23), ("steps", 1)):
            yield name, ulps(self._in_chunks(size, DynamicCache(config=self.model.config)), self.whole[:2])
        # No mask is prepared here, so the places that are not used yet are hidden by the model.
        caches = [StaticCache(self.model.config, max_cache_len=self.ids.shape[1] + 3) for _ in range(2)]
        different = [
            ulps(self._in_chunks(size, cache), self.whole[:2]) for size, cache in zip((23, 1), caches, strict=True)
        ]
        yield "preallocated", max(different)
        yield "padded decode", max(self._decode("left"), self._decode("right"))

    def _logits(self, ids: Tensor, **kwargs: Any) -> Tensor:
        return self.model(ids, **({"use_cache": False} if self.causal else {}), **kwargs).logits

    def _padded(self, side: str) -> tuple[Tensor, Tensor]:
        ids, mask = torch.zeros_like(self.ids), torch.zeros_like(self.ids)
        for row, n in enumerate(self.lengths):
            place = slice(0, n) if side == "right" else slice(self.ids.shape[1] - n, None)
            ids[row, place], mask[row, place] = self.ids[row, :n], 1
        return ids, mask

    def _in_chunks(self, size: int, cache: Any) -> Tensor:
        parts = self.ids[:2].split(size, dim=1)
        return torch.cat([self.model(part, past_key_values=cache, use_cache=True).logits for part in parts], dim=1)

    def _decode(self, side: str) -> float:
        ids, mask = self._padded(side)
        cache, new = DynamicCache(config=self.model.config), self.ids[:, :1]
        self.model(ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        mask = torch.cat([mask, torch.ones_like(new)], dim=1)
        actual = self.model(new, attention_mask=mask, past_key_values=cache, use_cache=True).logits
        expected = []
        for row, n in enumerate(self.lengths):
            own = DynamicCache(config=self.model.config)
            self.model(self.ids[row : row + 1, :n], past_key_values=own, use_cache=True)
            expected.append(self.model(new[row : row + 1], past_key_values=own, use_cache=True).logits[0])
        return ulps(actual, expected)


def cost(model: PreTrainedModel, ids: Tensor, rounds: int) -> dict[str, float]:
    """Return medians in milliseconds of a call and of a step, each also in a fixed order, and their ratios."""
    clock = Clock(ids.device)

    def timed(fixed: bool, cache: Any) -> Timed:
        def run(clock: Clock) -> tuple[float, ...]:
            with batch_invariant() if fixed else nullcontext():
                begin = clock.mark()
                if cache is None:
                    model(ids, **({"use_cache": False} if model.config.is_causal else {}))
                else:
                    model(ids[:, :1], past_key_values=cache, use_cache=True)
                end = clock.mark()
            if cache is not None:
                cache.crop(-1)
            return (clock.between(begin, end),)

        return run

    measured = interleave({"call": timed(False, None), "fixed_call": timed(True, None)}, rounds, clock)
    row = {f"{name}_ms": medians_ms(seconds)[0] for name, seconds in measured.items()}
    row["call_ratio"] = row["fixed_call_ms"] / row["call_ms"]
    if model.config.is_causal:
        caches = [DynamicCache(config=model.config) for _ in range(2)]
        for fixed, cache in zip((False, True), caches, strict=True):
            with batch_invariant() if fixed else nullcontext():
                model(ids, past_key_values=cache, use_cache=True)
        candidates = {"step": timed(False, caches[0]), "fixed_step": timed(True, caches[1])}
        measured = interleave(candidates, rounds, clock)
        row |= {f"{name}_ms": medians_ms(seconds)[0] for name, seconds in measured.items()}
        row["step_ratio"] = row["fixed_step_ms"] / row["step_ms"]
    return row


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both tables."""
    rows, costs = [], []
    for case in [case for case, (family, _, _) in CASES.items() if family in arguments.families]:
        directions = (False,) if CASES[case][0] == "ski_tnn" else (True, False)
        if "native" in CASES[case][2].values():
            native.build()
        for is_causal in directions:
            for dtype in arguments.dtypes:
                torch.manual_seed(0)
                model = build(case, is_causal, DTYPES[dtype], arguments.hidden_size, arguments.length)
                ids = torch.randint(VOCABULARY, (8, arguments.length))
                named = {"case": case, "direction": "causal" if is_causal else "bidirectional", "dtype": dtype}
                with torch.no_grad(), forced(**CASES[case][2]):
                    for fixed in (False, True):
                        with batch_invariant() if fixed else nullcontext():
                            row = {**named, "fixed": fixed, **dict(Measurement(model, ids).differences())}
                        rows.append(row)
                        logger.info(
                            ", ".join(f"{k} {v:.2g}" if isinstance(v, float) else str(v) for k, v in row.items())
                        )
                    if arguments.rounds and dtype == "float32":
                        costs.append(named | cost(model, ids, arguments.rounds))
    return rows, costs


@explained("invariance.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of the first table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    families = list(dict.fromkeys(family for family, _, _ in CASES.values()))
    parser = CommandParser(prog="invariance.py", description=__doc__)
    parser.add_argument(
        "--families", nargs="+", choices=families, default=families, help="families of models to measure"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="data types of the models")
    parser.add_argument("--hidden-size", type=positive, default=64, help="width of the models")
    parser.add_argument("--length", type=positive, default=150, help="tokens of the longest row, at least 64")
    parser.add_argument("--rounds", type=not_negative, default=7, help="timed rounds, in float32 alone; 0 for none")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads")
    parser.add_argument("--output-dir", type=Path, required=True, help="where results and tables go")
    arguments = parser.parse_args(argv)
    if arguments.length < 64:
        sys.exit(f"invariance.py: --length is {arguments.length}; it must be at least 64.")
    torch.set_num_threads(arguments.threads)
    begin = time.perf_counter()
    prepare_run_folder(arguments.output_dir, resume=True)
    rows, costs = measure(arguments)
    titles: list[tuple[str, Sequence[dict[str, Any]], dict[str, str]]] = [
        ("Largest difference of logits in ulps of the largest one; 0 is equal to the last bit.", rows, COLUMNS)
    ]
    if costs:
        titles.append((f"What the fixed order costs, {Clock(torch.device('cpu')).kind}.", costs, COST_COLUMNS))
    results = row_results(rows, "invariance", "case") + row_results(costs, "cost of a fixed order", "case")
    write_report(arguments, "invariance", titles, results)
    logger.info(f"{arguments.output_dir}: done in {time.perf_counter() - begin:.1f} s")
    return rows


if __name__ == "__main__":
    main()
