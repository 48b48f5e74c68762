"""The clock of updates counts updates and nothing else."""

import time

import torch

from hf_seqmix.training.step_clock import StepClock


def test_median_of_the_updates_alone() -> None:
    clock = StepClock()
    for seconds in (0.02, 0.02, 0.2):
        clock.on_step_begin()
        time.sleep(seconds)
        clock.on_step_end()
        time.sleep(0.05)  # an evaluation
    measured = clock.measured()
    assert 1 / 0.045 < measured["steps_per_second"] <= 1 / 0.02
    assert 0 <= measured["seconds_per_update"] < 0.045  # by either clock


def test_memory_is_of_the_process_and_grows_with_it() -> None:
    before = StepClock().measured()
    tensor = torch.ones(2**26)
    after = StepClock().measured()
    assert before["steps_per_second"] is None
    assert after["peak_memory_bytes"] >= before["peak_memory_bytes"]
    assert after["peak_memory_bytes"] > tensor.nbytes
