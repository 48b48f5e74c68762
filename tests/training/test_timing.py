"""Fresh processes and the record of memory."""

import logging

import torch

from hf_seqmix.training.timing import in_fresh_process, peak_bytes


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
