r"""Scores masked models of TNN and SKI-TNN at inputs longer than those of their training, by how their kernels go on.

    python scripts/studies/longer_inputs.py --models runs/ski-0 runs/ski-1 runs/tnn-0 runs/tnn-1 \
        --lengths 128 512 2048 --output-dir runs/longer-inputs

Four ways, at each length: the kernel as the model evaluates it; for SKI-TNN its inducing points spread over the longer
input (the paper's way) instead of more points at the same spacing; zero at all lags that training did not have; and
zero at all lags, which leaves the convolutions, where there are any. What the first way gains over the third is what
new lags are worth, and what it gains over the fourth is what the long kernel is worth at all. Models of one
architecture are seeds 0, 1, .. in their order. All models need the same tokenizer: they fill the same gaps.
"""

import argparse
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from study_models import load_model, load_tokenizer
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from hf_seqmix._files import write_text
from hf_seqmix.analysis.kernels import toeplitz_operators
from hf_seqmix.analysis.plots.results import plot_results
from hf_seqmix.analysis.text.masked_modeling import evaluate_masked_model, mask_documents
from hf_seqmix.data import load_corpus
from hf_seqmix.models.fd_tnn.kernel import FrequencyKernel
from hf_seqmix.models.ski_tnn.operator import SKIOperator
from hf_seqmix.models.toeplitz.operator import ToeplitzOperator
from hf_seqmix.ops.ski.interpolation import InducingGrid
from hf_seqmix.training.command import CommandParser, device_name, explained, positive, refuse_twice
from hf_seqmix.training.folders.run_folder import prepare_run_folder
from hf_seqmix.training.result_files import write_results
from hf_seqmix.training.results import Result, with_run
from hf_seqmix.training.run import run_of
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.tables import results_table

Operator = ToeplitzOperator | SKIOperator

OWN, SPREAD, TRAINED, NONE = "as it is", "points spread", "no new lags", "no long kernel"
WAYS = (OWN, SPREAD, TRAINED, NONE)
METRICS = {"bits_per_byte": "bits a byte:.3f", "accuracy": "accuracy:.1%"}

logger = logging.getLogger("longer_inputs")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="longer_inputs.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME_OR_PATH", help="masked language models")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    parser.add_argument(
        "--dataset", default="embedded:python-stdlib", help="data set whose gaps are filled; see pretrain.py"
    )
    parser.add_argument("--split", default="test", help="split of the data set")
    parser.add_argument(
        "--lengths", nargs="+", type=positive, default=[128, 256, 512, 1024, 2048], help="tokens of a block"
    )
    parser.add_argument("--share", type=float, default=0.15, help="share of the tokens that are hidden")
    parser.add_argument("--batch-size", type=positive, help="blocks a forward pass; about 8192 tokens by default")
    parser.add_argument("--device", type=device_name, help="by default an accelerator if there is one")
    parser.add_argument("--output-dir", type=Path, required=True, help="where table, results and picture go")
    return parser


def load_masked_model(name: str, trust_remote_code: bool) -> PreTrainedModel:
    """Return a masked language model in float32.

    Raises:
        ValueError: the model cannot be loaded, or has kernels that do not go on in these ways.
    """
    model, missing = load_model(name, AutoModelForMaskedLM, trust_remote_code)
    if missing:
        raise ValueError(f"{name} has no weights of {', '.join(missing[:3])}: give a masked language model.")
    for layer, operator, places in toeplitz_operators(model):
        if places is not None or isinstance(operator.kernel, FrequencyKernel):
            raise ValueError(
                f"{layer} of {name} has a kernel on a grid. Give models of TNN or SKI-TNN on text; run_benchmarks.py "
                "corpora scores FD-TNN both with a finer grid and, by --keep-grid, with its own."
            )
    return model


@contextmanager
def going_on(operators: Sequence[Operator], way: str, trained: int, longer: int) -> Iterator[None]:
    """Let kernels go on beyond `trained` tokens in one of `WAYS`, up to `longer` tokens.

    Args:
        operators: of one model.
        way: one of `WAYS`; "points spread" changes SKI-TNN alone.
        trained: n; lags of training are below.
        longer: n'.
    """
    grids = [(op, op.grid) for op in operators if isinstance(op, SKIOperator)]
    hooks = []
    if way == SPREAD and longer > trained:
        for operator, grid in grids:
            tokens = 1 + math.ceil((grid.max_length - 1) * longer / trained)
            _lay(operator, InducingGrid(tokens, grid.num_points, grid.degree))
    elif way in (TRAINED, NONE):
        reach = trained if way == TRAINED else 0
        hooks = [operator.kernel.register_forward_hook(_within(operator, reach)) for operator in operators]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for operator, grid in grids:
            _lay(operator, grid)


def _lay(operator: SKIOperator, grid: InducingGrid) -> None:
    operator.grid, operator.spacing = grid, grid.spacing


def _within(operator: Operator, reach: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """Return a hook that makes taps zero at lags of `reach` tokens and more."""

    def cut(kernel: nn.Module, given: tuple[Any, ...], taps: Tensor) -> Tensor:
        if isinstance(operator, SKIOperator):
            lags = given[0]
        else:  # (channels, 2 length - 1)
            lags = torch.arange(taps.shape[1], device=taps.device) - taps.shape[1] // 2
        return taps * (lags.abs() < reach)

    return cut


def score(arguments: argparse.Namespace, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each model, length and way."""
    tokenizer = load_tokenizer(arguments.models, arguments.trust_remote_code)
    device = arguments.device or (torch.accelerator.current_accelerator() or torch.device("cpu"))
    rows: list[dict[str, Any]] = []
    seeds: dict[str, int] = {}
    for name in arguments.models:
        model = load_masked_model(name, arguments.trust_remote_code)
        family, trained = model.config.model_type, model.config.max_position_embeddings
        seed = seeds[family] = seeds.get(family, -1) + 1
        operators = [operator for _, operator, _ in toeplitz_operators(model)]
        has_points = any(isinstance(operator, SKIOperator) for operator in operators)
        # Without points and a short convolution, the kernel is all that mixes tokens.
        left_out = set() if has_points else {SPREAD} if model.config.short_conv_taps else {SPREAD, NONE}
        ways = [way for way in WAYS if way not in left_out]
        for length in arguments.lengths:
            blocks = mask_documents(tokenizer, texts, context_length=length, share=arguments.share)
            for way in ways:
                logger.info(f"{name}: {length:,} tokens, {way}")
                with going_on(operators, way, trained, length):
                    found = evaluate_masked_model(
                        model,
                        tokenizer,
                        blocks,
                        context_length=length,
                        batch_size=arguments.batch_size,
                        device=device,
                        progress=False,
                    )
                row = {"model": family, "seed": seed, "trained": trained, "length": length, "way": way}
                rows.append(row | {metric: getattr(found, metric) for metric in METRICS})
    return rows


def write_report(folder: Path, title: str, results: Sequence[Result]) -> None:
    """Print the table, and write table, results and a picture with a panel for each architecture."""
    table = results_table(results, {"model": "model", "way": "long kernel", "length": "tokens"}, METRICS)
    print(f"{title}\n\n{table}")
    write_results(folder / "longer-inputs.jsonl", results)
    write_text(folder / "longer-inputs.md", f"{title}\n\n{table}\n")
    lines = [
        replace(
            result, model=result.get("way"), setting={"length": result.get("length"), "architecture": result.model}
        )
        for result in results
    ]
    labels = {"length": "tokens", "bits_per_byte": "bits a byte of hidden tokens", "architecture": ""}
    picture = folder / "longer-inputs.png"
    plot_results(lines, picture, x="length", y="bits_per_byte", panels="architecture", log_x=True, labels=labels)


@explained("longer_inputs.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return its rows; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    refuse_twice(models=arguments.models, lengths=arguments.lengths)
    prepare_run_folder(arguments.output_dir, resume=True)
    corpus = load_corpus(arguments.dataset)
    if arguments.split not in corpus:
        raise ValueError(f"{arguments.dataset} has no split {arguments.split!r}; it has {', '.join(corpus)}.")
    rows = score(arguments, corpus[arguments.split]["text"])
    results = row_results(rows, "masked language modeling", "model", setting=("length", "trained"))
    results = with_run(results, run_of(arguments, "longer-inputs"))
    write_report(arguments.output_dir, f"Gaps in the split {arguments.split} of {arguments.dataset}", results)
    return rows


if __name__ == "__main__":
    main()
