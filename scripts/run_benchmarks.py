r"""Evaluate models on benchmarks, beside baselines: results as JSON lines, a table and plots.

    python scripts/run_benchmarks.py language-modeling --model runs/tnn --model runs/attention \
        --text-file held-out.txt --context-lengths 128 256 512 1024 2048 --output-dir runs/compare
    python scripts/run_benchmarks.py masked-language-modeling --model model_cards/ski-tnn-python-2m \
        --dataset embedded:python-stdlib --ngram 5 --output-dir runs/masked
    python scripts/run_benchmarks.py lra --task listops --fast --output-dir runs/lra
    python scripts/run_benchmarks.py listops --model model_cards/tnn-listops --output-dir runs/listops
    python scripts/run_benchmarks.py corpora --corpus python-stdlib --fast --output-dir runs/corpora
    python scripts/run_benchmarks.py glue --model runs/masked --data-dir glue --random-init --output-dir runs/glue
    python scripts/run_benchmarks.py recipes --recipe scripts/recipes/python-2m/tnn.yaml \
        --variant adamw optim=adamw_torch_fused --output-dir runs/recipes
    python scripts/run_benchmarks.py leaderboard --models tnn llama tnn_attention --output-dir runs/leaderboard
    python scripts/run_benchmarks.py trade-off --results runs/lra/results.jsonl --fast --output-dir runs/trade-off
    python scripts/run_benchmarks.py report runs/lra/results.jsonl runs/glue/results.jsonl --into REPORT.md

Each result is written as soon as it is known, and the same command continues where it was interrupted: runs.jsonl
holds all results of an output folder, results.jsonl those of the last command. What ran stands beside each result, as
data.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hf_seqmix.training.command import CommandParser, explained, packages_explained

with packages_explained("run_benchmarks.py"):
    from benchmarks.corpora.benchmark import add_corpora
    from benchmarks.glue.benchmark import add_glue
    from benchmarks.language_modeling.causal_lm import add_language_modeling
    from benchmarks.language_modeling.masked_lm import add_masked_language_modeling
    from benchmarks.leaderboard.benchmark import add_leaderboard
    from benchmarks.listops.benchmark import add_listops
    from benchmarks.lra.benchmark import add_lra
    from benchmarks.recipes.benchmark import add_recipes
    from benchmarks.report import add_report
    from benchmarks.results import Report
    from benchmarks.tradeoff.benchmark import add_tradeoff
    from finetuning import arguments as finetuning
    from pretraining import arguments as pretraining

    from hf_seqmix.training.folders.run_folder import prepare_run_folder

SCRIPTS = {"pretrain.py": pretraining, "finetune.py": finetuning}
"""Script that trains -> what reads its command line: wrong arguments of a run are found before any process starts."""

logger = logging.getLogger("run_benchmarks")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser, one sub-command a benchmark; `run` of the parsed arguments is the function that does it."""
    parser = CommandParser(prog="run_benchmarks.py", description=__doc__, allow_abbrev=False)
    parser.set_defaults(scripts=SCRIPTS)
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="benchmark")
    add_language_modeling(benchmarks)
    add_masked_language_modeling(benchmarks)
    add_lra(benchmarks)
    add_listops(benchmarks)
    add_corpora(benchmarks)
    add_glue(benchmarks)
    add_recipes(benchmarks)
    add_leaderboard(benchmarks)
    add_tradeoff(benchmarks)
    add_report(benchmarks)
    return parser


def main(argv: Sequence[str] | None = None) -> Report:
    """Run the command line and return what was found; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    with explained("run_benchmarks.py", "; the same command continues where it stopped"):
        folder: Path | None = arguments.output_dir
        is_new = folder is not None and not folder.exists()
        if folder is not None:
            prepare_run_folder(folder, resume=True)
        try:
            report: Report = arguments.run(arguments)
        finally:
            if folder is not None and is_new:
                with suppress(OSError):  # it holds something; that of a refused command is empty
                    folder.rmdir()
    if report.failures:
        sys.exit(f"run_benchmarks.py: not evaluated completely: {', '.join(report.failures)}; see above.")
    return report


if __name__ == "__main__":
    main()
