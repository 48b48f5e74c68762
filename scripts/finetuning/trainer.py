"""The Trainer of finetune.py: the library's, with the options that published settings need."""

import math
from typing import Any

import torch

from hf_seqmix.training.resumable import ResumableTrainer

from .arguments import Arguments


class FinetuningTrainer(ResumableTrainer):
    """A `Trainer` whose schedule may be laid out for another length than the run's, and that may decay all parameters.

    Args:
        schedule_steps: updates of the whole schedule; None for those of the run.
        weight_decay_on_all_parameters: biases and norms, too.
        *args, **kwargs: as for `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        schedule_steps: int | None = None,
        weight_decay_on_all_parameters: bool = False,
        **kwargs: Any,
    ) -> None:
        self.schedule_steps = schedule_steps
        self.weight_decay_on_all_parameters = weight_decay_on_all_parameters
        super().__init__(*args, **kwargs)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        if self.weight_decay_on_all_parameters:
            return [name for name, _ in model.named_parameters()]
        return super().get_decay_parameter_names(model)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        return super().create_scheduler(self.schedule_steps or num_training_steps, optimizer)


def number_of_updates(arguments: Arguments, num_examples: int) -> int:
    """How many updates a run on so many examples makes, over all processes."""
    training = arguments.training
    if training.max_steps > 0:
        return training.max_steps
    batches = math.ceil(num_examples / (training.train_batch_size * training.world_size))
    return math.ceil(training.num_train_epochs * math.ceil(batches / training.gradient_accumulation_steps))


def check_schedule(arguments: Arguments, num_examples: int) -> None:
    """Refuse a run that goes on after its schedule has ended.

    Raises:
        ValueError: the schedule is shorter than the run: the library's cosine would rise again.
    """
    steps, updates = arguments.run.schedule_steps, number_of_updates(arguments, num_examples)
    if steps is not None and updates > steps:
        raise ValueError(
            f"--schedule-steps is {steps}, but the run makes {updates} updates: its learning rate would end before it. "
            f"Give fewer epochs or --max-steps, or a longer schedule."
        )
