"""Results on their way from the thread of a manager to whoever asked for them."""

import asyncio
import queue
import threading
from collections.abc import Callable, Container, Sequence
from typing import Any

from transformers.generation.continuous_batching import RequestState, RequestStatus

__all__ = ["ResultQueue"]


class ResultQueue:
    """Results in the order in which they came, read by any thread, of all requests or of one.

    A request may have a handler, which an event loop calls with its results; they are then not queued.
    """

    def __init__(self) -> None:
        self._results: queue.Queue[Any] = queue.Queue()
        self._set_aside: list[Any] = []  # taken from the queue for a caller who waited for another request
        self._handlers: dict[str, tuple[Callable[[Any], None], asyncio.AbstractEventLoop]] = {}
        self._lock = threading.Lock()

    def deliver(self, states: Sequence[RequestState]) -> None:
        """Queue the results of requests that have ended or stream, or hand them to their handlers."""
        for state in states:
            ended = state.status >= RequestStatus.FINISHED
            if not (ended or state.streaming):
                continue
            with self._lock:
                handler = self._handlers.pop(state.request_id, None) if ended else self._handlers.get(state.request_id)
            if handler is None:
                self._results.put(state.to_generation_output())
            else:
                callback, loop = handler
                loop.call_soon_threadsafe(callback, state.to_generation_output())

    def get(self, request_id: str | None, timeout: float | None, wait: bool) -> Any:
        """Return the next result, or None: after `timeout` seconds, or if it is of another request.

        Args:
            request_id: whose result is wanted; that of another one is kept in its order. None for any.
            timeout: seconds to wait at most.
            wait: whether further results may come; without, an empty queue is not waited for.
        """
        with self._lock:
            for index, result in enumerate(self._set_aside):
                if request_id in (None, result.request_id):
                    return self._set_aside.pop(index)
        if self._results.empty() and not wait:
            return None
        try:
            result = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        if request_id in (None, result.request_id):
            return result
        with self._lock:
            self._set_aside.append(result)
        return None

    def may_have(self, request_id: str | None = None) -> bool:
        """Return whether a result is here that is, or may be, of a request."""
        with self._lock:
            aside = any(request_id in (None, result.request_id) for result in self._set_aside)
        return aside or not self._results.empty()

    def handle(self, request_id: str, callback: Callable[[Any], None]) -> None:
        """Have the running event loop call `callback` with each result of a request."""
        with self._lock:
            self._handlers[request_id] = (callback, asyncio.get_running_loop())

    def forget(self, request_ids: Container[str]) -> None:
        """Drop the handlers of requests that will have no result."""
        with self._lock:
            self._handlers = {name: entry for name, entry in self._handlers.items() if name not in request_ids}
