"""From a model to a repository on the Hub, which is only touched after everything was verified."""

import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard

from ..models.backbone import SeqMixPreTrainedModel
from .checking import check_repo_id
from .exporting import export
from .verification import verify

__all__ = ["Pushed", "push"]

# What belongs to a model and would be read with, or in place of, what is uploaded if it stayed there: a single weight file
# goes before the index of a sharded one, an adapter is put on top, a tokenizer is taken for the model's.
_OF_A_MODEL = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.h5", "*.msgpack", "*.py"),
    *(
        "config.json",
        "generation_config.json",
        "adapter_config.json",
        "preprocessor_config.json",
        "processor_config.json",
    ),
    *(
        "tokenizer*",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.*",
        "merges.txt",
        "*.model",
        "chat_template.*",
    ),
)


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
    private: bool | None = None,
    dry_run: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    max_shard_size: int | str = "5GB",
    token: str | bool | None = None,
) -> Pushed:
    """Export a model, verify the export where hf_seqmix cannot be imported, and upload it.

    Weights, code and tokenizer that were there before and are not written again are deleted in the same commit; other
    files, and folders, stay.

    Args:
        model: of one of the package's families.
        processor: its tokenizer or image processor; None for none.
        repo_id: "user/name"; made if it does not exist.
        card: a finished model card, see `build_card`.
        private: whether a new repository is private; by default as the account has it.
        dry_run: stop before the Hub is asked for anything.
        revision: branch to upload to; "main" by default.
        commit_message: of the upload.
        max_shard_size: bytes of a weight file.
        token: of the account; by default the one that `hf auth login` keeps.

    Raises:
        ValueError: for a name that is none, a card with blanks, or what `export` refuses.
        VerificationError: if the export does not stand alone. Nothing is uploaded then.
    """
    check_repo_id(repo_id)
    with tempfile.TemporaryDirectory() as work:
        folder = export(model, processor, Path(work, repo_id.split("/")[1]), card=card, max_shard_size=max_shard_size)
        report = verify(folder, model, processor)
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        if dry_run:
            return Pushed(repo_id, files, report)
        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        held = api.list_repo_files(repo_id, revision=revision)
        stale = [name for name in held if any(fnmatchcase(name, kind) for kind in _OF_A_MODEL) and "/" not in name]
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            delete_patterns=[escape(name) for name in stale if name not in files],
            commit_message=commit_message or f"Upload {type(model).__name__}",
        )
        return Pushed(repo_id, files, report, commit.commit_url)
