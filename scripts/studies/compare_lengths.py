r"""Compares language models at several lengths: is one better at short ones, and what does a training step cost?

    python scripts/studies/compare_lengths.py --models attention ipa-p --lengths 100 250 500 \
        --train-file wiki.train.head.tokens --validation-file wiki.valid.tokens --test-file wiki.test.tokens \
        --output-dir runs/lengths

Runs compare_mixers.py for each length, in a folder of its own (equal parameters, equal batches and updates, learning
rate swept on the first seed; a killed run goes on where it stopped), and then times training steps of the models side
by side, in turn. Further arguments are those of compare_mixers.py. The first model is the one that the others are
compared with. Writes lengths.jsonl, lengths.md and lengths.png. Recalled tokens are those whose pair with the token
before stood in the context, and fewer than 100 times in the training text; common pairs stood there 1,000 times and
more (hf_seqmix.analysis.text.repeated_pairs).

The question is that of Shamsi, Hua, Williams 2023 (arXiv 2306.12317), who report 1.5 % less cross-entropy than
attention at short lengths, an advantage that shrinks with the length, and training times that are very similar.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from comparison.compare import compare
from comparison.models import MODELS, build_model
from comparison.options import Options, add_arguments
from comparison.report import write_report as write_comparison
from comparison.runs import Comparison
from transformers import PreTrainedModel

from hf_seqmix.analysis.plots.figures import draw_row, line
from hf_seqmix.training.command import CommandParser, explained, positive, refuse_twice
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results
from hf_seqmix.training.timing import Clock, interleave, medians_ms


class TrainingStep:
    """Forward, backward and update of a model on one batch of random tokens."""

    def __init__(self, model: PreTrainedModel, batch: int, length: int) -> None:
        self.model = model.train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.ids = torch.randint(model.config.vocab_size, (batch, length))

    def __call__(self, clock: Clock) -> tuple[float, ...]:
        """Return the seconds of one step."""
        begin = clock.mark()
        self.model(self.ids, labels=self.ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (clock.between(begin, clock.mark()),)


def step_times(comparison: Comparison, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of a training step of each model of a comparison, interleaved."""
    clock, arguments = Clock(torch.device("cpu")), comparison.arguments
    steps = {
        name: TrainingStep(build_model(config, True, 0), arguments.batch_size, arguments.block_size)
        for name, config in comparison.configs.items()
    }
    return {name: medians_ms(seconds)[0] for name, seconds in interleave(steps, rounds, clock).items()}


def rows_of(report: Mapping[str, Any], length: int, times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return a row for each model: test cross-entropy, its difference from the first model's by seed, the time."""
    reference = report["results"][0]
    rows = []
    for result in report["results"]:
        losses = result["test_bits_per_byte"]["by_seed"]
        paired = [
            100 * (value / reference["test_bits_per_byte"]["by_seed"][seed] - 1)
            for seed, value in losses.items()
            if value is not None and reference["test_bits_per_byte"]["by_seed"].get(seed) is not None
        ]
        spread = f" ± {statistics.stdev(paired):.2f}" if len(paired) > 1 else ""
        mean = result["test_bits_per_byte"]["mean"]
        gap = result.get("gap", {})
        gap_mean, gap_sd = ({name: found[key] for name, found in gap.items()} for key in ("mean", "sd"))
        by_seed = {name: list(found["by_seed"].values()) for name, found in gap.items()}
        rows.append(
            {
                "length": length,
                "model": result["model"],
                "num_parameters": result["num_parameters"],
                "rate": f"{result['learning_rate']:g}" + (" (edge)" if result["best_at_edge"] else ""),
                "bits_per_byte": mean,
                "sd": result["test_bits_per_byte"]["sd"],
                "num_seeds": result["test_bits_per_byte"]["n"],
                "percent": statistics.mean(paired) if paired else None,
                "by_seed_percent": paired,
                "difference": f"{statistics.mean(paired):+.2f}{spread}" if paired else None,
                "recall_gap": gap_mean.get("recall"),
                "recall_gap_sd": gap_sd.get("recall"),
                "by_seed_recall_gap": by_seed.get("recall", []),
                "other_gap": gap_mean.get("others"),
                "other_gap_sd": gap_sd.get("others"),
                "by_seed_other_gap": by_seed.get("others", []),
                "common_gap": gap_mean.get("common"),
                "common_gap_sd": gap_sd.get("common"),
                "by_seed_common_gap": by_seed.get("common", []),
                "recalled_tokens": gap_mean.get("tokens"),
                "step_ms": times[result["model"]],
                "time_ratio": times[result["model"]] / times[reference["model"]],
            }
        )
    return rows


GAPS_BY_SEED = ("by_seed_percent", "by_seed_recall_gap", "by_seed_other_gap", "by_seed_common_gap")
EQUAL_TOKENS = {"batch_tokens": "batch_size", "eval_tokens": "eval_blocks"}
"""Option in tokens -> the option in sequences that it stands for at each length."""
COLUMNS = {
    "length": "length",
    "model": "model",
    "num_parameters": "parameters:,",
    "rate": "best rate",
    "bits_per_byte": "test bits/byte:.4f",
    "sd": "sd:.4f",
    "difference": "difference, %",
    "recalled_tokens": "recalled tokens:.1%",
    "recall_gap": "difference at these, nats:+.3f",
    "recall_gap_sd": "sd:.3f",
    "other_gap": "at others, nats:+.3f",
    "other_gap_sd": "sd:.3f",
    "common_gap": "at common pairs, nats:+.3f",
    "common_gap_sd": "sd:.3f",
    "num_seeds": "seeds",
    "step_ms": "step ms:.1f",
    "time_ratio": "step time, ratio:.2f",
}


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw cross-entropy, its difference from the first model's, and the ratio of step times against the length."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    with draw_row(path, 12.5, 3.9, 3) as (_, axes):
        for index, model in enumerate(models):
            mine = [row for row in rows if row["model"] == model]
            lengths = [row["length"] for row in mine]
            spread = [row["sd"] or 0 for row in mine]
            axes[0].errorbar(lengths, [row["bits_per_byte"] for row in mine], spread, label=model, **line(index))
            axes[1].plot(lengths, [row["percent"] for row in mine], **line(index))
            for row in mine if index else []:
                seeds = row["by_seed_percent"]
                axes[1].plot([row["length"]] * len(seeds), seeds, linestyle="none", alpha=0.5, **line(index))
            axes[2].plot(lengths, [row["time_ratio"] for row in mine], **line(index))
        for panel in axes:
            panel.set_xticks(lengths, [str(n) for n in lengths])
            panel.set_xlabel("length (tokens)")
        axes[0].set_ylabel("test bits per byte")
        axes[1].set_ylabel(f"cross-entropy against {models[0]} (%)")
        axes[2].set_ylabel(f"time of a training step against {models[0]}")
        axes[2].set_ylim(0, 1.15 * max(row["time_ratio"] for row in rows))
        axes[0].legend()


@explained("compare_lengths.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of the table."""
    parser = CommandParser("compare_lengths.py", description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=list(MODELS),
        default=["attention", "ipa-p"],
        metavar="MODEL",
        help="models of compare_mixers.py; the others are compared with the first",
    )
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[100, 250, 500], help="tokens of a sequence, a comparison each"
    )
    parser.add_argument(
        "--timing-rounds", type=int, default=15, help="timed training steps of each model, whose median counts"
    )
    parser.add_argument(
        "--batch-tokens", type=positive, metavar="N", help="tokens an update at every length, instead of --batch-size"
    )
    parser.add_argument(
        "--eval-tokens", type=positive, metavar="N", help="tokens to score at every length, instead of --eval-blocks"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        help="where results, table and plot go, with a folder for each length",
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    refuse_twice(lengths=arguments.lengths)
    if min(arguments.lengths) < 2 or arguments.timing_rounds < 1:
        parser.error("lengths must be at least 2, and --timing-rounds at least 1.")
    rows: list[dict[str, Any]] = []
    own = ("lengths", "timing_rounds", "output_dir", *EQUAL_TOKENS)
    given = {name: value for name, value in vars(arguments).items() if name not in own}
    for length in sorted(arguments.lengths):
        folder = arguments.output_dir / f"length-{length}"
        sequences = {
            option: max(1, tokens // length)
            for name, option in EQUAL_TOKENS.items()
            if (tokens := getattr(arguments, name)) is not None
        }
        try:
            options = Options.of("lm-causal", output_dir=folder, block_size=length, **given | sequences)
        except ValueError as error:
            sys.exit(f"compare_lengths.py: {error}")
        comparison = compare(options)
        report = write_comparison(comparison)
        if report is None or len(report["results"]) < len(arguments.models):
            sys.exit(f"compare_lengths.py: the models of length {length} are not all trained; give the command again.")
        rows += rows_of(report, length, step_times(comparison, arguments.timing_rounds))
    filled = {name: value for name, value in vars(options).items() if name not in ("output_dir", "block_size")}
    given_tokens = [option for name, option in EQUAL_TOKENS.items() if getattr(arguments, name) is not None]
    shown = argparse.Namespace(**vars(arguments) | {n: v for n, v in filled.items() if n not in given_tokens})
    batch = f"{arguments.batch_tokens} tokens" if arguments.batch_tokens else f"{options.batch_size} sequences"
    title = f"{options.steps} updates of {batch}, {options.threads} CPU thread(s), step times by AdamW in float32; "
    title += "differences from the first model are of runs of the same seed, mean and standard deviation"
    inner = dict.fromkeys(GAPS_BY_SEED, ("seed",))
    kept = row_results(rows, "lm-causal", "model", inner=inner, setting=("length",))
    folder = write_report(shown, "lengths", [(title, rows, COLUMNS)], kept)
    plot(rows, folder / "lengths.png")
    return rows


if __name__ == "__main__":
    main()
