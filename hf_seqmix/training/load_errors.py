"""Why a saved model cannot be opened: the libraries do not say which of its files is missing or cut short."""

import re
from pathlib import Path

from huggingface_hub.errors import LocalEntryNotFoundError

from .folders.checkpoints import fault_of_files

__all__ = ["explain_model_error", "fault_of_model", "without_lists"]

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = (".safetensors", ".bin")
_WRONG_KIND = re.compile(r"Unrecognized configuration class <class '[\w.]*?(\w+)'> for this kind of AutoModel: (\w+)")
_KINDS = {"AutoModelForCausalLM": "a causal language model", "AutoModelForMaskedLM": "a masked language model"}


def fault_of_model(name: str | Path) -> str | None:
    """Return what is wrong with a saved model; None if nothing is seen, or if it may be one of the Hub.

    Args:
        name: a folder, or a name on the Hub.
    """
    folder = Path(name).expanduser()
    if folder.is_file():
        return "it is a file; give the folder of a saved model"
    if not folder.is_dir():
        known = _HUB_NAME.fullmatch(str(name)) and not str(name).startswith(".")
        return None if known else "there is no such folder"
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return "config.json is missing; is the folder one of a saved model?"
    if fault := fault_of_files(folder):
        return fault
    return None if any(path.suffix in _WEIGHTS for path in folder.iterdir()) else "model.safetensors is missing"


def without_lists(text: str) -> str:
    """Return what the library says of a model of another kind without its list of hundreds of configurations.

    Args:
        text: of an error; any other stays as it is.
    """
    found = _WRONG_KIND.search(text)
    if found is None:
        return text.partition("Model type should be one of")[0].strip()
    given, needed = found.groups()
    kind = _KINDS.get(needed, f"one for {needed}")
    return f"{text[: found.start()]}the checkpoint has a {given}, of which there is no {needed}; give {kind}."


def explain_model_error(name: str | Path, error: BaseException) -> str:
    """Return in a line why a saved model or its tokenizer could not be opened.

    Args:
        name: a folder, or a name on the Hub.
        error: of the library.
    """
    text = " ".join(str(error).split())
    unreachable = isinstance(error, LocalEntryNotFoundError) or "couldn't connect" in text
    if not Path(name).expanduser().is_dir() and unreachable:
        return f"{name} is no folder here (paths start from {Path.cwd()}), and the Hub cannot be reached."
    if "backend tokenizer" in text:
        text = "it has no tokenizer"
    return f"{name}: {fault_of_model(name) or without_lists(text)}"
