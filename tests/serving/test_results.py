"""Results that several callers read from one queue."""

import asyncio
import threading
from typing import Any

from transformers.generation.continuous_batching import RequestState, RequestStatus

from hf_seqmix.serving.results import ResultQueue


def states(*names: str, status: RequestStatus = RequestStatus.FINISHED, **fields: Any) -> list[RequestState]:
    made = [RequestState(request_id=name, initial_tokens=[1], **fields) for name in names]
    for state in made:
        state.status = status
    return made


def names(results: ResultQueue, count: int) -> list[Any]:
    return [getattr(results.get(None, 0.01, lambda: True), "request_id", None) for _ in range(count)]


def test_the_results_of_one_request_leave_the_others_in_their_order() -> None:
    results = ResultQueue()
    results.deliver(states("a", "b", "c"))
    assert results.get("c", 0.01, lambda: True).request_id == "c"
    assert results.get("c", 0.01, lambda: True) is None
    assert results.may_have("b") and not results.may_have("c")
    assert names(results, 3) == ["a", "b", None]


def test_a_request_that_goes_on_has_results_where_it_streams() -> None:
    results = ResultQueue()
    results.deliver(states("quiet", status=RequestStatus.DECODING))
    results.deliver(states("streams", status=RequestStatus.DECODING, streaming=True))
    assert names(results, 2) == ["streams", None]


def test_an_empty_queue_that_nothing_fills_is_not_waited_for() -> None:
    assert ResultQueue().get(None, None, lambda: False) is None


def test_who_waits_hears_of_the_end() -> None:
    running = threading.Event()
    running.set()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(ResultQueue().get("a", None, running.is_set)))
    waiting.start()
    running.clear()
    waiting.join(10)
    assert found == [None]


def test_threads_that_wait_for_their_own_requests_all_get_them() -> None:
    results, found = ResultQueue(), {}
    waiting = [
        threading.Thread(target=lambda name=name: found.update({name: results.get(name, None, lambda: True)}))
        for name in "abc"
    ]
    for thread in waiting:
        thread.start()
    results.deliver(states("c", "b", "a"))
    for thread in waiting:
        thread.join(10)
    assert {name: result.request_id for name, result in found.items()} == {"a": "a", "b": "b", "c": "c"}


def test_a_handler_gets_what_was_there_before() -> None:
    results, seen = ResultQueue(), []

    async def handle() -> None:
        results.deliver(states("a", "b"))
        results.handle("a", lambda result: seen.append(result.request_id))
        await asyncio.sleep(0)

    asyncio.run(handle())
    assert seen == ["a"] and names(results, 2) == ["b", None]
    results.deliver(states("a"))  # another request of that name has no handler
    assert names(results, 1) == ["a"]


def test_a_closed_event_loop_loses_its_own_results_alone() -> None:
    results = ResultQueue()

    async def handle() -> None:
        results.handle("gone", print)

    asyncio.run(handle())
    results.deliver(states("gone", status=RequestStatus.DECODING, streaming=True))
    results.deliver(states("other"))
    assert names(results, 2) == ["other", None]


def test_handlers_get_results_until_the_last_unless_forgotten() -> None:
    results, seen = ResultQueue(), []

    async def handle() -> None:
        for name in ("a", "b"):
            results.handle(name, lambda result: seen.append(result.request_id))
        results.forget({"b"})
        results.deliver(states("a", "b", "a"))
        await asyncio.sleep(0)

    asyncio.run(handle())
    assert seen == ["a"]
    assert names(results, 3) == ["b", "a", None]
