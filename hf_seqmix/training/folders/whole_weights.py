"""A `Trainer` whose models are written whole, and read under the names that files give their weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..._files import whole_files
from ..every_row import EveryRowTrainer

__all__ = ["WholeWeightsTrainer"]


class WholeWeightsTrainer(EveryRowTrainer):
    """A `Trainer` whose final model is written aside and moved, and which finds every weight that a file holds.

    What is saved has the `use_cache` that the model came with, not that of training.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        model = kwargs.get("model", args[0] if args else None)
        self._use_cache = getattr(getattr(model, "config", None), "use_cache", None)
        self._loaded_from: str | None = None
        super().__init__(*args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        self._loaded_from = resume_from_checkpoint
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_best_model(self) -> None:
        self._loaded_from = self.state.best_model_checkpoint
        super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of what a checkpoint lacks, but not of what it has under another name.

        Those are tied weights, and all weights of types that have other names in files than in the model, such as ViT:
        `from_pretrained` knows these names, and the library's Trainer leaves such weights as they are.
        """
        model = self.accelerator.unwrap_model(self.model)
        tied = getattr(model, "all_tied_weights_keys", {})
        missing = [name for name in load_result.missing_keys if name not in tied]
        if missing and load_result.unexpected_keys and isinstance(model, PreTrainedModel):
            whole = type(model).from_pretrained(self._loaded_from, dtype=model.dtype, config=model.config)
            model.load_state_dict(whole.state_dict())
            return
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, in one piece at the end of a run of FSDP whose checkpoints are in pieces.

        The library saves nothing there.
        """
        super().save_model(output_dir, _internal_call)
        if _internal_call or not self.is_fsdp_enabled:
            return
        if "FULL_STATE_DICT" not in str(self.accelerator.state.fsdp_plugin.state_dict_type):
            whole = self.accelerator.get_state_dict(self.model)
            if self.args.should_save:
                self._save(output_dir, state_dict=whole)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        target = Path(output_dir if output_dir is not None else str(self.args.output_dir))
        with self._config_of_user():
            if not self.args.should_save or target.name.startswith("checkpoint-"):
                super()._save(output_dir, state_dict)
                return
            with whole_files(target, last="*model*.safetensors*") as aside:
                super()._save(str(aside), state_dict)

    @contextmanager
    def _config_of_user(self) -> Iterator[None]:
        """Give the model's configuration its own `use_cache`, which the library overwrites for training."""
        config: Any = getattr(self.accelerator.unwrap_model(self.model), "config", None)
        if config is None or self._use_cache is None:
            yield
            return
        in_training, config.use_cache = config.use_cache, self._use_cache
        try:
            yield
        finally:
            config.use_cache = in_training
