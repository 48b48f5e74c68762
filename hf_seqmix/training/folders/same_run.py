"""What a resumed run must have in common with its beginning: the model, and what it is told."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, Trainer

from ..._files import write_json
from .run_files import ARGUMENTS_FILE

if TYPE_CHECKING:
    from .resumable import ResumableTrainer

__all__ = ["changed_arguments", "finished_results", "record_arguments", "refuse_other_model", "train_unless_finished"]

logger = logging.getLogger(__name__)

_NOT_THE_MODEL = {
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "pad_token_id",  # the library takes these three from the tokenizer when training begins
    "transformers_version",
    "use_cache",
}
"""Fields of a configuration that change while the same model is trained."""
_OF_NUMBERS = (
    "adam_beta1",
    "adam_beta2",
    "gradient_accumulation_steps",
    "kernel_learning_rate",
    "learning_rate",
    "lr_scheduler_type",
    "max_grad_norm",
    "muon_learning_rate",
    "optim",
    "per_device_train_batch_size",
    "seed",
    "warmup_steps",
    "weight_decay",
)
"""Training arguments that a checkpoint has settled or that change what is trained on."""
_MEANS = {"seed": " (rows that finetune.py holds out are others then, and may have been trained on)"}
"""What a change means beyond itself."""
_NOT_THE_RUN = ("max_seconds", "max_tokens", "overwrite_output_dir", "resume")
"""What may be said otherwise each time: how long to train, and how to begin."""


def refuse_other_model(checkpoint: str | Path | None, config: PreTrainedConfig | None) -> None:
    """Refuse a checkpoint of another model than the one to be trained, whose weights the library would mix.

    Dropout may differ, and what the library writes into a configuration on its own. A checkpoint without a
    configuration, as of adapters, says nothing.

    Args:
        checkpoint: its folder; None for none.
        config: of the model to be trained; None where it has none.

    Raises:
        ValueError: naming what differs.
    """
    file = Path(checkpoint or "") / "config.json"
    if checkpoint is None or config is None or not file.is_file():
        return
    saved = json.loads(file.read_text(encoding="utf-8"))
    if saved.get("model_type") != config.model_type:
        other = f"it is of a {saved.get('model_type')} model, and a {config.model_type} model is to be trained"
    else:
        given = json.loads(config.to_json_string(use_diff=False))
        try:
            before, now = (type(config).from_dict(fields).to_dict() for fields in (saved, given))
        except (StrictDataclassError, TypeError, ValueError):
            return  # of another version: loading says what does not fit
        names = sorted((before.keys() & now.keys()) - _NOT_THE_MODEL)
        changed = [name for name in names if before[name] != now[name] and not name.endswith("dropout")]
        # The library writes this one in the first forward, where it was left open.
        changed = [name for name in changed if name != "problem_type" or None not in (before[name], now[name])]
        other = "; ".join(f"{name} is {before[name]!r} there and {now[name]!r} here" for name in changed)
    if other:
        raise ValueError(
            f"the checkpoint {checkpoint} cannot be continued from: {other}. Give the arguments that the run began "
            "with, or another output folder."
        )


def record_arguments(folder: str | Path, arguments: Mapping[str, Any]) -> None:
    """Write what a run is told when it begins.

    Args:
        folder: of the run.
        arguments: by section, ready for JSON.
    """
    write_json(Path(folder) / ARGUMENTS_FILE, arguments)


def changed_arguments(folder: str | Path, arguments: Mapping[str, Any]) -> list[str]:
    """Return what a resumed run is told otherwise than when it began, a line each; nothing where no record is.

    How long to train, where to log and when to save may change, and are left out.

    Args:
        folder: where the run began.
        arguments: of this call, by section, ready for JSON.

    Raises:
        ValueError: it is another optimizer, which could not read the state of the one before, another tokenizer,
            where the run keeps its own, or another share of the rows is held out, which the run has trained on.
    """
    file = Path(folder) / ARGUMENTS_FILE
    if not file.is_file():
        return []
    before, now = json.loads(file.read_text(encoding="utf-8")), json.loads(json.dumps(arguments))
    lines = []
    for section, given in now.items():
        earlier = before.get(section, {})
        names = _OF_NUMBERS if section == "training" else [name for name in given if name not in _NOT_THE_RUN]
        lines += [
            f"{name} was {earlier[name]!r} and is {given[name]!r}{_MEANS.get(name, '')}"
            for name in names
            if name in earlier and name in given and earlier[name] != given[name]
        ]
    optimizers = [each.get("training", {}).get("optim") for each in (before, now)]
    if optimizers[0] != optimizers[1]:
        raise ValueError(
            f"the run began with --optim {optimizers[0]}, whose state {optimizers[1]} cannot read: give "
            f"{optimizers[0]}, or another output folder."
        )
    for section in before.keys() & now.keys():
        names = [each[section].get("tokenizer") for each in (before, now)]
        if names[0] != names[1]:
            said = f"with --tokenizer {names[0]}" if names[0] else "without --tokenizer"
            raise ValueError(
                f"the run began {said} and keeps its tokens: say the same, or give another output folder."
            )
        shares = [each[section].get("validation_fraction") for each in (before, now)]
        if None not in shares and shares[0] != shares[1]:
            raise ValueError(
                f"the run began with --validation-fraction {shares[0]}: by {shares[1]} rows that it was trained on "
                f"would be evaluated on. Give {shares[0]}, or another output folder."
            )
    return lines


def finished_results(trainer: Trainer) -> dict[str, Any] | None:
    """Return the results that a finished run has written, and say so; None where there are none, or of other updates.

    They are written last, so that everything else is there, too. A second call would not know how long training took.

    Args:
        trainer: of the run, whose state is that of the last checkpoint.
    """
    file = Path(str(trainer.args.output_dir)) / "results.json"
    if not file.is_file():
        return None
    results = json.loads(file.read_text(encoding="utf-8"))
    if results.get("num_updates") != trainer.state.global_step:
        return None
    if trainer.is_world_process_zero():
        logger.warning(f"The run is finished: {file} stays as it is.")
    return results


def train_unless_finished(trainer: "ResumableTrainer", checkpoint: str | None) -> tuple[float, dict[str, Any] | None]:
    """Train from the start or from a checkpoint, and save the model, unless the run has left its results.

    Args:
        trainer: of the run.
        checkpoint: from which it goes on; None for the start.

    Returns:
        The seconds of training, 0 where nothing was left to train, and what `finished_results` returns.
    """
    finished = checkpoint is not None and trainer.restore_finished(checkpoint)
    if finished and (kept := finished_results(trainer)) is not None:
        return 0.0, kept
    seconds = 0.0 if finished else trainer.train(resume_from_checkpoint=checkpoint).metrics["train_runtime"]
    trainer.save_model()
    return seconds, None
