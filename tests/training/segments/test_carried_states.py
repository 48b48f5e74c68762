"""States that come back from a file as they were, and what is refused."""

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForCausalLM
from hf_seqmix.training.segments.carried_states import CarriedStates, StateSettings

MIXERS = ["attention", "tnn", "poly_transformer", "short_conv", "ipa", "fd_tnn"]
ROWS = [1, 2, 3, 4]
CPU = torch.device("cpu")


def model() -> Any:
    torch.manual_seed(0)
    config = SeqMixHybridConfig(
        vocab_size=9,
        hidden_size=16,
        mixer_types=MIXERS,
        short_conv_taps=3,
        ngram_sizes=[2, 3],
        ngram_buckets=32,
        copy_head=True,
        copy_head_tokens=3,
        copy_head_state=True,
        hidden_dropout=0.0,
    )
    return SeqMixHybridForCausalLM(config).train()


def read(model: Any, carried: CarriedStates, ids: Tensor) -> list[Tensor]:
    """Read a segment in two parts of an update."""
    logits = []
    for part, rows in enumerate(ids):
        logits.append(model(rows, past_key_values=carried.cache(part)).logits)
        carried.detach(part)
    return logits


def test_states_come_back_to_the_bit(tmp_path: Path) -> None:
    """Of every kind of layer, with the inputs of convolutions and the pairs of a copy head."""
    trained = model()
    carried, again = CarriedStates(trained.config), CarriedStates(trained.config)
    segments = torch.randint(9, (3, 2, 3, 70))
    for ids in segments[:2]:
        read(trained, carried, ids)
    carried.save(tmp_path / "states.pt", ROWS)
    expected = read(trained, carried, segments[2])
    assert again.load(tmp_path / "states.pt", ROWS, CPU)
    assert again.cache(0).get_seq_length() == 140
    for one, other in zip(read(trained, again, segments[2]), expected, strict=True):
        assert torch.equal(one, other)
    again.clear()
    assert again.cache(1).get_seq_length() == 0


def test_states_of_other_rows_and_no_states_are_said_so(tmp_path: Path) -> None:
    trained = model()
    carried = CarriedStates(trained.config)
    read(trained, carried, torch.randint(9, (2, 3, 5)))
    carried.save(tmp_path / "states.pt", ROWS)
    assert not carried.load(tmp_path / "states.pt", [2, 2, 3, 4], CPU)
    assert carried.cache(0).get_seq_length() == 0
    assert not carried.load(tmp_path / "no-such.pt", ROWS, CPU)


def test_a_file_of_other_objects_is_not_opened(tmp_path: Path) -> None:
    torch.save({"rows": ROWS, "layers": [datetime.date(2026, 1, 1)]}, tmp_path / "states.pt")
    with pytest.raises(ValueError, match=r"states\.pt holds other things than states of this model"):
        CarriedStates(model().config).load(tmp_path / "states.pt", ROWS, CPU)


@pytest.mark.parametrize(
    ("segments", "start", "message"),
    [
        (1, 0.0, "--state-segments is 1; a stream has at least 2 segments"),
        (-4, 0.0, "--state-segments is -4"),
        (4, 1.0, r"--states-from is 1\.0; it is a share of the updates"),
        (4, -0.1, r"--states-from is -0\.1"),
        (4, float("nan"), "--states-from is nan"),
    ],
)
def test_settings_that_make_no_stream_are_refused(segments: int, start: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StateSettings(segments, start)


def test_streams_begin_at_multiples_of_their_segments() -> None:
    assert StateSettings(16, 0.99).first(100) == 96 and StateSettings(16, 0.9).first(160) == 144
    assert StateSettings(16).first(100) == 0 and StateSettings(16, 0.9).first(12) == 0
    settings = StateSettings(4, 0.5)
    assert [settings.segment(update, first=4) for update in (3, 4, 7, 8, 9)] == [None, 0, 3, 0, 1]
