r"""Write pairs of sentences with the share of their common words, made from plain text.

    python scripts/examples/write_pairs.py book.txt --output pairs.parquet --rows 60000
    python scripts/finetune.py --recipe scripts/recipes/finetuning/sentence-pairs.yaml --model runs/masked \
        --train-file pairs.parquet --output-dir runs/compares
    python scripts/run_benchmarks.py glue --model runs/compares --tasks stsb mrpc --output-dir runs/glue

A small masked model does not find by itself what two texts share. Pretrained with --pair-share and trained on such
pairs, which need no labels, it does, and tasks of sentence pairs gain (scripts/measured/glue).
"""

import glob
from collections.abc import Sequence
from pathlib import Path

from hf_seqmix._files import whole_files
from hf_seqmix.data import rewritten_pairs
from hf_seqmix.training.command import CommandParser, explained, not_negative, positive


@explained("write_pairs.py")
def main(argv: Sequence[str] | None = None) -> None:
    """Write the pairs as Parquet, whole or not at all; exit with a message on wrong input."""
    parser = CommandParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("texts", nargs="+", type=Path, help="files of text in UTF-8")
    parser.add_argument("--output", type=Path, required=True, help="file to write, whose name ends in .parquet")
    parser.add_argument("--rows", type=positive, default=60_000, help="pairs to write")
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the draw; another one draws other pairs")
    arguments = parser.parse_args(argv)
    output = arguments.output
    if output.suffix != ".parquet":
        raise ValueError(f"--output is {output}; its name must end in .parquet.")
    pairs = rewritten_pairs((read(path) for path in arguments.texts), arguments.rows, seed=arguments.seed)
    with whole_files(output.parent, last=glob.escape(output.name)) as aside:
        pairs.to_parquet(aside / output.name)
    print(f"{len(pairs):,} pairs are in {output}. The first:")
    for name, value in pairs[0].items():
        print(f"  {name}: {value}")


def read(path: Path) -> str:
    """Return a text.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}).") from error


if __name__ == "__main__":
    main()
