"""Models whose generation is timed, the ways in which they decode, and a text that a model continues in turns."""

import statistics
from collections.abc import Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from timing.parameters import count, in_tiles
from timing.protocol import WrongResultError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.generation import GenerationConfig, StoppingCriteriaList

from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.cache import append_history, cached_taps
from hf_seqmix.models.toeplitz.operator import ToeplitzOperator
from hf_seqmix.training.timing import TokenClock

__all__ = ["FAMILIES", "WAYS", "Contender", "Sizes", "Text", "check", "contender", "logits_error", "ready"]
__all__ += ["text_after"]

FAMILIES = ("tnn", "fd_tnn", "ipa", "poly2", "poly3", "hybrid", "attention", "llama")
WAYS = {
    "": "with the cache that generate() makes",
    "plain": "Toeplitz layers multiply the whole history at every token",
    "distilled": "after distill_decoder()",
    "static": "preallocated cache; generate() compiles the model on a GPU",
    "recompute": "without a cache",
}
VOCABULARY = 512
BOUND = 1e-4
"""Of the difference of float32 logits with a cache and without."""
FEW_ROWS = 4
"""Rows below which products of vectors beat a product with a matrix: on a CPU in a quarter of the time at one row."""
WARM = 8
"""Tokens after a filled cache that do not count: they allocate and compile."""


class Contender(NamedTuple):
    """A family of models and a way of `WAYS` to decode."""

    family: str
    way: str

    def __str__(self) -> str:
        return self.family if not self.way else f"{self.family}:{self.way}"


class Sizes(NamedTuple):
    """Sizes of all models and texts."""

    width: int
    depth: int
    longest: int
    """New tokens of a text."""
    prompt: int
    order: int | None = None
    """Modes of distilled kernels; None for as many as the tolerance asks."""
    tolerance: float = 1e-3

    @property
    def room(self) -> int:
        """Tokens for which a preallocated cache has room."""
        return self.prompt + self.longest + 4 * WARM


def contender(name: str) -> Contender:
    """Return what FAMILY or FAMILY:WAY names.

    Raises:
        ValueError: for another name.
    """
    family, _, way = name.partition(":")
    if family not in FAMILIES or way not in WAYS or name.endswith(":"):
        ways = ", ".join(filter(None, WAYS))
        raise ValueError(f"{name!r} is no model: give one of {', '.join(FAMILIES)}, or FAMILY:WAY with {ways}.")
    return Contender(family, way)


def build(family: str, sizes: Sizes) -> Any:
    """Return a causal language model with random weights, the same in every call."""
    torch.manual_seed(0)
    width = sizes.width
    fields: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": sizes.depth, "vocab_size": VOCABULARY}
    fields |= {
        "max_position_embeddings": sizes.room,
        "bos_token_id": None,
        "tie_word_embeddings": False,
    }  # tied ones repeat a token
    model_type = family
    if family == "llama":
        # The feed-forward width that makes a layer as large as one of TNN.
        layer = count(build("tnn", sizes._replace(depth=2))) - count(build("tnn", sizes._replace(depth=1)))
        fields["intermediate_size"] = in_tiles((layer - 4 * width**2) / (3 * width), width)
        fields |= {"num_attention_heads": width // 64, "num_key_value_heads": width // 64}
    elif family.startswith("poly"):
        model_type, fields["degree"] = "poly_transformer", int(family[-1])
    elif family in ("hybrid", "attention"):
        model_type = "seqmix_hybrid"
        types = ["attention" if family == "attention" or place % 4 == 3 else "tnn" for place in range(sizes.depth)]
        fields |= {"mixer_types": types, "mixer_configs": {"attention": {"num_heads": width // 64}}}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields)).eval()
    model.generation_config.eos_token_id = None  # a Llama has one by default, and would write fewer tokens
    return model


def ready(of: Contender, sizes: Sizes) -> Any:
    """Return a model that decodes in a way.

    Raises:
        ValueError: for a way that the model does not have.
    """
    model = build(of.family, sizes)
    if of.way == "distilled":
        if not hasattr(model, "distill_decoder"):
            raise ValueError(f"{of}: {type(model).__name__} has no method distill_decoder: leave it out.")
        model.distill_decoder(order=sizes.order, tolerance=sizes.tolerance)
    elif of.way == "plain":
        plain_history(model)
    return model


def plain_history(model: Any) -> None:
    """Let each Toeplitz layer multiply its whole history by its taps at every token: the best plain product, O(n).

    The tokens of a channel lie side by side, and taps are flipped when they are made, once in a doubling of the
    length.
    """
    operators: list[Any] = [module for module in model.modules() if isinstance(module, ToeplitzOperator)]
    if not operators:
        raise ValueError(f"{type(model).__name__} has no Toeplitz layer, whose history could be multiplied.")
    for operator in operators:
        operator.forward = MethodType(_plain_forward, operator)


def _plain_forward(self: Any, values: Tensor, layout: Any, past_key_values: Any = None) -> Tensor:
    if past_key_values is None:
        return ToeplitzOperator.forward(self, values, layout)
    history, _ = append_history(past_key_values, self.layer_idx, values, layout)  # (batch, length, channels)
    if values.shape[1] > 1:  # a prompt, which begins the history
        return ToeplitzOperator.forward(self, values, layout)
    length = history.shape[1]

    def build(count: int) -> Tensor:
        return self.kernel(count, values.device).flip(-1).to(values.dtype)

    taps = cached_taps(past_key_values, self.layer_idx, build, length)
    taps = taps[:, taps.shape[1] - length :]  # (channels, length)
    columns = history.permute(2, 0, 1)  # (channels, batch, length)
    if len(history) < FEW_ROWS:
        product = torch.linalg.vecdot(columns, taps.unsqueeze(1))
    else:
        product = torch.bmm(columns, taps.unsqueeze(2)).squeeze(2)
    return product.t().unsqueeze(1)


class Text:
    """A text that a model continues greedily by `generate()`, in turns; the cache lives on from turn to turn.

    Args:
        model: that writes.
        ids: (batch, length), the prompt.
        cache: of all but the last token; None only without a cache.
        compiles: whether `generate()` may compile.

    Attributes:
        model: that writes.
        ids: (batch, length), the text so far.
        cache: as above.
        new: tokens after the prompt.
    """

    def __init__(self, model: Any, ids: Tensor, cache: Any, compiles: bool = True) -> None:
        self.model, self.ids, self.cache, self.new = model, ids, cache, 0
        self._config = GenerationConfig(do_sample=False, pad_token_id=0, use_cache=cache is not None)
        self._config.return_dict_in_generate, self._config.disable_compile = True, not compiles

    def turn(self, tokens: int, logits: bool = False) -> tuple[list[float], Tensor]:
        """Continue the text.

        Args:
            tokens: to write.
            logits: whether the logits are kept.

        Returns:
            The seconds of each token, and the logits (batch, tokens, vocabulary), or an empty tensor. The first token
            of a later turn, which pays for another call of `generate()`, counts as the median of the others.
        """
        self._config.max_new_tokens, self._config.output_logits = tokens, logits
        # A mask, or tokens that a model has written would be taken for pads.
        given = {"attention_mask": torch.ones_like(self.ids)}
        given |= {} if self.cache is None else {CACHE_NAME: self.cache}
        clock = TokenClock(self.ids.device)
        found = self.model.generate(
            self.ids, generation_config=self._config, stopping_criteria=StoppingCriteriaList([clock]), **given
        )
        self.ids, seconds = found.sequences, clock.seconds
        if self.new and tokens > 1:
            seconds[0] = statistics.median(seconds[1:])
        self.new += tokens
        return seconds, torch.stack(found.logits, dim=1) if logits else torch.empty(0)


def empty_cache(model: Any, way: str, room: int) -> Any:
    """Return the cache that `generate()` makes, a preallocated cache for the way "static", or None for "recompute"."""
    if way == "recompute":
        return None
    return (
        StaticCache(config=model.config, max_cache_len=room) if way == "static" else DynamicCache(config=model.config)
    )


@torch.no_grad()
def text_after(model: Any, way: str, batch: int, start: int, sizes: Sizes, compiles: bool = True) -> Text:
    """Return a text of equal rows, as if a model had continued a prompt by `start` tokens.

    All tokens but the last `WARM` are drawn, and fill the cache in one call.
    """
    warm = 0 if way == "recompute" else min(start, WARM)
    length = sizes.prompt + start - warm
    ids = torch.randint(3, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1)).to(model.device)
    cache = empty_cache(model, way, sizes.room)
    if cache is not None and start > warm:
        rows = batch if way == "static" else 1  # a preallocated cache cannot repeat its rows
        model(ids[:, :-1].expand(rows, -1), use_cache=True, logits_to_keep=1, **{CACHE_NAME: cache})
        if rows != batch:
            cache.batch_repeat_interleave(batch)
    text = Text(model, ids.repeat(batch, 1), cache, compiles)
    if warm:
        text.turn(warm)
    text.new = start
    return text


def check(of: Contender, model: Any, tokens: int, marks: Sequence[int], sizes: Sizes) -> None:
    """Compare a text with calls without a cache, in float64, and logits in float32; leave the model in float32.

    A text whose every token is the most likely one of a call without a cache is the text without a cache.

    Args:
        of: names the model.
        model: that writes.
        tokens: of the texts, two rows written in two turns.
        marks: lengths of texts after which logits are compared.
        sizes: of models and texts.

    Raises:
        WrongResultError: if they differ. A distilled model may differ.
    """
    if of.way in ("recompute", "distilled"):
        return
    ids = torch.randint(3, VOCABULARY, (2, sizes.prompt), generator=torch.Generator().manual_seed(2)).to(model.device)
    text = Text(model.double(), ids, empty_cache(model, of.way, sizes.room), compiles=False)
    kept = [text.turn(part, logits=True)[1] for part in (tokens - tokens // 2, tokens // 2) if part]
    with torch.no_grad():
        exact = model(text.ids[:, :-1], use_cache=False, logits_to_keep=tokens).logits
    same = torch.equal(exact.argmax(dim=-1), text.ids[:, sizes.prompt :])
    # generate() gives logits in float32.
    if not same or not (torch.cat(kept, dim=1) - exact).abs().max() <= 0.1 * BOUND:
        raise WrongResultError(f"{of}: {tokens} tokens with a cache differ from those without; nothing was timed")
    model.float()
    for mark in marks:
        text = text_after(model, of.way, 1, mark, sizes, compiles=False)
        _, logits = text.turn(WARM, logits=True)
        logits_error(of, text, logits)


@torch.no_grad()
def logits_error(of: Contender, text: Text, logits: Tensor) -> float:
    """Return the largest difference of the float32 logits of a turn from those without a cache, in the first row.

    Raises:
        WrongResultError: if that is more than `BOUND`, but for a distilled model.
    """
    exact = text.model(text.ids[:1, :-1], use_cache=False, logits_to_keep=logits.shape[1]).logits
    error = float((exact.double() - logits[:1].double()).abs().max())
    if of.way != "distilled" and not error <= BOUND:
        raise WrongResultError(
            f"{of}: logits after {text.new} tokens differ by {error:.2g} (bound {BOUND}); no figure is given"
        )
    return error
