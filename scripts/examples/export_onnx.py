"""Export a checkpoint to ONNX, for any batch and length, and compare its outputs with torch.

    pip install ".[train]" onnx onnxscript onnxruntime
    python scripts/examples/export_onnx.py runs/tnn --output runs/tnn-onnx
    python scripts/examples/export_onnx.py runs/tnn --output runs/tnn-onnx --generation

The first command writes model.onnx, which scores, fills masks and classifies. Its inputs are input_ids and
attention_mask (for images: pixel_values); its outputs are those of the head of the checkpoint. The second command
writes prefill.onnx and decode.onnx, which generate with a cache: hf_seqmix.hub.onnx.generate_onnx is the loop.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_seqmix.hub import open_checkpoint
from hf_seqmix.hub.onnx import export_onnx
from hf_seqmix.hub.verification import VerificationError
from hf_seqmix.training.command import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder, or a repository on the Hub")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write; older files are replaced"
    )
    parser.add_argument("--generation", action="store_true", help="graphs of a prompt and of a step, with a cache")
    parser.add_argument(
        "--max-length", type=int, metavar="TOKENS", help="tokens at most, for models whose positions are numbered"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest difference of an output, relative to its size"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Export as the command line says; return 0, or 2 after one line that says what is wrong."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.max_length is not None and arguments.max_length < 2:
        parser.error(f"--max-length is {arguments.max_length}; a graph for any length needs 2 or more.")
    try:
        model, _ = open_checkpoint(arguments.checkpoint)
        difference = export_onnx(
            model,
            arguments.output,
            generation=arguments.generation,
            max_length=arguments.max_length,
            tolerance=arguments.tolerance,
        )
    except (ImportError, ValueError, VerificationError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"{arguments.output}: {error.strerror or error}. Check the path, and whether the disk is full.",
            file=sys.stderr,
        )
        return 2
    size = sum(file.stat().st_size for file in arguments.output.glob("*.onnx*"))
    print(f"{arguments.output}: {size / 1e6:.1f} MB")
    print(f"onnxruntime differs from torch by at most {difference:.1e} of an output's root mean square")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
