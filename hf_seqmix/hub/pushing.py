"""Pushes a model to a repository on the Hub, after its export was verified."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResultEntry, HfApi, ModelCard

from ..models.pretrained import SeqMixPreTrainedModel
from .checking import check_repo_id
from .eval_results import EVAL_RESULTS
from .exporting import export
from .model_files import belongs_to_repository
from .verification import check_tolerance, verify

__all__ = ["Pushed", "push"]


@dataclass(frozen=True)
class Pushed:
    """What `push` did.

    Args:
        repo_id: the repository.
        files: its files, with their sizes in bytes.
        report: what was verified, see `verify`.
        url: of the commit; None for a dry run.
    """

    repo_id: str
    files: dict[str, int]
    report: dict[str, Any] = field(repr=False)
    url: str | None = None


def push(
    model: SeqMixPreTrainedModel,
    processor: Any,
    repo_id: str,
    *,
    card: ModelCard | str,
    pictures: Sequence[str | Path] = (),
    results: Sequence[EvalResultEntry] = (),
    private: bool | None = None,
    dry_run: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    max_shard_size: int | str = "5GB",
    tolerance: float = 0.0,
    token: str | bool | None = None,
) -> Pushed:
    """Export a model, verify the export where hf_seqmix cannot be imported, and upload it.

    The same commit deletes older weights, code and tokenizer files that the push does not replace. Other files, and
    folders, stay.

    Args:
        model: of one of the package's families.
        processor: its tokenizer or image processor; None for none.
        repo_id: "user/name"; a missing repository is made.
        card: a finished model card, see `build_card`.
        pictures: files that the card shows.
        results: evaluations on benchmarks of the Hub, see `eval_results`.
        private: whether a new repository is private; by default as the account has it.
        dry_run: stop before anything is asked of the Hub.
        revision: branch to upload to, "main" by default; a missing branch is made from "main".
        commit_message: of the upload.
        max_shard_size: bytes of a weight file.
        tolerance: largest difference of an output that the verification allows.
        token: of the account; by default the one that `hf auth login` keeps.

    Raises:
        ValueError: for a name that the Hub does not take, a tolerance below 0 or not finite, a missing card, a card
            with blanks, or what `export` refuses.
        VerificationError: for an export that does not stand alone. Nothing is uploaded then.
    """
    check_repo_id(repo_id)
    check_tolerance(tolerance)
    if card is None:
        raise ValueError("card is None, and a model is not published without one: make it by build_card.")
    with tempfile.TemporaryDirectory() as work:
        target = Path(work, repo_id.split("/")[1])
        folder = export(
            model, processor, target, card=card, pictures=pictures, results=results, max_shard_size=max_shard_size
        )
        report = verify(folder, model, processor, tolerance=tolerance)
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}
        if dry_run:
            return Pushed(repo_id, files, report)
        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        held = api.list_repo_files(repo_id, revision=revision)
        stale = [name for name in held if name not in files and (belongs_to_repository(name) or _is_score(name))]
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            delete_patterns=[escape(name) for name in stale],
            commit_message=commit_message or f"Upload {type(model).__name__}",
        )
        return Pushed(repo_id, files, report, commit.commit_url)


def _is_score(name: str) -> bool:
    """Return whether a file of a repository holds figures of its model, which other weights do not have."""
    return name.startswith(f"{EVAL_RESULTS}/") and name.endswith(".yaml")
