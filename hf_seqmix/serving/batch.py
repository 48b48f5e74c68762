"""The requests that are decoded together, a row of one cache each."""

import copy
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.generation.continuous_batching import RequestState, RequestStatus

from .._compat import attends
from ..cache import join_rows, keep_rows

__all__ = ["CHILD", "RequestBatch", "fail", "fields_of_a_search", "names_of_children"]

CHILD = "__child#"
"""Before the number of a further sequence of a request (`num_return_sequences`), in its name."""

_OF_A_SEARCH: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1} | dict.fromkeys(
    (
        "assistant_early_exit",
        "cache_implementation",
        "dola_layers",
        "max_length",
        "max_time",
        "penalty_alpha",
        "prompt_lookup_num_tokens",
        "stop_strings",
        "token_healing",
    )
)
"""Fields of a generation configuration that say how `generate` runs, which a request of a batch cannot have -> the
value that says nothing."""


def names_of_children(state: RequestState) -> list[str]:
    """Return the names of the further sequences of a request."""
    return [f"{state.request_id}{CHILD}{number}" for number in range(state.num_children)]


def fields_of_a_search(fields: Mapping[str, Any]) -> list[str]:
    """Return those of a generation configuration's fields that a request of a batch cannot have, as "name=value"."""
    given = {name: fields.get(name) for name in _OF_A_SEARCH}
    return [f"{n}={v!r}" for n, v in given.items() if v not in (None, _OF_A_SEARCH[n]) and v is not False]


_OF_THE_MANAGER = ("max_length", "min_length", "num_return_sequences")
"""Fields whose defaults a request does not take."""


class _Row(NamedTuple):
    """A request, and how its next token is chosen."""

    state: RequestState
    processors: Any
    """The library's, for this request alone."""
    generator: torch.Generator | None
    """What a request that samples draws from; None for one that takes the likeliest token."""

    @property
    def held(self) -> int:
        """Tokens in the cache: the prompt, and all generated ones but the last."""
        return len(self.state.initial_tokens) + len(self.state.generated_tokens) - 1


class RequestBatch:
    """Rows of one growing cache that join and leave between any two steps, each at its own position.

    A prompt is read alone, as by `generate`, and its cache becomes a row; rows of fewer tokens begin with pads. All
    rows take each further step together. Each request has the library's logits processors, made for its own prompt
    and called with its own tokens, and, if it samples, a generator of its own: what a request gets does not depend on
    its neighbors, but for the rounding of products over several rows.

    Args:
        model: causal language model of the package.
        generation_config: how tokens are chosen, unless a request says otherwise.
        seed: of the generators, together with the name of a request; drawn by default.
        return_logprobs: whether requests record the logarithm of the probability of each token.
    """

    def __init__(
        self, model: Any, generation_config: GenerationConfig, seed: int | None = None, return_logprobs: bool = False
    ) -> None:
        self.model = model
        self.generation_config = generation_config
        self.seed = int(torch.randint(2**32, ())) if seed is None else seed
        self.return_logprobs = return_logprobs
        self.attends = any(map(attends, model.config.layer_types))
        self.rows: list[_Row] = []
        self.cache: Any = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def states(self) -> list[RequestState]:
        """The requests, in the order of their rows."""
        return [row.state for row in self.rows]

    def join(self, states: Sequence[RequestState]) -> list[RequestState]:
        """Read the prompts of new requests, and choose their first tokens.

        A request that cannot be read fails alone. A request with `num_children` becomes as many rows more, named as
        the library names them.

        Returns:
            The requests, children among them, finished and failed ones too.
        """
        caches = [] if self.cache is None else [self.cache]
        touched = []
        for state in states:
            state.status = RequestStatus.PREFILLING
            family = [state, *(state.fork(name) for name in names_of_children(state))]
            touched += family
            try:
                rows = [self._make_row(each) for each in family]
                cache = DynamicCache(config=self.model.config)
                prompt = torch.tensor([state.initial_tokens], device=self.model.device)
                logits = self.model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                cache.batch_repeat_interleave(len(rows))
                self._choose(rows, logits.repeat(len(rows), 1, 1))
            except Exception as error:
                for each in family:
                    fail(each, error)
                continue
            self.rows += rows
            caches.append(cache)
        self.cache = join_rows(caches) if caches else None
        self._drop_finished()
        return touched

    def step(self) -> list[RequestState]:
        """Give each request one more token, and return all requests of the step; finished and failed ones leave."""
        device = self.model.device
        held = torch.tensor([row.held for row in self.rows], device=device)
        tokens = torch.tensor([row.state.generated_tokens[-1:] for row in self.rows], device=device)
        mask = None
        if self.attends:
            longest = self.cache.get_seq_length()
            mask = (torch.arange(longest + 1, device=device) >= longest - held.unsqueeze(1)).long()
        logits = self.model(
            tokens,
            attention_mask=mask,
            # Given, not counted from a mask: layers without attention need no mask, whose size grows.
            position_ids=held.unsqueeze(1),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        self._choose(self.rows, logits)
        touched = self.states
        self._drop_finished()
        return touched

    def leave(self, request_ids: set[str]) -> None:
        """Drop requests, whether they are finished or not."""
        self._keep([i for i, row in enumerate(self.rows) if row.state.request_id not in request_ids])

    def _make_row(self, state: RequestState) -> _Row:
        prompt, device = state.initial_tokens, self.model.device
        if not prompt:
            raise ValueError("the prompt has no tokens: give at least one.")
        limit = self.model.config.position_limit
        if limit is not None and (state.max_new_tokens is None or len(prompt) + state.max_new_tokens - 1 > limit):
            raise ValueError(
                f"the prompt has {len(prompt)} tokens and max_new_tokens is {state.max_new_tokens}, but the model has "
                f"learned positions for {limit} tokens (max_position_embeddings): shorten either."
            )
        config = self.generation_config
        if state.logit_processor_kwargs:
            asked = fields_of_a_search(state.logit_processor_kwargs)
            if asked:
                raise ValueError(
                    f"a request cannot have {', '.join(asked)}: requests take a token at a time until max_new_tokens "
                    "or eos_token_id ends them. Set how each is chosen (temperature, top_p, repetition_penalty, ...), "
                    "or call generate()."
                )
            config = copy.deepcopy(config)
            config.num_return_sequences = None  # of the manager, and refused beside some other fields
            unknown = config.update(**state.logit_processor_kwargs)
            if unknown:
                raise ValueError(f"unknown logit_processor_kwargs {sorted(unknown)}: give fields of GenerationConfig.")
        if state.max_new_tokens is not None and state.max_new_tokens < 1:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, which leaves {state.max_new_tokens} to generate: give a "
                "shorter prompt, or a larger max_new_tokens or max_length."
            )
        processors = self.model._get_logits_processor(
            self._as_generate_fills(config, state),
            input_ids_seq_length=len(prompt),
            encoder_input_ids=torch.tensor([prompt], device=device),
            device=device,
        )
        generator = None
        if config.do_sample:
            generator = torch.Generator(device)
            # Generators on CPUs take 32 bits of a seed. As a start of the sum, seed 0 of "1" would be seed 1 of "0".
            generator.manual_seed(zlib.crc32(f"{self.seed} {state.request_id}".encode()))
        return _Row(state, processors, generator)

    def _as_generate_fills(self, config: GenerationConfig, state: RequestState) -> GenerationConfig:
        """Return a copy with what `generate` fills in before it makes processors: defaults, lengths, special tokens.

        A default is that tokens are drawn from the 50 likeliest (`top_k`).
        """
        config = copy.copy(config)
        for name, default in config._get_default_generation_params().items():
            if name not in _OF_THE_MANAGER and getattr(config, name, None) is None:
                setattr(config, name, default)
        config.eos_token_id = sorted(state._eos_token_ids) or None  # negative ones stand for none
        prompt = len(state.initial_tokens)
        if state.max_new_tokens is not None:
            config.max_length = prompt + state.max_new_tokens
        if config.min_new_tokens is not None:
            config.min_length = prompt + config.min_new_tokens
        self.model._prepare_special_tokens(config, True, device=self.model.device)
        return config

    def _choose(self, rows: Sequence[_Row], logits: Tensor) -> None:
        """Choose the next token of each row by its last logits, (rows, positions, vocabulary), as `generate` does.

        A row whose logits processors or whose draw fail gets no token, and its request fails alone.
        """
        scores = logits[:, -1].to(copy=True, dtype=torch.float32)
        errors: dict[int, Exception] = {}
        for i, row in enumerate(rows):
            if row.processors:
                ids = torch.tensor([row.state.initial_tokens + row.state.generated_tokens], device=scores.device)
                try:
                    scores[i] = row.processors(ids, scores[i : i + 1])[0]
                except Exception as error:
                    errors[i] = error
        tokens = scores.argmax(dim=-1)
        drawn = [i for i, row in enumerate(rows) if row.generator is not None]
        # Looked at before a draw, and for all rows at once: on a GPU a draw from no probabilities ends the process.
        highest = scores.amax(dim=-1).tolist() if drawn else []
        for i in drawn:
            if i in errors:
                continue
            try:
                _check_drawable(highest[i])
                tokens[i] = torch.multinomial(scores[i].softmax(dim=-1), 1, generator=rows[i].generator)[0]
            except Exception as error:
                errors[i] = error
        logprobs: list[float] | list[None] = [None] * len(rows)
        if self.return_logprobs:
            logprobs = scores.log_softmax(dim=-1).gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
        for i, (row, token, logprob) in enumerate(zip(rows, tokens.tolist(), logprobs, strict=True)):
            if i in errors:
                fail(row.state, errors[i])
                continue
            row.state.status = RequestStatus.DECODING
            row.state.update_and_check_completion(token, logprob)

    def _drop_finished(self) -> None:
        self._keep([i for i, row in enumerate(self.rows) if row.state.status == RequestStatus.DECODING])

    def _keep(self, indices: list[int]) -> None:
        if len(indices) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in indices]
        if not self.rows:
            self.cache = None
            return
        unused = self.cache.get_seq_length() - max(row.held for row in self.rows)
        keep_rows(self.cache, torch.tensor(indices, device=self.model.device), unused)


def fail(state: RequestState, error: Exception) -> None:
    """End a request with an error."""
    state.error = str(error) or repr(error)
    state.status = RequestStatus.FAILED


def _check_drawable(highest: float) -> None:
    """Refuse to draw a token of a row without probabilities.

    Args:
        highest: the highest score of the row.

    Raises:
        ValueError: if all tokens are excluded, or a score is NaN or infinite.
    """
    if highest == -math.inf:
        raise ValueError(
            "no token is left to draw: the logits processors exclude the whole vocabulary. Loosen the fields that "
            "exclude tokens (no_repeat_ngram_size, suppress_tokens, bad_words_ids, ...), or lower max_new_tokens."
        )
    if not math.isfinite(highest):
        raise ValueError(
            f"no token can be drawn: the highest score is {highest}, and has to be finite. Check the weights and the "
            "precision of the model, or set remove_invalid_values=True."
        )
