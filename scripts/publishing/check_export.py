"""Checks that exported models open where there is nothing but torch, transformers and safetensors.

    python scripts/publishing/check_export.py                                  # makes the environment, downloads torch
    python scripts/publishing/check_export.py --python /path/to/venv/bin/python

A small model of each family, a hybrid of all causal mixers and a model of images are exported, opened in that
environment by every head of their family, compared with what they compute here, trained for a step, saved and opened
again. Another version of torch may round otherwise: then say by --tolerance what is allowed.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from hf_seqmix import (
    FDTNNConfig,
    FDTNNForCausalLM,
    FDTNNForImageClassification,
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    SKITNNConfig,
    SKITNNForMaskedLM,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix.hub import VerificationError, export, verify
from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
from hf_seqmix.training.command import CommandParser, explained

PACKAGES = ["torch", "transformers", "safetensors"]


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(prog="check_export.py", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="interpreter of the environment; by default a new one's"
    )
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest difference of an output")
    return parser


def small_models() -> Iterator[tuple[str, SeqMixPreTrainedModel]]:
    """Make a model of each kind, weights drawn."""
    text: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    yield "tnn", TNNForCausalLM(TNNConfig(**text, ngram_sizes=[2, 3], ngram_buckets=64))
    yield "fd_tnn", FDTNNForCausalLM(FDTNNConfig(**text))
    yield "ski_tnn", SKITNNForMaskedLM(SKITNNConfig(**text, num_inducing_points=8))
    yield (
        "ipa",
        IPAForCausalLM(IPAConfig(**text, token_shift=3, copy_head=True, copy_head_tokens=3, copy_head_state=True)),
    )
    yield "poly_transformer", PolyTransformerForCausalLM(PolyTransformerConfig(**text))
    mixers = ["tnn", "fd_tnn", "ipa", "poly_transformer", "attention"]
    hybrid = SeqMixHybridConfig(**{**text, "num_hidden_layers": len(mixers)}, mixer_types=mixers)
    yield "seqmix_hybrid", SeqMixHybridForCausalLM(hybrid)
    image = FDTNNConfig(hidden_size=32, num_hidden_layers=1, is_causal=False, image_size=8, mixing_dimensions=2)
    yield "fd_tnn of images", FDTNNForImageClassification(image)


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with the three packages, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    print(f"Installing {', '.join(PACKAGES)} into {folder}")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


@explained("check_export.py")
def main(argv: Sequence[str] | None = None) -> int:
    """Check each model; returns 0 if all stand alone, else 1."""
    arguments = build_parser().parse_args(argv)
    logging.disable_progress_bar()
    torch.manual_seed(0)
    failures = 0
    with tempfile.TemporaryDirectory() as work:
        python = arguments.python or make_environment(Path(work, "environment"))
        for name, model in small_models():
            folder = export(model.eval(), None, Path(work, name.replace(" ", "-")))
            try:
                report = verify(folder, model, python=python, train=True, tolerance=arguments.tolerance)
            except VerificationError as error:
                failures += 1
                print(f"{name}: FAILED\n{error}", flush=True)
                continue
            heads = ", ".join(f"{head} {said.split(':')[0]}" for head, said in report.pop("heads").items())
            print(f"{name}: {heads}; {', '.join(f'{key} {value}' for key, value in report.items())}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
