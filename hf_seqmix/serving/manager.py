"""The library's request interface over a `RequestBatch`: requests come in from any thread, results go out."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import RequestState, RequestStatus
from transformers.utils import logging

from .batch import CHILD, RequestBatch, fail, fields_of_a_search, names_of_children
from .prompts import check_name, ends_of, number_of_tokens, tokens_of
from .results import ResultQueue

__all__ = ["RowBatchingManager"]

logger = logging.get_logger(__name__)

_MOST_ROWS = 1024
_MOST_TOKENS = 8192


class RowBatchingManager:
    """Generate for requests of mixed lengths together, in a thread of its own.

    Stands where the library has its `ContinuousBatchingManager`, whose paged cache refuses layers that do not attend,
    and has its methods: `init_continuous_batching`, `continuous_batching_context_manager` and `generate_batch` of a
    model lead here. Results are the library's `GenerationOutput`: one when a request has finished or failed, and with
    `streaming` one for each token. A canceled request has no result.

    Args:
        model: causal language model of the package.
        generation_config: how tokens are chosen; `max_new_tokens`, `eos_token_id`, `num_return_sequences`.
        continuous_batching_config: `max_requests_per_batch` (1024 by default), `max_batch_tokens` (tokens of new
            prompts read between two steps, at least one prompt; 8192 by default), `max_queue_size`, `seed` and
            `return_logprobs` count. The other fields are about a paged cache.
    """

    warmed_up = True
    """Nothing is compiled or captured before the first request."""

    def __init__(
        self,
        model: Any,
        generation_config: GenerationConfig,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
    ) -> None:
        config = ContinuousBatchingConfig() if continuous_batching_config is None else continuous_batching_config
        self.model = model.eval()
        self.generation_config = generation_config
        self.continuous_batching_config = config
        # The two that the manager itself reads: how many rows a request becomes, and how long the whole may be.
        fields = {**generation_config.to_dict(), "num_return_sequences": None, "max_length": None}
        if without_effect := fields_of_a_search(fields):
            logger.warning(
                f"{', '.join(without_effect)} of the generation configuration has no effect here: requests take a "
                "token at a time until max_new_tokens or eos_token_id ends them. Call generate() for what it asks."
            )
        self.batch = RequestBatch(model, generation_config, config.seed, config.return_logprobs)
        self.fatal_error: Exception | None = None
        self._most_rows = config.max_requests_per_batch or _MOST_ROWS
        self._most_tokens = config.max_batch_tokens or _MOST_TOKENS
        self._incoming: queue.Queue[RequestState] = queue.Queue(config.max_queue_size)
        self._canceled: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._waiting: list[RequestState] = []
        self._results = ResultQueue()
        self._number = 0
        self._lock = threading.Lock()
        self._in_use = threading.Lock()
        self._wake = threading.Event()
        self._stopping = self._hard = False
        self._thread: threading.Thread | None = None

    @property
    def background_thread_status(self) -> "RowBatchingManager":
        """What `transformers serve` asks for `fatal_error`."""
        return self

    def is_running(self) -> bool:
        """Return whether the thread has been started and lives."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        if self.is_running():
            logger.warning("the manager is running already.")
            return
        self._stopping = self._hard = False
        self.fatal_error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        """End the thread once all requests are finished.

        Args:
            block: whether to wait for the end.
            timeout: seconds to wait at most.
            keep_for_next_session: whether the model returns this manager when it is next asked for one.
            hard_stop: whether unfinished requests fail now.
        """
        if keep_for_next_session:
            self.model._cached_continuous_batching_manager = self
        self._stopping, self._hard = True, self._hard or hard_stop
        self._wake.set()
        if block and self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.warning(f"the manager still has requests after {timeout} s; hard_stop=True fails them.")

    def destroy(self) -> None:
        """End the thread, see `stop`."""
        self.stop()

    def warmup(self) -> None:
        """Do nothing: there is nothing to prepare."""

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold the next step back, so that the caller may use or change the model; requests go on afterwards."""
        with self._in_use:
            yield

    def add_request(
        self,
        input_ids: Sequence[int] | Tensor,
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        record_timestamps: bool = False,
        eos_token_id: int | list[int] | None = None,
        **logit_processor_kwargs: Any,
    ) -> str | None:
        """Add a request.

        Args:
            input_ids: tokens of the prompt, a tensor (length,) or (1, length) or other integers. A request whose
                prompt is anything else fails; likewise where the two arguments below are no integers.
            request_id: its name; "req_0", "req_1" ... by default.
            max_new_tokens: as the generation configuration says by default, by this name or as `max_length` less the
                prompt; None there for no limit.
            streaming: whether there is a result for each token.
            record_timestamps: whether results say when each token came.
            eos_token_id: tokens that end the request, as the generation configuration says by default.
            **logit_processor_kwargs: how tokens of this request are chosen otherwise than the generation configuration
                says, such as `temperature`. Fields of searches and of other ends (`num_beams`, `stop_strings`) fail
                the request.

        Returns:
            The name; None, with a warning, where the manager is stopping or has failed.

        Raises:
            TypeError: the name is no string.
            ValueError: a request of that name has not ended.
            queue.Full: if the queue has no room for 10 seconds.
        """
        if self._stopping or self.fatal_error is not None:
            logger.warning(f"the manager has {'stopped' if self._stopping else 'failed'}: a request is dropped.")
            return None
        if request_id is None:
            with self._lock:
                while self._results.may_come(f"req_{self._number}"):  # a name that was given by hand
                    self._number += 1
                request_id = f"req_{self._number}"
                self._number += 1
        check_name(request_id)
        config = self.generation_config
        prompt, limit, ends, wrong = [], None, None, None
        try:
            prompt = tokens_of(input_ids)
            limit = number_of_tokens(config.max_new_tokens if max_new_tokens is None else max_new_tokens)
            ends = ends_of(config.eos_token_id if eos_token_id is None else eos_token_id)
        except (TypeError, ValueError) as error:
            wrong = error
        if limit is None and config.max_length is not None:
            limit = max(0, config.max_length - len(prompt))
        if limit is None and wrong is None:
            missing = "neither max_new_tokens nor eos_token_id" if ends is None else "no max_new_tokens"
            how = "" if ends is None else "when the model comes to eos_token_id, which it may never, or "
            logger.warning_once(f"a request has {missing}: it ends {how}when it is canceled.")
        state = RequestState(
            request_id=request_id,
            initial_tokens=prompt,
            num_children=(config.num_return_sequences or 1) - 1,
            record_timestamps=record_timestamps,
            max_new_tokens=limit,
            eos_token_id=ends,
            streaming=streaming,
            logit_processor_kwargs=logit_processor_kwargs,
        )
        children = names_of_children(state)
        self._results.expect([request_id, *children])
        if wrong is not None:
            family = [state, *(state.fork(name) for name in children)]
            for each in family:
                fail(each, wrong)
            self._results.deliver(family)
            return request_id
        try:
            self._incoming.put(state, timeout=10)
        except queue.Full:
            self._results.forget([request_id, *children])
            raise
        self._wake.set()
        return request_id

    def add_requests(self, inputs: Sequence[Sequence[int] | Tensor], **kwargs: Any) -> list[str | None]:
        """Add a request for each prompt, see `add_request`, and return their names."""
        return [self.add_request(input_ids, **kwargs) for input_ids in inputs]

    def cancel_request(self, request_id: str) -> None:
        """Drop a request, wherever it is; there is no result."""
        self._canceled.put(check_name(request_id))
        self._wake.set()

    def get_result(self, request_id: str | None = None, timeout: float | None = None) -> Any:
        """Return the next result, or None: after `timeout` seconds, or at the end.

        Args:
            request_id: whose result is wanted; that of another one is kept in its order.
            timeout: seconds to wait at most.
        """
        return self._results.get(request_id, timeout, self.is_running)

    def __iter__(self) -> Iterator[Any]:
        """Yield results as they come, until the thread ends and none is left."""
        while self.is_running() or self._results.may_have():
            result = self.get_result(timeout=0.1)
            if result is not None:
                yield result

    def request_id_iter(self, request_id: str) -> Iterator[Any]:
        """Yield the results of one request until its last; at once where it was canceled, has ended or is unknown."""
        while self.is_running() or self._results.may_have(request_id):
            may_come = self._results.may_come(request_id)  # before the look: the last result comes before the end
            result = self.get_result(request_id, timeout=0.1)
            if result is not None:
                yield result
                if result.status >= RequestStatus.FINISHED:
                    return
            elif not may_come:
                return

    def register_result_handler(self, request_id: str, callback: Callable[[Any], None]) -> None:
        """Have the running event loop call `callback` with each result of a request, instead of queueing it."""
        self._results.handle(request_id, callback)

    def _fail_all(self, error: Exception) -> None:
        states = [*self.batch.states, *self._waiting, *_drain(self._incoming)]
        self.batch.leave({state.request_id for state in self.batch.states})
        self._waiting.clear()
        for state in states:
            state.error = str(error)
            state.status = RequestStatus.FAILED
        self._results.deliver(states)

    @torch.no_grad()
    def _run(self) -> None:
        error: Exception = RuntimeError("the manager was stopped before this request was finished.")
        try:
            if self.model.device.index is not None:
                torch.accelerator.set_device_index(self.model.device.index)  # kernels are launched on the current one
            while not self._hard:
                self._wake.clear()
                self._sort_requests()
                if self.batch or self._waiting:
                    with self._in_use:
                        self._advance()
                elif self._stopping:
                    break
                else:
                    self._wake.wait(0.1)
        except Exception as unexpected:
            logger.error(f"the manager failed: {unexpected}", exc_info=True)
            self.fatal_error = error = unexpected
        self._fail_all(error)

    def _sort_requests(self) -> None:
        """Take new requests from their queue, and canceled ones from wherever they are."""
        canceled = set(_drain(self._canceled))  # first: whatever was canceled has been added before
        self._waiting += _drain(self._incoming)
        if canceled:
            self._waiting = [state for state in self._waiting if state.request_id not in canceled]
            # Further sequences of a request (`num_return_sequences`) are its children.
            known = {*(state.request_id for state in self.batch.states), *self._results.expected()}
            canceled |= {name for name in known if name.partition(CHILD)[0] in canceled}
            self.batch.leave(canceled)
            self._results.forget(canceled)

    def _advance(self) -> None:
        """Let waiting requests join as far as there is room, and take a step."""
        joining: list[RequestState] = []
        rows, tokens = len(self.batch), 0
        for state in self._waiting:
            rows, tokens = rows + 1 + state.num_children, tokens + len(state.initial_tokens)
            if (joining or self.batch) and (rows > self._most_rows or (joining and tokens > self._most_tokens)):
                break
            joining.append(state)
        del self._waiting[: len(joining)]
        if joining:
            self._results.deliver(self.batch.join(joining))
        if self.batch:
            self._results.deliver(self.batch.step())


def _drain(source: Any) -> list[Any]:
    """Take everything from a queue."""
    taken = []
    while True:
        try:
            taken.append(source.get_nowait())
        except queue.Empty:
            return taken
