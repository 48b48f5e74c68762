"""Products that benchmarks time and check against: transforms, the strided original, attention, definitions.

Streams are (batch, channels, length) for Toeplitz products, (batch, length, heads, width) for products of factors, and
(batch, heads, length, width) for attention. Definitions of quadratic cost go block by block over the outputs and keep
nothing, so that float64 and thousands of positions fit into memory.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hf_seqmix import toeplitz_matmul
from hf_seqmix.ops import linear_attention, piecewise_column, piecewise_column_dense
from hf_seqmix.ops import polynomial_product as package_product
from hf_seqmix.ops.common.crossovers import implementation
from hf_seqmix.ops.short_convolution.product import short_conv, short_conv_dense
from hf_seqmix.ops.ski.interpolation import InducingGrid, interpolation_matrix
from hf_seqmix.ops.ski.product import sparse_low_rank_matmul
from hf_seqmix.ops.toeplitz.hilbert import two_sided_taps
from hf_seqmix.ops.toeplitz.product import toeplitz_matrix
from hf_seqmix.ops.toeplitz.response import response_matmul

Product = Callable[..., Tensor]

BLOCK = 512


def rfft_product(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute the causal product of x (batch, channels, length) and kernel (channels, length) by real transforms.

    With a kernel (channels, 2 length) in circular order, lags 0 to length - 1, a free place, and lags -(length - 1) to
    -1, it is the bidirectional product.
    """
    length = x.shape[-1]
    spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length]


def strided_product(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute the same along dimension -2 of x (batch, length, channels) and kernel (length or 2 length, channels)."""
    length = x.shape[-2]
    spectrum = torch.fft.rfft(x, n=2 * length, dim=-2) * torch.fft.rfft(kernel, n=2 * length, dim=-2)
    return torch.fft.irfft(spectrum, n=2 * length, dim=-2)[..., :length, :]


def two_sided_product(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute the package's bidirectional product of x and kernel (channels, 2 length - 1)."""
    return toeplitz_matmul(x, kernel, causal=False)


def two_sided_reference(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute the same by plain transforms."""
    circular = torch.roll(nn.functional.pad(kernel, (1, 0)), -x.shape[-1], dims=-1)
    return rfft_product(x, circular)


def response_rfft(x: Tensor, response: Tensor) -> Tensor:
    """Multiply by a frequency response (2, channels, length + 1), real and imaginary part, by plain transforms."""
    length = x.shape[-1]
    imaginary = nn.functional.pad(response[1, :, 1:-1], (1, 1))  # of no effect at 0 and pi
    spectrum = torch.fft.rfft(x, n=2 * length) * torch.complex(response[0], imaginary)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length]


def response_taps(x: Tensor, response: Tensor) -> Tensor:
    """Compute the same by taps."""
    taps = two_sided_taps(torch.complex(response[0], response[1]))
    return toeplitz_matmul(x, taps[:, 1:-1], causal=False)


def response_product(x: Tensor, response: Tensor) -> Tensor:
    """Compute the same by the route that the table of crossovers names."""
    if implementation("response", x, x.shape[-1]) == "taps":
        return response_taps(x, response)
    return response_matmul(x, response)


def short_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the package's causal short convolution of x with taps (channels, m), the newest last."""
    return short_conv(x, weight, weight.shape[1] - 1)


def short_reference(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the same position by position and tap by tap."""
    return short_conv_dense(x, weight, weight.shape[1] - 1)


def depthwise_product(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the same as users of torch write it, in float32 on a CPU, where bfloat16 may never return."""
    taps = weight.shape[1]
    dtype = torch.promote_types(x.dtype, torch.float32) if x.device.type == "cpu" else x.dtype
    padded = nn.functional.pad(x.to(dtype), (taps - 1, 0))
    return nn.functional.conv1d(padded, weight.to(dtype).unsqueeze(1), groups=len(weight)).to(x.dtype)


def ski_product(x: Tensor, taps: Tensor, kernel: Tensor) -> Tensor:
    """Compute SKI's product of x (batch, channels, length), taps (channels, taps), kernel (channels, 2 points - 1)."""
    grid = InducingGrid(x.shape[-1], (kernel.shape[1] + 1) // 2)
    return sparse_low_rank_matmul(x, taps, kernel, grid)


def ski_reference(x: Tensor, taps: Tensor, kernel: Tensor) -> Tensor:
    """Compute the same with dense W and A, and the convolution tap by tap."""
    length, width, points = x.shape[-1], taps.shape[1], (kernel.shape[1] + 1) // 2
    matrix = interpolation_matrix(length, InducingGrid(length, points), x.dtype).to(x.device)
    inducing = toeplitz_matrix(kernel, points, causal=False)
    smooth = torch.einsum("cpq,bcq->bcp", inducing, x @ matrix) @ matrix.mT
    padded = nn.functional.pad(x, (width // 2, width // 2))
    return smooth + sum(padded[..., q : q + length] * taps[:, q, None] for q in range(width))


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the package's linear attention of (batch, length, heads, width), without a denominator."""
    return linear_attention(q, k, v).to(q.dtype)


def polynomial(*factors: Tensor) -> Tensor:
    """Compute the package's product of as many factors."""
    return package_product(factors).y.to(factors[0].dtype)


def column(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Compute IPA's column operation of (batch, centers, length, width), over centers, with a relative bias."""
    return piecewise_column(q, k, v, bias, scale=q.shape[-1] ** -0.5)


def attention(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute torch's fused attention of (batch, heads, length, width)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def eager_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention by its formula."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ v


def chunked_of_fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute linear attention of the package flash-linear-attention, without a denominator."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(q, k, v, scale=1.0, normalize=False)[0]


def cubic_of_fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the product of degree 3 by that package: queries over the number of tokens and the root of the width."""
    count = torch.arange(1, q.shape[1] + 1, device=q.device, dtype=torch.float32)[:, None, None]
    return chunked_of_fla((q / (count * q.shape[-1] ** 0.5)).to(q.dtype), k, v)


def _rows(function: Callable[..., Tensor], length: int) -> Tensor:
    """Put together function(start, stop), rows (..., stop - start, width), keeping nothing of a block for backward."""
    blocks = [
        checkpoint(function, start, min(start + BLOCK, length), use_reentrant=False)
        for start in range(0, length, BLOCK)
    ]
    return torch.cat(blocks, dim=-2)


def attention_reference(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention by its formula, block by block."""

    def rows(start: int, stop: int) -> Tensor:
        scores = q[..., start:stop, :] @ k.mT * q.shape[-1] ** -0.5
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + start)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(dim=-1) @ v

    return _rows(rows, q.shape[-2])


def linear_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute linear attention of (batch, length, heads, width) by its formula, block by block."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))

    def rows(start: int, stop: int) -> Tensor:
        return torch.tril(query[..., start:stop, :] @ key.mT, start) @ value

    return _rows(rows, q.shape[1]).transpose(1, 2)


def polynomial_reference(*factors: Tensor) -> Tensor:
    """Compute products of degree 2, 3 and 4 by their formulas; see `hf_seqmix.ops.polynomial.product`."""
    length, width = factors[0].shape[1], factors[0].shape[-1]
    count = torch.arange(1, length + 1, device=factors[0].device, dtype=factors[0].dtype)[:, None, None]
    if len(factors) == 2:
        return factors[0] * factors[1].cumsum(dim=1) / count
    query = factors[0] if len(factors) == 3 else factors[0] * factors[3].cumsum(dim=1) / count
    return linear_reference(query / (count * width**0.5), factors[1], factors[2])


def column_reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Compute IPA's column operation by its formula, block by block."""

    def rows(start: int, stop: int) -> Tensor:
        keys, values = k[..., :stop, :], v[..., :stop, :]
        return piecewise_column_dense(q[..., start:stop, :], keys, values, bias, scale=q.shape[-1] ** -0.5)

    return _rows(rows, q.shape[-2])


causal_attention, full_attention = partial(attention, True), partial(attention, False)
causal_reference, full_reference = partial(attention_reference, True), partial(attention_reference, False)
