"""A stream of rows that never ends, for a `Trainer` that takes a stream for a single epoch."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import datasets
import torch
from torch.utils.data import DataLoader, IterableDataset

__all__ = ["EndlessStream"]

# Rows that a worker hands over at a time.
_ROWS = 16


class EndlessStream(IterableDataset):
    """Pass after pass over a stream of the `datasets` library, each row once a pass, each pass in its own order.

    A `Trainer` knows no length of a stream. It skips as many batches as a resumed run has seen, but none beyond the
    end of a pass, and what it has accumulated at that end it takes for a part of the next update. Here is no such end.

    With several processes the first one reads, and deals each batch out, as accelerate does with any stream. So no row
    is read twice in a pass, however many shards there are, and batches are those of a single process with a batch as
    large.

    Args:
        stream: rows; a shuffled one gets another order in each pass.
        num_workers: processes that read its shards; at most as many as there are shards have anything to do.
        prefetch_factor: groups of rows that each of them reads ahead.
    """

    def __init__(
        self, stream: datasets.IterableDataset, num_workers: int = 0, prefetch_factor: int | None = None
    ) -> None:
        self.stream = stream
        # Here, and not by the outer loader: its workers would each come to the end of their own shards, and go on.
        self.loading: dict[str, Any] = {"num_workers": num_workers}
        if num_workers > 0:
            self.loading["prefetch_factor"] = prefetch_factor

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for epoch in count():
            self.stream.set_epoch(epoch)
            # A generator of its own, so that a pass moves no other random numbers.
            own = torch.Generator().manual_seed(epoch)
            empty = True
            for rows in DataLoader(self.stream, _ROWS, collate_fn=list, generator=own, **self.loading):
                empty = False
                yield from rows
            if empty:
                raise ValueError("a whole pass over the stream gave no rows: there is nothing to train on.")
