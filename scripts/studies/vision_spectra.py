"""Spectra of attention on images, and the error against the head size: Jiang and Li (arXiv 2305.18475), Section 5.1.

    python scripts/studies/vision_spectra.py train --output-dir runs/vision   # figures 1a, 1b and 1c
    python scripts/studies/vision_spectra.py train --models tnn ski_tnn --sizes 4 8 16 --output-dir runs/mixers
    python scripts/studies/vision_spectra.py measure --model google/vit-base-patch16-224 --output-dir runs/vit

train    trains classifiers of one size after another, fits how the training error falls, and measures them
measure  measures trained models

The coupling of softmax attention is rho(x(t), x(s)), the logits. Its singular values over the number of tokens tau,
averaged over images, are those of the paper; beside them stand those of the tokens of all images at once, which have
no bias of short inputs. Mixers without logits are measured by their weights or Jacobians (`--source`).

Sizes of `attention` (a hybrid of this package) and `vit` (ViTForImageClassification) are the channels of a head, free
of hidden_size / num_heads: `head_dim` of the mixer, and an attribute `head_dim` of ViTConfig, which its attention asks
for although it is no field. In both, that is the width of queries, keys and values, so m_h and m_v of the theorem grow
together. Sizes of other mixers: kernel_rank (ipa), num_inducing_points (ski_tnn), rpe_hidden_size (tnn, fd_tnn),
channels of a head (poly_transformer, of degree 3).

Images are CIFAR-10, of the Hub or files with columns image and label. A killed command goes on where it stopped.
Writes results.jsonl, tables and a plot.
"""

import argparse
import dataclasses
import logging
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from study_models import is_kept, keep_model, load_backbone
from vision.figures import RANKS, Figures
from vision.log import Log
from vision.plots import PAPER_EXPONENT, plot_spectra
from vision.training import (
    SIZED,
    Classifiers,
    Training,
    add_image_arguments,
    add_training_arguments,
    processor_of,
    read_images,
    score,
    train,
)

from hf_seqmix.analysis.couplings import SOURCES
from hf_seqmix.analysis.spectra import PowerLawFit, fit_power_law
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained, refuse_twice
from hf_seqmix.training.environment import fingerprint, portable_path
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import TableRows

ERRORS = ("train_loss", "train_error", "test_loss", "test_error")
ERROR_COLUMNS = {
    "model": "model",
    "size": "size",
    "parameters": "parameters:,",
    "train_loss": "training loss (nats):.4f",
    "train_error": "training errors:.4f",
    "test_loss": "test loss (nats):.4f",
    "test_error": "test errors:.4f",
}
FIT_COLUMNS = {
    "model": "model",
    "sizes": "sizes",
    "metric": "of",
    "exponent": "p of size^-p:.3f",
    "low": "95 % from:.3f",
    "high": "to:.3f",
    "covers": "over",
    "r2": "R²:.2f",
    "paper": "paper:.2f",
}
LAYER_COLUMNS = {
    "model": "model",
    "size": "size",
    "layer": "layer",
    "source": "of",
    "sigma_1": "sigma_1:.4f",
    "cross_1": "of all images:.4f",
    "sigma_2": "sigma_2:.4f",
    "cross_2": "of all images:.4f",
    "sigma_4": "sigma_4:.4f",
    "cross_4": "of all images:.4f",
    "rank_10": "rank to 10 %:.1f",
    "rank_1": "to 1 %:.1f",
    "stable_rank": "stable rank:.2f",
    "entropy_rank": "entropy rank:.2f",
    "decay": "decay, k^-a:.2f",
    "decay_cross": "of all images:.2f",
}

logger = logging.getLogger("vision_spectra")

Measured = dict[tuple[str, int | None], list[Figures]]
"""(model, size) -> the figures of each seed; the size of a trained model is None."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="vision_spectra.py", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="experiment", required=True, metavar="experiment")
    shared = CommandParser(add_help=False)
    shared.add_argument("--output-dir", type=Path, required=True, help="where results, tables and plot go")
    shared.add_argument("--images", type=int, default=64, help="held-out images whose spectra are averaged")
    shared.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=[0, -1],
        help="layers to measure, from 0; negative ones count from the end",
    )
    shared.add_argument("--head", type=int, default=0, help="head of attention and IPA to measure, from 0")
    shared.add_argument(
        "--source",
        choices=["auto", *SOURCES],
        default="auto",
        help="what is measured; auto: logits where there are any",
    )
    shared.add_argument(
        "--center",
        choices=["none", "row", "double"],
        default="none",
        help="what is subtracted from logits: nothing, row means, or row and column means",
    )
    command = commands.add_parser("train", parents=[shared], allow_abbrev=False, description=run_train.__doc__)
    add_image_arguments(command)
    command.add_argument(
        "--models", nargs="+", choices=list(SIZED), default=["attention", "vit"], help="kinds of classifiers to train"
    )
    sizes = [1, 3, 8, 16, 32, 55, 64]
    command.add_argument(
        "--sizes", type=int, nargs="+", default=sizes, help="sizes of heads, kernels or encoders; see above"
    )
    shapes = {
        "image-size": (32, "pixels of a side, to which images are scaled"),
        "patch-size": (4, "pixels of a side of a patch, which is a token"),
        "hidden-size": (64, "width of the classifiers"),
        "num-layers": (4, "layers of each classifier"),
        "num-heads": (4, "heads of a layer"),
    }
    for name, (value, meaning) in shapes.items():
        command.add_argument(f"--{name}", type=int, default=value, help=meaning)
    add_training_arguments(command, steps=1000)
    command.add_argument("--save-models", action="store_true", help="keep every model below --output-dir")
    command.set_defaults(run=run_train)
    command = commands.add_parser("measure", parents=[shared], allow_abbrev=False, description=run_measure.__doc__)
    add_image_arguments(command, ["test"])
    command.add_argument("--model", nargs="+", required=True, metavar="NAME_OR_PATH", help="trained models of images")
    command.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the models")
    command.set_defaults(run=run_measure)
    return parser


def run_train(arguments: argparse.Namespace) -> TableRows:
    """Train classifiers of one size after another, fit how their error falls, and measure their spectra."""
    log, measured = Log(arguments), Measured()
    shape = Classifiers(arguments.patch_size, arguments.hidden_size, arguments.num_layers, arguments.num_heads)
    training = Training(arguments.steps, arguments.batch_size, arguments.learning_rate)
    # All kinds at one size before the next size, so that a killed command leaves a comparison.
    for seed in arguments.seeds:
        for size in arguments.sizes:
            for kind in arguments.models:
                fields = {"name": kind, "size": size, **dataclasses.asdict(shape)}
                run = log.run(fields, dataclasses.asdict(training), seed)
                folder = arguments.output_dir / "models" / f"{kind}-{size}-{seed}"
                missing = arguments.save_models and not is_kept(folder, run)
                if missing or log.read(run) is None:
                    splits = log.images()
                    model = shape.build(kind, size, splits["train"], seed)
                    log.check(model, splits["test"])
                    train(model, splits["train"], training, seed)
                    scores = {"parameters": float(model.num_parameters())}
                    for split, images in splits.items():
                        scores |= {f"{split}_{name}": value for name, value in score(model, images).items()}
                    if arguments.save_models:  # before its results, with which it is not trained again
                        keep_model(model, folder, run)
                    log.keep(run, model, scores, splits["test"], model_size=size)
                    logger.info(f"{kind} of size {size}, seed {seed}: training loss {scores['train_loss']:.4f}")
                found = log.read(run)
                assert found is not None
                measured.setdefault((kind, size), []).append(found)
    sizes = sorted(set(arguments.sizes))
    measured = {(kind, size): measured[kind, size] for kind in arguments.models for size in sizes}
    errors = _error_rows(measured)
    fits, laws = _fits(measured, arguments.models, sizes)
    layers = _layer_rows(measured, arguments.layers)
    seeds = len(arguments.seeds)
    sections = [
        (f"Errors after {training.steps} updates, medians of seeds ({seeds})", errors, ERROR_COLUMNS),
        ("Power laws of the training loss and of the share of wrong answers", fits, FIT_COLUMNS),
        (_layer_title(measured, arguments), layers, LAYER_COLUMNS),
    ]
    write_report(arguments, "results", [section for section in sections if section[1]])
    plot_spectra(measured, arguments.layers, laws, arguments.output_dir / "spectra.png")
    return errors


def run_measure(arguments: argparse.Namespace) -> TableRows:
    """Measure the spectra of trained models, whatever their heads."""
    log, measured = Log(arguments), Measured()
    for name in arguments.model:
        run = log.run(
            {"name": Path(name).name, "model": portable_path(name), "digest": fingerprint(Path(name), contents=True)},
            {},
        )
        if log.read(run) is None:
            model = load_backbone(name, arguments.trust_remote_code)
            if model.main_input_name != "pixel_values":
                raise ValueError(f"{name} is a {type(model).__name__}, which reads no images: give a model of images.")
            images = read_images(arguments, processor_of(name, model.config), ["test"])["test"]
            log.check(model, images)
            log.keep(run, model, {"parameters": float(model.num_parameters())}, images)
        found = log.read(run)
        assert found is not None
        measured[Path(name).name, None] = [found]
    rows = _layer_rows(measured, arguments.layers)
    write_report(arguments, "results", [(_layer_title(measured, arguments), rows, LAYER_COLUMNS)])
    plot_spectra(measured, arguments.layers, {}, arguments.output_dir / "spectra.png")
    return rows


def _layer_title(measured: Measured, arguments: argparse.Namespace) -> str:
    first = next(iter(measured.values()))[0].results[0]
    return (
        f"Singular values, means over {arguments.images} held-out images of {first.get('images')}: of logits (head "
        f"{arguments.head}, center {arguments.center}) over the number of tokens, of weights and Jacobians over their "
        "norm"
    )


def _error_rows(measured: Measured) -> TableRows:
    return [
        {"model": kind, "size": size, **{name: _median(seeds, name) for name in ("parameters", *ERRORS)}}
        for (kind, size), seeds in measured.items()
    ]


def _fits(measured: Measured, kinds: Sequence[str], sizes: Sequence[int]) -> tuple[TableRows, dict[str, PowerLawFit]]:
    """Fit training losses and shares of wrong answers; nothing where there are fewer than three sizes, or a zero."""
    rows, laws = [], {}
    for kind in kinds:
        for metric in ("train_loss", "train_error"):
            values = [[figures.one(metric) or 0.0 for figures in measured[kind, size]] for size in sizes]
            table = torch.tensor(values, dtype=torch.float64).T  # (seeds, sizes)
            if len(sizes) < 3 or not (table > 0).all():
                continue
            law = fit_power_law(sizes, table)
            if metric == "train_loss":
                laws[kind] = law
            fitted = {name: getattr(law, name) for name in ("exponent", "low", "high", "covers", "r2")}
            ends = f"{min(sizes)} to {max(sizes)}"
            paper = PAPER_EXPONENT if kind in ("attention", "vit") else None
            rows.append({"model": kind, "sizes": ends, "metric": metric, **fitted, "paper": paper})
    return rows, laws


def _layer_rows(measured: Measured, layers: Sequence[int]) -> TableRows:
    rows = []
    for (kind, size), seeds in measured.items():
        for layer in layers:
            row: dict[str, Any] = {"model": kind, "size": size, "layer": layer, "source": seeds[0].source(layer)}
            row |= {name: _median(seeds, name, layer) for name in (*RANKS, "decay", "decay_cross")}
            for short, metric in (("sigma", "sigma"), ("cross", "sigma_cross")):
                curves = [figures.curve(metric, layer) for figures in seeds]
                for k in (1, 2, 4):
                    values = [curve[k - 1] for curve in curves if len(curve) >= k]
                    row[f"{short}_{k}"] = sum(values) / len(values) if values else None
            rows.append(row)
    return rows


def _median(seeds: Sequence[Figures], metric: str, layer: int | None = None) -> float | None:
    values = [value for figures in seeds if (value := figures.one(metric, layer)) is not None]
    return statistics.median(values) if values else None


@explained("vision_spectra.py")
def main(argv: Sequence[str] | None = None) -> TableRows:
    """Run the command line and return the rows of its first table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    numbers = [getattr(arguments, name, 1) for name in ("images", "steps", "batch_size", "hidden_size")]
    if min(*numbers, *getattr(arguments, "sizes", [1])) < 1:
        raise ValueError("--images, --sizes, --steps, --batch-size and --hidden-size must be at least 1.")
    refuse_twice(seeds=getattr(arguments, "seeds", []), sizes=getattr(arguments, "sizes", []))
    refuse_twice(model=[Path(name).name for name in getattr(arguments, "model", [])])
    prepare_run_folder(arguments.output_dir, resume=True)
    return arguments.run(arguments)


if __name__ == "__main__":
    main()
