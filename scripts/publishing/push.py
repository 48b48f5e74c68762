"""Pushes a saved model to the Hub as a repository that opens without hf_seqmix.

    python scripts/publishing/push.py runs/tnn --repo-id someone/tnn-small --card card.yaml --dry-run
    python scripts/publishing/push.py runs/tnn --repo-id someone/tnn-small --card card.yaml --private

The model is exported with the code of its family, opened again in a process that cannot import hf_seqmix, by every
head, and compared there; only then is anything uploaded. card.yaml (or .json) holds what nobody else knows, such as
model_summary, training_data, results with the command that reproduces each, and limits; what is missing is named. A
finished card, .md, is taken as it is. Without --card, the card.yaml of the checkpoint's folder is read, or else its
README.md taken. Pictures that the card shows lie beside the card or in the checkpoint's folder.
"""

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from huggingface_hub import EvalResultEntry, ModelCard
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from safetensors import SafetensorError

# Importing the package registers its families with the Auto classes.
from hf_seqmix.hub import build_card, check_card, check_repo_id, export, open_checkpoint, push
from hf_seqmix.hub.eval_results import eval_results, read_eval_results
from hf_seqmix.hub.kept import CARD_VALUES, read_card_values
from hf_seqmix.hub.repository_files import PICTURES
from hf_seqmix.hub.verification import VerificationError
from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
from hf_seqmix.training.command import CommandParser

logger = logging.getLogger("push")

# Beside the first three: of what reads a checkpoint, and of a Hub that does not answer, which are the HTTP client's
# own.
_ERRORS: tuple[type[BaseException], ...] = (ValueError, OSError, RuntimeError, StrictDataclassError, SafetensorError)
_ERRORS += (HfHubHTTPError.__mro__[1],)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(prog="push.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoint", help="a folder, or a repository on the Hub")
    parser.add_argument(
        "--repo-id", required=True, metavar="USER/NAME", help="repository to push to; made if it does not exist"
    )
    parser.add_argument("--card", type=Path, metavar="FILE", help="values of the card, .yaml or .json, or a card, .md")
    parser.add_argument("--template", type=Path, metavar="FILE", help="template of the card; by default the package's")
    parser.add_argument("--private", action="store_true", help="if the repository is new, let only its owner see it")
    parser.add_argument("--dry-run", action="store_true", help="export and verify, and ask the Hub for nothing")
    parser.add_argument("--export-dir", type=Path, metavar="FOLDER", help="keep a copy of the export here")
    parser.add_argument(
        "--dtype", default="auto", help="data type of the weights, such as bfloat16; by default the checkpoint's"
    )
    parser.add_argument("--max-shard-size", default="5GB", help="largest size of a weight file")
    parser.add_argument("--revision", help="revision of the checkpoint, where it is a repository")
    parser.add_argument(
        "--to-revision", metavar="BRANCH", help="branch to push to; main by default, else made if need be"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="largest difference of an output that counts as equal"
    )
    parser.add_argument("--message", help="message of the commit")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Push as the command line says; return 0, or 2 with a message about what is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    arguments = build_parser().parse_args(argv)
    try:
        check_repo_id(arguments.repo_id)
        model, processor = open_checkpoint(arguments.checkpoint, revision=arguments.revision, dtype=arguments.dtype)
        card, results = read_card(arguments, model, processor)
        beside = [] if arguments.card is None else [arguments.card.parent]
        pictures = find_pictures(str(card), [*beside, Path(arguments.checkpoint)])
        if arguments.export_dir is not None:
            size = arguments.max_shard_size
            shown: dict[str, Any] = {"card": card, "pictures": pictures, "results": results}
            export(model, processor, arguments.export_dir, **shown, max_shard_size=size)
        pushed = push(
            model,
            processor,
            arguments.repo_id,
            card=card,
            pictures=pictures,
            results=results,
            private=arguments.private or None,
            dry_run=arguments.dry_run,
            revision=arguments.to_revision,
            commit_message=arguments.message,
            max_shard_size=arguments.max_shard_size,
            tolerance=arguments.tolerance,
        )
    except VerificationError as error:
        print(f"push.py: {error}", file=sys.stderr)
        return 2
    except _ERRORS as error:
        print(f"push.py: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2
    for name, result in pushed.report["heads"].items():
        logger.info("%s: %s", name, result)
    for name, size in pushed.files.items():
        logger.info("%s: %s bytes", name, f"{size:,}")
    logger.info("%d files, %.1f MB", len(pushed.files), sum(pushed.files.values()) / 1e6)
    logger.info("dry run, nothing was uploaded" if pushed.url is None else pushed.url)
    return 0


def read_card(
    arguments: argparse.Namespace, model: SeqMixPreTrainedModel, processor: object
) -> tuple[ModelCard, list[EvalResultEntry]]:
    """Make the card and its results on benchmarks from values, or read a finished card and the results beside it.

    Raises:
        ValueError: if there is none, it cannot be read, or it has blanks.
    """
    path = arguments.card
    if path is None:
        beside = [Path(arguments.checkpoint) / name for name in (CARD_VALUES, "README.md")]
        path = next((candidate for candidate in beside if candidate.is_file()), None)
        if path is None:
            raise ValueError(f"a model is not published without a card: give --card, or write {beside[0]}.")
    if path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
        check_card(text)
        return ModelCard(text), read_eval_results(path.parent)
    values = read_card_values(path)
    card = build_card(model, processor, arguments.repo_id, values, arguments.template)
    return card, eval_results(values["results"])


def find_pictures(card: str, folders: Sequence[Path]) -> list[Path]:
    """Return the pictures that a card names or shows, each from the first folder that has it.

    Raises:
        ValueError: for a picture that the card shows and no folder has, or that is not right beside the card.
    """
    found: dict[str, Path] = {}
    names = re.sub(r"\w+://\S+", "", unquote(card))  # a picture elsewhere may have the name of one here
    for folder in folders:
        for path in sorted(folder.glob("*")):
            named = re.search(rf"(?<![\w.-]){re.escape(path.name)}(?![\w-])", names)
            if path.suffix.lower() in PICTURES and named:
                found.setdefault(path.name, path)
    text = re.sub(r"```.*?```|`[^`\n]*`", "", card, flags=re.DOTALL)
    shown = re.findall(r"!\[[^\]]*\]\(\s*(?:<([^>]+)>|([^\s)]+))|<img\s[^>]*?src\s*=\s*[\"']([^\"']+)", text)
    links = [unquote("".join(link)) for link in shown]
    missing = [link for link in links if not re.match(r"\w+:|//", link) and link.removeprefix("./") not in found]
    if missing:
        raise ValueError(
            f"the card shows {', '.join(dict.fromkeys(missing))}, which is not in {' or '.join(map(str, folders))}. "
            f"A repository has pictures ({', '.join(PICTURES)}) right beside its card: put them there."
        )
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())
