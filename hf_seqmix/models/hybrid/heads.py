"""Which widths of heads softmax attention takes."""

from ..configuration import check_integer

__all__ = ["check_heads"]


def check_heads(hidden_size: int, num_heads: int, head_dim: int | None, is_rotary: bool) -> int:
    """Return the channels of a head: `head_dim`, or hidden_size / num_heads where it is None.

    Raises:
        TypeError: for numbers that are no integers.
        ValueError: for numbers below 1, if the heads do not divide the channels, or rotary positions have an odd
            number of channels.
    """
    check_integer("num_heads", num_heads, low=1)
    check_integer("head_dim", head_dim, low=1)
    if head_dim is None:
        if hidden_size % num_heads:
            raise ValueError(
                f"num_heads is {num_heads}, which does not divide hidden_size {hidden_size}: choose a number that "
                "does, or give head_dim."
            )
        head_dim = hidden_size // num_heads
    if is_rotary and head_dim % 2:
        raise ValueError(
            f"a head has {head_dim} channels, but rotary positions turn pairs of channels: choose num_heads or "
            "head_dim so that a head has an even number, or set rope_theta to None."
        )
    return head_dim
