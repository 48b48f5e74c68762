"""A `Trainer` that reads a text in streams of segments, each of which continues the state of the one before."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerState

from ..._compat import cache_argument
from ...data.segments import SegmentSampler
from ..folders.resumable import ResumableTrainer
from .carried_states import CarriedStates, StateSettings
from .state_checks import refuse_arguments, refuse_model

__all__ = ["StatefulTrainer"]

logger = logging.getLogger(__name__)


class StatefulTrainer(ResumableTrainer):
    """A `ResumableTrainer` whose rows are streams of consecutive segments, read by truncated backpropagation in time.

    Segment t + 1 of a row follows its segment t in the text (`SegmentSampler`), and the model reads it with the cache
    that segment t left as `past_key_values`, cut from its graph: the state passes the border, gradients stop there.
    What a segment left was computed by the weights of its own update. The first segment of a stream begins with an
    empty cache. Evaluations have no states.

    An update continues the rows of the update before, those of each accumulation step and of each process, so that
    updates of 4 rows are those of 2 processes with 2 rows. A checkpoint within streams holds the states, a file for
    each process, so that a resumed run has the same losses; a checkpoint between streams holds none. Where states
    belong to other rows, the segments up to the next streams begin with empty states.

    Source: Buitrago, Gu 2025 (arXiv 2507.02782): state passing, and truncated backpropagation through time. Departure:
    all rows begin their streams in the same update, so the training loss has the period of a stream.

    Args:
        states: which segments go on; None for a `ResumableTrainer`.
        *args, **kwargs: as for `ResumableTrainer`. The rows of the training data are the blocks of a text, in order,
            all of one length.

    Raises:
        ValueError: for a model, an argument or a number of blocks that this does not work with.
    """

    def __init__(self, *args: Any, states: StateSettings | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.states = states
        model: Any = self.model
        self.carried = CarriedStates(model.config)
        self.segments: SegmentSampler | None = None
        """The order of the data; None without states."""
        self._part = 0  # of the update: which of its accumulation steps comes next
        if states is None:
            return
        data: Any = self.train_dataset
        refuse_arguments(self.args)
        refuse_model(model, states.segments * len(data[0]["input_ids"]))
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        processes, parts, rows, segments = self._rows
        self.segments = SegmentSampler(len(data), segments, processes * parts * rows, seed)
        self.add_callback(_FollowStreams(self))

    @property
    def _rows(self) -> list[int]:
        """Processes, accumulation steps, rows of each, and segments: what states belong to."""
        assert self.states is not None
        arguments = self.args
        parts, rows = arguments.gradient_accumulation_steps, arguments.train_batch_size
        return [arguments.world_size, parts, rows, self.states.segments]

    @property
    def segment(self) -> int | None:
        """Which segment of its streams the next update reads, from 0; None before the first stream, and without."""
        if self.states is None or self.segments is None:
            return None
        return self.states.segment(self.state.global_step, self.segments.first)

    def trial_parts(self) -> list[tuple[float, dict[str, Any]]]:
        """Return the share of updates without states, and that with states, each with what a trial is to be told."""
        if self.states is None:
            return [(1.0, {"states": None})]
        alone = self.states.start
        parts: list[tuple[float, dict[str, Any]]] = [
            (alone, {"states": None}),
            (1 - alone, {"states": StateSettings(self.states.segments)}),
        ]
        return [part for part in parts if part[0] > 0]

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        return super()._get_train_sampler(train_dataset) if self.segments is None else self.segments

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of a batch, whose rows go on from the states of the segments before."""
        if self.segment is None:
            return super().training_step(model, inputs, *args, **kwargs)
        cache = self.carried.cache(self._part)
        name = cache_argument(self.model)
        assert name is not None  # `refuse_model` has seen to it
        loss = super().training_step(model, {**inputs, name: cache}, *args, **kwargs)
        self.carried.detach(self._part)
        self._part += 1
        return loss

    def begin_run(self, state: TrainerState) -> None:
        """Lay out the streams of a run, and take up the states of the checkpoint that it goes on from."""
        assert self.states is not None and self.segments is not None
        self.segments.first = self.states.first(state.max_steps)
        self.carried.clear()
        if not self.segment or self.resumed_from is None:
            return
        path = self.resumed_from / self._states_file
        if not self.carried.load(path, self._rows, self.args.device) and self.is_world_process_zero():
            processes, parts, rows, segments = self._rows
            logger.warning(
                f"{self.resumed_from} has no states for {processes} processes, {parts} accumulation steps, {rows} "
                f"rows and {segments} segments: the next {segments - self.segment} updates begin with empty states."
            )

    def begin_pass(self, state: TrainerState) -> None:
        """Choose the order of a pass over the text, by what has been read: a resumed run's loader keeps no epoch."""
        assert self.segments is not None
        self.segments.set_epoch(state.global_step // self.segments.updates)

    def begin_update(self) -> None:
        """Begin with the first accumulation step, and with empty states where streams begin."""
        self._part = 0
        if self.segment == 0:
            self.carried.clear()

    @property
    def _states_file(self) -> str:
        return f"states_{self.args.process_index}.pt"

    def _save_rng_state(self, output_dir: str) -> None:
        """Save this process's part of a checkpoint, with its states."""
        super()._save_rng_state(output_dir)
        if self.segment:
            self.carried.save(Path(output_dir) / self._states_file, self._rows)


class _FollowStreams(TrainerCallback):
    """Tells the trainer where it is."""

    def __init__(self, trainer: StatefulTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        self.trainer.begin_run(state)

    def on_epoch_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        self.trainer.begin_pass(state)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.begin_update()
