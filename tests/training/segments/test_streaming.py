"""A stream without end: each pass is whole, in an order of its own, and the same when it is read again."""

from itertools import islice
from pathlib import Path

import datasets
import pytest
import torch

from hf_seqmix.training.segments.streaming import EndlessStream


def stream(folder: Path, shards: int = 3, buffer_size: int = 4) -> datasets.IterableDataset:
    for shard in range(shards):
        (folder / f"{shard}.txt").write_text("".join(f"{n}\n" for n in range(shard, 20, shards)))
    files = [str(path) for path in sorted(folder.glob("*.txt"))]
    rows = datasets.load_dataset(
        "text", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache")
    )
    return rows.shuffle(seed=0, buffer_size=buffer_size)


def taken(rows: EndlessStream, count: int) -> list[int]:
    return [int(row["text"]) for row in islice(iter(rows), count)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")  # on one core
@pytest.mark.parametrize("workers", [0, 2])
def test_each_pass_has_every_row_once(tmp_path: Path, workers: int) -> None:
    rows = taken(EndlessStream(stream(tmp_path), workers), 50)
    assert sorted(rows[:20]) == sorted(rows[20:40]) == list(range(20))
    assert rows[:20] != rows[20:40]
    assert len(set(rows[40:])) == 10


def test_it_is_the_same_when_read_again(tmp_path: Path) -> None:
    rows = EndlessStream(stream(tmp_path))
    assert taken(rows, 45) == taken(rows, 45) == taken(EndlessStream(stream(tmp_path)), 45)


def test_it_moves_no_random_numbers_but_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    taken(EndlessStream(stream(tmp_path)), 25)
    assert torch.equal(torch.rand(3), expected)


def test_a_stream_without_rows_is_refused(tmp_path: Path) -> None:
    empty = EndlessStream(stream(tmp_path).filter(lambda row: False))
    with pytest.raises(ValueError, match="gave no rows"):
        next(iter(empty))
