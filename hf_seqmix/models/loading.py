"""Loading of weights, with the checks that the library leaves out: damaged files, and shapes before memory."""

import json
import os
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

__all__ = ["CheckedLoading"]

_DRAWN_BYTES = 2**32
"""Weights that a checkpoint may lack in any case, such as those of a new head."""


class WrongShapesError(ValueError, RuntimeError):
    """Weights are of other shapes than the configuration says; the library raises a `RuntimeError` there."""


class CheckedLoading(PreTrainedModel):
    """A model whose `from_pretrained` names a damaged file, and compares shapes before it allocates memory."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> Self:
        """Load a model as `PreTrainedModel.from_pretrained` does.

        Raises:
            ValueError: for a weights file that is damaged, where the library only passes on what is wrong with the
                file.
            WrongShapesError: for weights of other shapes than the configuration says.
        """
        name = pretrained_model_name_or_path
        try:
            return super().from_pretrained(name, *args, **kwargs)
        except (SafetensorError, json.JSONDecodeError) as error:
            file = _damaged_file(Path(str(name)) / (kwargs.get("subfolder") or ""))
            if file is None and isinstance(error, json.JSONDecodeError):
                raise  # of another file, which the library names
            raise ValueError(
                f"the weights file {file or f'of {name}'} is cut short or damaged ({error}). Write or download it "
                "again; the run that wrote it can go on from a checkpoint."
            ) from error

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
        if modes := sorted(name for name in missing if name.rpartition(".")[0].endswith(".tail")):
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


def _damaged_file(folder: Path) -> Path | None:
    for path in sorted(folder.glob("*.safetensors*")):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
                continue
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, ValueError):
            return path
    return None
