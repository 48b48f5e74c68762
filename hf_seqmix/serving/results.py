"""Results on their way from the thread of a manager to whoever asked for them."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from transformers.generation.continuous_batching import RequestState, RequestStatus

__all__ = ["ResultQueue"]

LOOK = 0.1
"""Seconds after which a caller who waits looks whether further results may come."""


class ResultQueue:
    """Results in the order in which they came, read by any thread, of all requests or of one.

    A request may have a handler, which an event loop calls with its results; they are then not queued.
    """

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._handlers: dict[str, tuple[Callable[[Any], None], asyncio.AbstractEventLoop]] = {}
        self._open: set[str] = set()
        self._ready = threading.Condition()

    def deliver(self, states: Sequence[RequestState]) -> None:
        """Queue the results of requests that have ended or stream, or hand them to their handlers."""
        for state in states:
            ended = state.status >= RequestStatus.FINISHED
            if not (ended or state.streaming):
                continue
            with self._ready:
                if ended:
                    self._open.discard(state.request_id)
                handler = self._handlers.get(state.request_id)
                if handler is None:
                    self._results.append(state.to_generation_output())
                    self._ready.notify_all()
                elif not _hand_over(handler, state.to_generation_output()) or ended:
                    del self._handlers[state.request_id]

    def get(self, request_id: str | None, timeout: float | None, running: Callable[[], bool]) -> Any:
        """Return the next result, or None: after `timeout` seconds, or where none can come any more.

        Args:
            request_id: whose result is wanted; None for any.
            timeout: seconds to wait at most; None without end.
            running: whether further results may come.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._ready:
            while True:
                may_come = running()  # before the look: the last results come before the end
                for index, result in enumerate(self._results):
                    if request_id in (None, result.request_id):
                        return self._results.pop(index)
                left = LOOK if end is None else min(LOOK, end - time.monotonic())
                if not may_come or left <= 0:
                    return None
                self._ready.wait(left)

    def may_have(self, request_id: str | None = None) -> bool:
        """Return whether a result of a request is here."""
        with self._ready:
            return any(request_id in (None, result.request_id) for result in self._results)

    def handle(self, request_id: str, callback: Callable[[Any], None]) -> None:
        """Have the running event loop call `callback` with each result of a request, those that are here first."""
        handler = (callback, asyncio.get_running_loop())
        with self._ready:
            here = [result for result in self._results if result.request_id == request_id]
            self._results = [result for result in self._results if result.request_id != request_id]
            for result in here:
                _hand_over(handler, result)
            if not any(result.status >= RequestStatus.FINISHED for result in here):
                self._handlers[request_id] = handler

    def forget(self, request_ids: Collection[str]) -> None:
        """Drop the handlers of requests that will have no further result."""
        with self._ready:
            self._handlers = {name: entry for name, entry in self._handlers.items() if name not in request_ids}
            self._open.difference_update(request_ids)

    def expect(self, request_ids: Collection[str]) -> None:
        """Note requests that will have results.

        Raises:
            ValueError: a request of that name has not ended.
        """
        with self._ready:
            if taken := sorted(self._open.intersection(request_ids)):
                raise ValueError(
                    f"request_id is {taken[0]!r}, the name of a request that has not ended: give another one, or "
                    "none, or their results would be mixed."
                )
            self._open.update(request_ids)

    def expected(self) -> list[str]:
        """Return the requests that have not ended."""
        with self._ready:
            return list(self._open)

    def may_come(self, request_id: str) -> bool:
        """Return whether a request is one that has not ended."""
        with self._ready:
            return request_id in self._open


def _hand_over(handler: tuple[Callable[[Any], None], asyncio.AbstractEventLoop], result: Any) -> bool:
    """Have an event loop call a handler; return False where the loop is closed, and nobody is left to hear it."""
    callback, loop = handler
    try:
        loop.call_soon_threadsafe(callback, result)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
