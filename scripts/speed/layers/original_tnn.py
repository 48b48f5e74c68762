"""Layers of TNN and FD-TNN computed the way the original implementations do, as rivals in benchmarks.

Written from the descriptions in Qin et al. 2023 (arXiv 2305.04749) and Moreno, Mei, Walters 2023 (arXiv 2305.09028):
pre-norm gated Toeplitz unit and gated linear unit. What makes their cost: the encoder runs on every lag, apart for lag
zero, positive and negative lags, or on every frequency, in every forward; the kernel is laid out (heads, lags,
channels) with one head; and all transforms are of torch.fft along dimension -2, differentiated by autograd, of length
exactly 2n, for a bidirectional FD-TNN of the power of two from there.
"""

import math

import torch
from torch import Tensor, nn

__all__ = ["OriginalFDTNNLayer", "OriginalTNNLayer"]


class RootMeanSquareNorm(nn.Module):
    """y = x / (rms(x) + eps): epsilon stands outside the root."""

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., channels)."""
        rms = x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x / (rms + self.eps)


class LagEncoder(nn.Module):
    """Linear, then `depth` times norm, ReLU and linear, then norm, ReLU and linear: (lags, 1) to (lags, channels)."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(1, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out_proj = nn.Linear(width, channels)
        self.norm = RootMeanSquareNorm()

    def forward(self, lags: Tensor) -> Tensor:
        """Encode (lags, 1)."""
        z = self.in_proj(lags)
        for layer in self.layers:
            z = layer(torch.relu(self.norm(z)))
        return self.out_proj(torch.relu(self.norm(z)))


class ToeplitzProduct(nn.Module):
    """y[i] = sum_j decay^|i - j| encoder(i - j) x[j] along dimension -2 of (batch, heads, length, channels)."""

    def __init__(self, channels: int, width: int, depth: int, decay: float, causal: bool) -> None:
        super().__init__()
        self.encoder = LagEncoder(channels, width, depth)
        self.decay = decay
        self.causal = causal

    def kernel(self, length: int, device: torch.device) -> Tensor:
        """Return lags 0 to length - 1, a free place that holds lag 0 again, and lags -(length - 1) to -1 if two-sided.

        (1, length + 1 or 2 length, channels).
        """
        zero = self.encoder(torch.zeros(1, 1, device=device))
        lags = torch.arange(1, length, device=device, dtype=torch.float32).unsqueeze(-1)
        decay = torch.full((1, self.encoder.out_proj.out_features), self.decay, device=device) ** lags
        parts = [zero, self.encoder(lags) * decay, zero]
        if not self.causal:
            parts.append(self.encoder(-lags.flip(0)) * decay.flip(0))
        return torch.cat(parts).unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        """Mix (batch, heads, length, channels)."""
        length = x.shape[-2]
        kernel = self.kernel(length, x.device)
        spectrum = torch.fft.rfft(x.to(_whole(x)), n=2 * length, dim=-2)
        kernel_spectrum = torch.fft.rfft(kernel.to(_whole(kernel)), n=2 * length, dim=-2)
        y = torch.fft.irfft(spectrum * kernel_spectrum.unsqueeze(0), n=2 * length, dim=-2)
        return y[:, :, :length].to(x.dtype)


class FrequencyProduct(nn.Module):
    """y = irfft(K rfft(x)) along dimension -2 of (batch, heads, length, channels), K the encoder of frequencies."""

    def __init__(self, channels: int, width: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.encoder = LagEncoder(channels if causal else 2 * channels, width, depth)
        self.causal = causal

    def response(self, size: int) -> Tensor:
        """Return K at omega = 0 to pi, (1, size / 2 + 1, channels).

        The encoder gives the real part; the imaginary one is that of a causal kernel, by two transforms, or the
        second half of the encoder's outputs but for the first and the last frequency.
        """
        weight = self.encoder.in_proj.weight
        frequencies = torch.linspace(0, math.pi, size // 2 + 1, device=weight.device, dtype=weight.dtype)
        encoded = self.encoder(frequencies.unsqueeze(-1)).unsqueeze(0)
        if self.causal:
            even = torch.fft.irfft(encoded.to(_whole(encoded)), n=size, dim=-2)
            taps = torch.cat([even[:, :1], 2 * even[:, 1 : size // 2], even[:, size // 2 : size // 2 + 1]], dim=-2)
            return torch.fft.rfft(taps, n=size, dim=-2)
        real, imaginary = encoded.to(_whole(encoded)).chunk(2, dim=-1)
        return torch.complex(real, nn.functional.pad(imaginary[:, 1:-1], (0, 0, 1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Mix (batch, heads, length, channels)."""
        length = x.shape[-2]
        size = 2 * length if self.causal else 1 << (2 * length - 1).bit_length()
        spectrum = torch.fft.rfft(x.to(_whole(x)), n=size, dim=-2)
        y = torch.fft.irfft(self.response(size).unsqueeze(0) * spectrum, n=size, dim=-2)
        return y[:, :, :length].to(x.dtype)


def _whole(x: Tensor) -> torch.dtype:
    """Return what transforms take: half precision has none everywhere."""
    return torch.promote_types(x.dtype, torch.float32)


class OriginalTNNLayer(nn.Module):
    """x <- x + GTU(N(x)); x <- x + GLU(N(x)), SiLU in both.

    Args:
        hidden_size: channels in and out, and of the gated linear unit.
        mixer_size: channels that are mixed along the sequence.
        rpe_hidden_size, rpe_num_layers: width and depth of the encoder of lags.
        decay: of the kernel.
        causal: whether a token sees the past and itself only.
    """

    def __init__(
        self,
        hidden_size: int,
        mixer_size: int,
        rpe_hidden_size: int,
        rpe_num_layers: int,
        decay: float = 0.99,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.norm = RootMeanSquareNorm()
        self.u_proj = nn.Linear(hidden_size, mixer_size)
        self.v_proj = nn.Linear(hidden_size, mixer_size)
        self.o_proj = nn.Linear(mixer_size, hidden_size)
        self.product: nn.Module = ToeplitzProduct(mixer_size, rpe_hidden_size, rpe_num_layers, decay, causal)
        self.gate_proj = nn.Linear(hidden_size, hidden_size)
        self.up_proj = nn.Linear(hidden_size, hidden_size)
        self.down_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, hidden_size) to the same shape."""
        normed = self.norm(x)
        gate = nn.functional.silu(self.u_proj(normed))
        values = nn.functional.silu(self.v_proj(normed))
        mixed = self.product(values.unsqueeze(1)).squeeze(1)  # one head
        x = x + self.o_proj(gate * mixed)
        normed = self.norm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class OriginalFDTNNLayer(OriginalTNNLayer):
    """The same with the product of FD-TNN, whose kernels have no decay."""

    def __init__(
        self, hidden_size: int, mixer_size: int, rpe_hidden_size: int, rpe_num_layers: int, causal: bool = True
    ) -> None:
        super().__init__(hidden_size, mixer_size, rpe_hidden_size, rpe_num_layers, causal=causal)
        self.product = FrequencyProduct(mixer_size, rpe_hidden_size, rpe_num_layers, causal)
