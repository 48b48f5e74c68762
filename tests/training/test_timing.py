"""Clocks, fresh processes and the record of memory."""

import itertools
import logging
import time

import pytest
import torch
from transformers import StoppingCriteriaList

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.training.timing import TokenClock, in_fresh_process, peak_bytes


def what_is_shown() -> list[bool]:
    names = "of_a_script", "of_a_library"
    return [logging.root.hasHandlers(), *(logging.getLogger(name).isEnabledFor(logging.INFO) for name in names)]


def test_a_fresh_process_logs_as_this_one(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    monkeypatch.setattr(logging.getLogger("of_a_script"), "level", logging.INFO)
    assert in_fresh_process(what_is_shown) == [True, True, False]


def test_the_record_of_memory_prints_nothing(capfd):
    assert peak_bytes(lambda: torch.zeros(1000), torch.device("cpu")) >= 4000
    assert "Profiler" not in capfd.readouterr().err


def test_every_token_has_its_seconds():
    squares = (float(number**2) for number in itertools.count())
    clock = TokenClock(torch.device("cpu"), lambda: next(squares))
    model = TNNForCausalLM(TNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, rpe_hidden_size=8)).eval()
    sizes = {"min_new_tokens": 4, "max_new_tokens": 4, "pad_token_id": 0}
    ids = torch.ones(2, 3, dtype=torch.long)
    made = model.generate(ids, **sizes, do_sample=False, stopping_criteria=StoppingCriteriaList([clock]))
    assert made.shape == (2, 7) and clock.seconds == [1, 3, 5, 7]


@pytest.mark.parametrize(("threads", "now"), [(1, time.thread_time), (2, time.perf_counter)])
def test_the_clock_of_tokens_is_that_of_a_thread_alone(monkeypatch, threads, now):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert TokenClock(torch.device("cpu"))._now is now
    assert TokenClock(torch.device("cpu"), time.perf_counter)._now is time.perf_counter
