"""The order of blocks in which each row of a batch goes on in the text."""

from collections import Counter
from itertools import chain, pairwise

import pytest

from hf_seqmix.data.segments import SegmentSampler


def updates(sampler: SegmentSampler) -> list[list[int]]:
    blocks = list(sampler)
    assert len(blocks) == len(sampler) == sampler.updates * sampler.rows
    return [blocks[start : start + sampler.rows] for start in range(0, len(blocks), sampler.rows)]


def test_each_row_goes_on_in_the_text_until_its_stream_ends():
    sampler = SegmentSampler(num_blocks=50, segments=4, rows=3, seed=5)
    read = updates(sampler)
    assert len(read) == 16  # 12 streams, of which 4 rounds of 3 rows, each of 4 updates
    for number, (before, now) in enumerate(pairwise(read), start=1):
        goes_on = [later == earlier + 1 for earlier, later in zip(before, now, strict=True)]
        assert all(goes_on) or number % 4 == 0
    assert max(Counter(block for rows in read for block in rows).values()) == 1
    assert all(0 <= block < 50 for rows in read for block in rows)


def test_each_pass_has_its_own_streams_and_the_seed_decides():
    sampler = SegmentSampler(num_blocks=50, segments=4, rows=3, seed=5)
    passes = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        passes.append(updates(sampler))
    assert {min(rows[0] for rows in read) % 4 for read in passes} > {0}  # borders of streams move
    assert {*range(50)} == {block for read in passes for rows in read for block in rows}
    assert len({str(read) for read in passes}) == 6
    sampler.set_epoch(0)
    assert updates(sampler) == passes[0] == updates(SegmentSampler(50, 4, 3, seed=5))
    assert updates(SegmentSampler(50, 4, 3, seed=6)) != passes[0]


def test_blocks_before_the_first_stream_are_shuffled():
    sampler = SegmentSampler(num_blocks=50, segments=4, rows=3, seed=5)
    whole = updates(sampler)
    sampler.first = 24  # 8 updates into the second pass
    alone = updates(sampler)
    assert sorted(map(sorted, alone)) != sorted(map(sorted, whole))
    assert sorted(chain(*alone)) == sorted(chain(*whole))
    sampler.set_epoch(1)
    mixed = updates(sampler)
    sampler.first = 0
    streams = updates(sampler)
    assert mixed[8:] == streams[8:] and mixed[:8] != streams[:8]
    assert sorted(chain(*mixed[:8])) == sorted(chain(*streams[:8]))


def test_what_cannot_be_dealt_out_is_refused():
    with pytest.raises(ValueError, match="a stream was to be 1 segments; it must be at least 2"):
        SegmentSampler(50, 1, 3)
    with pytest.raises(
        ValueError, match="has 11 blocks, which are 2 streams of 4 segments, but an update reads 3 rows"
    ):
        SegmentSampler(11, 4, 3)
    assert len(SegmentSampler(12, 4, 3)) == 12
