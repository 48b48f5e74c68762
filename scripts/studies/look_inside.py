"""Looks into every layer of a model while it reads a text, and writes one page of HTML, and JSON beside it.

    python scripts/studies/look_inside.py --model model_cards/hybrid-python-2m --output-dir runs/inside
    python scripts/studies/look_inside.py --model PATH --text-file notes.txt --length 256 --output-dir runs/inside

The page shows kernels over lag and frequency, the matrices with which mixers sum values, their singular values and
ranks, and how far each layer looks. Models of this package, and models of transformers whose attention follows
`attn_implementation`.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from study_models import load_backbone
from transformers import AutoTokenizer, PreTrainedModel

from hf_seqmix._files import write_json
from hf_seqmix.analysis.inside.layers import LayerView, look_inside
from hf_seqmix.analysis.inside.page import Section, write_page
from hf_seqmix.analysis.inside.plots import plot_maps, plot_memory, plot_spectra
from hf_seqmix.analysis.kernels import learned_kernels, plot_kernels
from hf_seqmix.data import load_corpus
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import CommandParser, explained
from hf_seqmix.training.result_files import write_report
from hf_seqmix.training.table_rows import row_results

COLUMNS = {
    "layer": "layer",
    "mixer": "mixer",
    "stable_rank": "stable rank:.1f",
    "entropy_rank": "entropy rank:.1f",
    "eps_rank": "rank to 10 %:.1f",
    "weights_exponent": "decay of weights, k^-a:.2f",
    "weights_r2": "R²:.2f",
    "logits_exponent": "decay of logits, k^-a:.2f",
    "logits_r2": "R²:.2f",
    "memory": "mean distance (tokens):.1f",
    "reach": "90 % within (tokens)",
}
NO_TOEPLITZ = "has no Toeplitz layer"

logger = logging.getLogger("look_inside")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog="look_inside.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True, metavar="NAME_OR_PATH", help="a checkpoint")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the checkpoint")
    parser.add_argument("--text-file", type=Path, help="what the model reads, instead of a text of --dataset")
    parser.add_argument(
        "--dataset",
        default="embedded:python-stdlib",
        help="data set whose held-out documents are read; see pretrain.py",
    )
    parser.add_argument("--length", type=int, default=96, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=4, help="rows that are read")
    parser.add_argument(
        "--heads", type=int, default=8, help="heads, centers or channels of a layer that are shown, at most"
    )
    parser.add_argument("--probes", type=int, default=8, help="random vectors a token, which estimate the Jacobian")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random images that models of images look at")
    parser.add_argument("--output-dir", type=Path, required=True, help="where the page, its pictures and JSON go")
    return parser


def read_batch(arguments: argparse.Namespace, model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], str]:
    """Return what the model reads, and what that is in words.

    Raises:
        ValueError: if there is less text than asked for, or no held-out split.
    """
    if model.main_input_name == "pixel_values":
        config = model.config
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        generator = torch.Generator().manual_seed(arguments.seed)
        images = torch.randn(arguments.rows, config.num_channels, *size, generator=generator)
        return {"pixel_values": images}, f"{arguments.rows} images of random pixels"
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=arguments.trust_remote_code)
    if arguments.text_file is not None:
        texts, name = [arguments.text_file.read_text(encoding="utf-8")], arguments.text_file.name
    else:
        corpus = load_corpus(arguments.dataset)
        split = next((name for name in ("test", "validation") if name in corpus), None)
        if split is None:
            raise ValueError(
                f"{arguments.dataset} has neither a test nor a validation split, only {', '.join(corpus)}: give "
                "a file by --text-file."
            )
        texts, name = corpus[split]["text"], f"the {split} split of {arguments.dataset}"
    wanted = arguments.rows * arguments.length
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= wanted:
            break
    if len(ids) < wanted:
        raise ValueError(
            f"{name} has {len(ids)} tokens, but {arguments.rows} rows of {arguments.length} were asked for: lower "
            "--rows or --length."
        )
    rows = torch.tensor(ids[:wanted]).view(arguments.rows, arguments.length)
    return {"input_ids": rows}, f"the first {arguments.rows} x {arguments.length} tokens of {name}"


def draw(arguments: argparse.Namespace, model: PreTrainedModel, views: Sequence[LayerView]) -> list[Section]:
    """Draw the pictures, and return the sections of the page."""
    folder, rows = arguments.output_dir, [view.figures() for view in views]
    sections = [
        Section(
            "Layers",
            "Ranks are of the matrices with which a mixer sums values, means over inputs and heads: the stable rank "
            "is the sum of squared singular values over the largest square, the entropy rank the exponential of their "
            "entropy, the last the number of singular values that leaves a tenth. The distance is weighted by the "
            "squared norm of the mixer's Jacobian (in models of transformers by squared weights), over the later half "
            "of the tokens.",
            rows=rows,
            columns=COLUMNS,
        )
    ]
    plot_memory(views, folder / "memory.png")
    sections.append(
        Section("Memory", "How much of what a token takes in lies within a distance of it.", folder / "memory.png")
    )
    plot_spectra(views, folder / "spectra.png")
    sections.append(
        Section(
            "Singular values",
            "Of the matrices of weights, over their norm; and of the logits, less the mean of each row, which a "
            "softmax does not see. A steep line means that few pairs of features carry the mixing.",
            folder / "spectra.png",
        )
    )
    plot_maps(views, folder / "maps.png")
    sections.append(
        Section(
            "Who looks at whom",
            "Absolute weights of some heads (for Toeplitz layers: channels) and norms of the Jacobian, for the first "
            "input, over three decades.",
            folder / "maps.png",
        )
    )
    try:
        length = views[0].jacobian.shape[-1] if views[0].jacobian is not None else arguments.length
        kernels = learned_kernels(model, length)
    except ValueError as error:
        if NO_TOEPLITZ not in str(error):
            raise
        return sections
    plot_kernels(kernels, folder / "kernels.png")
    text = "Two typical channels of each Toeplitz layer: over the lag, and over the frequency."
    return [*sections, Section("Kernels", text, folder / "kernels.png")]


@explained("look_inside.py")
def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command line and return the rows of its table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    for name in ("length", "rows", "heads", "probes"):
        if getattr(arguments, name) < 1:
            sys.exit(f"look_inside.py: --{name} is {getattr(arguments, name)}; it must be at least 1.")
    model = load_backbone(arguments.model, arguments.trust_remote_code)
    batch, read = read_batch(arguments, model)
    prepare_run_folder(arguments.output_dir, resume=True)  # a refused command leaves none
    name = Path(arguments.model).name
    logger.info(f"{name} reads {read}")
    views = look_inside(model, batch, arguments.heads, arguments.probes)
    sections = draw(arguments, model, views)
    rows = [view.figures() for view in views]
    introduction = f"{type(model).__name__}, {model.num_parameters():,} parameters, reading {read}."
    write_page(arguments.output_dir / "inside.html", f"Inside {name}", introduction, sections)
    report = [{**row, **_curves(view)} for row, view in zip(rows, views, strict=True)]
    write_json(arguments.output_dir / "inside.json", report)
    results = row_results(rows, "inside", "mixer", setting=("layer",))
    write_report(arguments, "inside", [(introduction, rows, COLUMNS)], results)
    logger.info(f"open {arguments.output_dir / 'inside.html'}")
    return rows


def _curves(view: LayerView) -> dict[str, list[float]]:
    """Return the lines of the plots as lists."""
    curves = {"singular_values": view.spectrum, "logit_singular_values": view.logit_spectrum}
    lists = {name: seen.mean.tolist() for name, seen in curves.items() if seen is not None}
    return lists if view.memory is None else {**lists, "memory_shares": view.memory.shares.tolist()}


if __name__ == "__main__":
    main()
