"""Checkpoints that the studies look into, the tokenizer that these share, and models that studies keep."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from hf_seqmix._files import write_text
from hf_seqmix.analysis.rates import TokenRegressor
from hf_seqmix.analysis.text.documents import find_prefix_token
from hf_seqmix.training import explain_model_error
from hf_seqmix.training.json_fields import canonical
from hf_seqmix.training.run import Run

__all__ = ["is_kept", "keep_model", "load_backbone", "load_model", "load_tokenizer"]

KEPT_RUN = "run.json"

logger = logging.getLogger(__name__)


def keep_model(model: PreTrainedModel | TokenRegressor, folder: Path, run: Run) -> None:
    """Write a model and, last, the run that trained the model."""
    (folder / KEPT_RUN).unlink(missing_ok=True)
    model.save_pretrained(folder)
    write_text(folder / KEPT_RUN, canonical(run.to_json()))


def is_kept(folder: Path, run: Run) -> bool:
    """Return whether a folder holds the model that a run trained, and not that of other settings."""
    path = folder / KEPT_RUN
    return path.is_file() and path.read_text(encoding="utf-8") == canonical(run.to_json())


def load_backbone(name: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the backbone of a checkpoint in float32 and in evaluation, whatever its head.

    Raises:
        ValueError: it cannot be loaded.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # a head that is not loaded is no news here
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        model = AutoModel.from_pretrained(
            name, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    except OSError as error:
        raise ValueError(explain_model_error(name, error)) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    logger.setLevel(logging.INFO)
    logger.info(f"{name}: {type(model).__name__}, {model.num_parameters():,} parameters")
    return model.eval()


def load_model(name: str, auto_class: Any, trust_remote_code: bool = False) -> tuple[PreTrainedModel, list[str]]:
    """Return a checkpoint with its head in float32, and the names of the weights that it lacks.

    Args:
        name: a Hub name or a folder.
        auto_class: such as `AutoModelForCausalLM`.
        trust_remote_code: whether code that comes with the checkpoint may run.

    Raises:
        ValueError: it cannot be loaded.
    """
    options: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    try:
        model, found = auto_class.from_pretrained(name, output_loading_info=True, **options)
    except (OSError, ValueError) as error:
        raise ValueError(explain_model_error(name, error)) from error
    return model, sorted(found["missing_keys"])


def load_tokenizer(names: Sequence[str], trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of all checkpoints.

    Raises:
        ValueError: one cannot be loaded, or two are not the same.
    """
    found = []
    for name in names:
        try:
            found.append(AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code))
        except (OSError, ValueError) as error:
            raise ValueError(explain_model_error(name, error)) from error
        if _ways_of(found[-1]) != _ways_of(found[0]):
            raise ValueError(
                f"{name} and {names[0]} have other tokens, or another token before a text, so their losses are of "
                "other pairs: compare models of one tokenizer."
            )
    return found[0]


def _ways_of(tokenizer: Any) -> tuple[Any, ...]:
    """Return all that makes tokens of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return tokenizer.get_vocab(), find_prefix_token(tokenizer), None if backend is None else backend.to_str()
