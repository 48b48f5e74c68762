"""Loading and saving of weights, with what the library leaves out: damaged files, shapes before memory, old files."""

import json
import os
from glob import escape
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

__all__ = ["LFS_POINTER", "CheckedLoading"]

_DRAWN_BYTES = 2**32
"""Weights that a checkpoint may lack in any case, such as those of a new head."""


class WrongShapesError(ValueError, RuntimeError):
    """Weights are of other shapes than the configuration says; the library raises a `RuntimeError` there."""


_INDEX = '{"metadata": {}, "weight_map": {name of a tensor: name of its file}}'
LFS_POINTER = b"version https://git-lfs"
"""How a file begins that stands in the place of one that Git LFS keeps."""


class CheckedLoading(PreTrainedModel):
    """A model whose `from_pretrained` names a damaged file, and compares shapes before it allocates memory."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> Self:
        """Load a model as `PreTrainedModel.from_pretrained` does.

        Raises:
            ValueError: for a weights file that is damaged, or an index of such files, where the library only passes on
                what is wrong with the file; for a pointer of Git LFS.
            WrongShapesError: for weights of other shapes than the configuration says.
        """
        name = pretrained_model_name_or_path
        try:
            return super().from_pretrained(name, *args, **kwargs)
        except (SafetensorError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            fault = _fault_of_weights(Path(str(name)) / (kwargs.get("subfolder") or ""))
            if fault is None and not isinstance(error, SafetensorError):
                raise  # of something else, such as a file that the library names
            raise ValueError(fault or _cut_short(f"of {name}", error)) from error

    def save_pretrained(
        self, save_directory: str | os.PathLike, is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Save as `PreTrainedModel.save_pretrained` does, without weights of the model that was there before.

        The library deletes old shards, but leaves the single file beside new shards, which is then opened in their
        place, and the index of shards beside a new single file.
        """
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if not is_main_process or getattr(self, "_hf_peft_config_loaded", False):  # adapters have files of their own
            return
        variant = f".{kwargs['variant']}" if kwargs.get("variant") else ""
        single = Path(save_directory, f"model{variant}.safetensors")
        index = Path(save_directory, f"model.safetensors.index{variant}.json")
        if single.exists() and index.exists():
            has_shards = any(single.parent.glob(f"{escape(single.stem)}-?????-of-?????.safetensors"))
            (single if has_shards else index).unlink(missing_ok=True)

    @staticmethod
    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        """Compare the shapes of a checkpoint's weights with the model's before the library allocates memory.

        `from_pretrained` builds the model without memory and then reads the file. Weights that the file lacks, or has
        in another shape, the library allocates and draws before it complains. A few bytes of a hostile config.json
        could so ask for all memory there is.
        """
        wrong = sorted(loading_info.mismatched_keys)
        if wrong and not load_config.ignore_mismatched_sizes:
            lines = [
                f"{name}: {list(found)} in the file, {list(wanted)} by the configuration"
                for name, found, wanted in wrong
            ]
            more = f"\n  and {len(lines) - 8} more" if len(lines) > 8 else ""
            raise WrongShapesError(
                "the weights are of other shapes than the configuration says (ignore_mismatched_sizes=True draws them "
                "anew):\n  " + "\n  ".join(lines[:8]) + more
            )
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        missing = {name for name in loading_info.missing_keys if name not in tied}
        if modes := sorted(name for name in missing if name.endswith((".tail.poles", ".tail.weights"))):
            raise ValueError(
                "decoder_modes says that the model was distilled, but the file lacks the modes, "
                f"{modes[0]} among them: decoding would be wrong. Save the distilled model again, or set "
                "decoder_modes and decoder_taps to None in config.json and call distill_decoder()."
            )
        sizes = {name: tensor.nbytes for name, tensor in model.state_dict().items()}
        drawn = sum(sizes.get(name, 0) for name in missing)
        loaded = sum(size for name, size in sizes.items() if name not in missing)
        if drawn > max(_DRAWN_BYTES, 16 * loaded):
            raise ValueError(
                f"the file has {loaded / 2**20:.0f} MiB of the model's weights, and {drawn / 2**30:.1f} GiB are "
                f"missing, {min(missing)} among them: the configuration is of another model."
            )
        return PreTrainedModel._finalize_model_loading(model, load_config, loading_info)


def _fault_of_weights(folder: Path) -> str | None:
    """Say what is wrong with the first weights file, or index of such files, that is not in order."""
    for path in sorted(folder.glob("*.safetensors*")):
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                return f"{path} is a pointer of Git LFS in the place of the file: run `git lfs pull` in its clone."
        try:
            if path.suffix != ".json":
                with safe_open(path, framework="pt"):
                    continue
            index = json.loads(path.read_text(encoding="utf-8"))
        except (SafetensorError, ValueError) as error:
            return _cut_short(str(path), error)
        for field in ("weight_map", "metadata"):
            if not isinstance(index, dict) or not isinstance(index.get(field), dict):
                return f'the index {path} has no object "{field}"; it must be {_INDEX}.'
        if odd := [file for file in index["weight_map"].values() if not isinstance(file, str)]:
            return f"the index {path} names the file {odd[0]!r}; it must be {_INDEX}."
    return None


def _cut_short(file: str, error: Exception) -> str:
    return (
        f"the weights file {file} is cut short or damaged ({error}). Write or download it again; the run that wrote "
        "it can go on from a checkpoint."
    )
