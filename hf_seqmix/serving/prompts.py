"""What a request may be: the tokens of a prompt, where the new tokens end, and a name."""

from operator import index
from typing import Any

from torch import Tensor

__all__ = ["check_name", "ends_of", "number_of_tokens", "tokens_of"]


def tokens_of(prompt: Any) -> list[int]:
    """Return the tokens of a prompt, as the tokenizer gives one.

    Args:
        prompt: a sequence of integers, or a tensor of integers, (length,) or (1, length).

    Raises:
        TypeError: the prompt is text, or holds numbers that are no integers.
        ValueError: a tensor holds several prompts.
    """
    if isinstance(prompt, (str, bytes)):
        raise TypeError(f"the prompt is text, {prompt[:40]!r}: give its tokens, tokenizer(text).input_ids.")
    if isinstance(prompt, Tensor):
        if prompt.ndim not in (1, 2) or (prompt.ndim == 2 and len(prompt) != 1):
            raise ValueError(
                f"the prompt has shape {tuple(prompt.shape)}; a request is one prompt, (length,) or (1, length): give "
                "each row as a request of its own, without pads."
            )
        prompt = prompt.flatten().tolist()
    return [_integer(token, "the prompt holds", "each of its tokens must be an integer") for token in prompt]


def ends_of(eos_token_id: Any) -> list[int] | None:
    """Return the tokens that end a request, of which the library takes Python's integers alone.

    Args:
        eos_token_id: an integer, several, or a tensor of integers; None for none.

    Raises:
        TypeError: a token is no integer.
    """
    if eos_token_id is None:
        return None
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.flatten().tolist()
    several = eos_token_id if isinstance(eos_token_id, (list, tuple, set)) else [eos_token_id]
    return [
        _integer(token, "eos_token_id holds", "each token that ends a request must be an integer") for token in several
    ]


def number_of_tokens(max_new_tokens: Any) -> int | None:
    """Return how many tokens a request may have; None for no limit.

    Raises:
        TypeError: the number is no integer.
    """
    if max_new_tokens is None:
        return None
    return _integer(max_new_tokens, "max_new_tokens is", "it must be an integer")


def _integer(value: Any, what: str, wanted: str) -> int:
    try:
        return index(value)
    except TypeError as error:
        raise TypeError(f"{what} {value!r:.40}, a {type(value).__name__}; {wanted}.") from error


def check_name(request_id: Any) -> str:
    """Return the name of a request.

    Raises:
        TypeError: the name is no string.
    """
    if not isinstance(request_id, str):
        raise TypeError(
            f"request_id is {request_id!r}, a {type(request_id).__name__}; it must be a string: {str(request_id)!r}."
        )
    return request_id
