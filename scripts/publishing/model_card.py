"""Keeps a trained checkpoint in a folder with its card, laid out as its repository on the Hub will be.

    python scripts/publishing/model_card.py model_cards/tnn-python-2m --weights runs/tnn-python-2m --dtype bfloat16
    python scripts/publishing/model_card.py model_cards/tnn-python-2m
    python scripts/publishing/push.py model_cards/tnn-python-2m --repo-id someone/tnn-python-2m

The first line takes weights and tokenizer over. The second writes the card, README.md, from the folder's card.yaml,
which says what nobody but the maker knows: data, training, results with the command that reproduces each, limits.
Results on benchmarks of the Hub are written to .eval_results, too. The third pushes the folder, with the code that
opens the model where hf_seqmix is not installed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

# Importing the package registers its families with the Auto classes.
from hf_seqmix.hub import open_checkpoint
from hf_seqmix.hub.eval_results import eval_results, write_eval_results
from hf_seqmix.hub.kept import CARD_VALUES, read_card_values, render_card, write_weights
from hf_seqmix.training.command import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(prog="model_card.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="folder of the checkpoint, such as model_cards/NAME")
    parser.add_argument("--weights", metavar="CHECKPOINT", help="take weights and tokenizer from here first")
    parser.add_argument("--dtype", default="auto", help="data type of the weights that are taken, such as bfloat16")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write what the command line says; returns 0, or 2 with one line about what is wrong."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.weights is not None:
            write_weights(*open_checkpoint(arguments.weights, dtype=arguments.dtype), arguments.folder)
            print(f"{arguments.folder}: {', '.join(sorted(path.name for path in arguments.folder.iterdir()))}")
        if arguments.weights is None or (arguments.folder / CARD_VALUES).exists():
            card = render_card(arguments.folder)
            results = eval_results(read_card_values(arguments.folder / CARD_VALUES)["results"])
            temporary = arguments.folder / ".README.md"
            temporary.write_text(card, encoding="utf-8")
            temporary.replace(arguments.folder / "README.md")
            for path in [arguments.folder / "README.md", *write_eval_results(arguments.folder, results)]:
                print(f"{path}: written")
    except (ValueError, OSError, StrictDataclassError, SafetensorError) as error:
        print(f"model_card.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
