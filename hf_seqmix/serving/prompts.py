"""What a request may be: the tokens of a prompt, and a name."""

from operator import index
from typing import Any

from torch import Tensor

__all__ = ["check_name", "tokens_of"]


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
    tokens = []
    for token in prompt:
        try:
            tokens.append(index(token))
        except TypeError as error:
            raise TypeError(
                f"the prompt holds {token!r:.40}, a {type(token).__name__}; each of its tokens must be an integer."
            ) from error
    return tokens


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
