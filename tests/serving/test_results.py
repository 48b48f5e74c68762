"""Results that several callers read from one queue."""

import asyncio
from typing import Any

from transformers.generation.continuous_batching import RequestState, RequestStatus

from hf_seqmix.serving.results import ResultQueue


def states(*names: str, status: RequestStatus = RequestStatus.FINISHED, **fields: Any) -> list[RequestState]:
    made = [RequestState(request_id=name, initial_tokens=[1], **fields) for name in names]
    for state in made:
        state.status = status
    return made


def names(results: ResultQueue, count: int) -> list[Any]:
    return [getattr(results.get(None, 0.01, wait=True), "request_id", None) for _ in range(count)]


def test_the_results_of_one_request_leave_the_others_in_their_order() -> None:
    results = ResultQueue()
    results.deliver(states("a", "b", "c"))
    taken = [results.get("c", 0.01, wait=True) for _ in range(3)]
    assert [getattr(result, "request_id", None) for result in taken] == [None, None, "c"]
    assert results.may_have("b") and not results.may_have("c")
    assert names(results, 3) == ["a", "b", None]


def test_a_request_that_goes_on_has_results_where_it_streams() -> None:
    results = ResultQueue()
    results.deliver(states("quiet", status=RequestStatus.DECODING))
    results.deliver(states("streams", status=RequestStatus.DECODING, streaming=True))
    assert names(results, 2) == ["streams", None]


def test_an_empty_queue_that_nothing_fills_is_not_waited_for() -> None:
    assert ResultQueue().get(None, None, wait=False) is None


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
