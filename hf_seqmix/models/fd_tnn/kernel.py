"""The kernel of FD-TNN: an encoder of the frequency, and the taps that have its response."""

import math

import torch
from torch import Tensor, nn

from ...modules.sharding import own_part, weight_of
from ...ops.common.crossovers import implementation
from ...ops.common.dispatch import dispatch
from ...ops.toeplitz.hilbert import causal_taps, two_sided_taps
from ...ops.toeplitz.response import response_suits
from ..configuration import check_integer
from ..toeplitz.encoder import RelativePositionEncoder
from .configuration_fd_tnn import FREQUENCY_INPUTS

__all__ = ["FREQUENCY_INPUTS", "FrequencyKernel"]


class FrequencyKernel(nn.Module):
    """Build taps whose frequency response is a network evaluated on a fixed grid omega_q = pi q / M, q = 0..M.

    Causal: Re K(omega) = RPE(omega), and the imaginary part follows by the discrete Hilbert transform. Bidirectional:
    K(omega) = RPE_re(omega) + i RPE_im(omega), real at 0 and pi. No decay is imposed. Source: Moreno, Mei, Walters
    2023 (arXiv 2305.09028), sections 3.3.1 and 3.3.2.

    How fast taps fall with the lag t depends on `frequency_input`:

    * "omega", the paper: the encoder reads omega. Mirrored at 0 and pi, the response has kinks there, and jumps when
      bidirectional. Taps then fall as 1/t^2, or 1/t, with any activation.
    * "cosine", an extension: the encoder reads cos omega, and the imaginary part is multiplied by sin omega. The
      response is then as smooth on the circle as the encoder is.

    Of the paper's theorems on decay, "cosine" makes theorem 3 hold (SiLU: taps fall faster than any power of t).
    Theorem 4 (ReLU: taps are square-summable) holds with either input. Theorem 2 (GELU: taps fall faster than any
    exponential) needs, besides "cosine", an encoder without a norm, `rpe_norm_type="none"`. With a norm the response
    has poles off the circle, and taps fall at one exponential rate.

    Departure: the grid belongs to the configuration, not to the input. M is `max_length`. Shorter inputs use the first
    taps of the same kernel, and taps beyond M are zero. The published kernel changes with the padded length of a
    batch.

    Args:
        encoder: maps (points,) frequencies to (channels, points) when causal, else to (2 channels, points), real parts
            first.
        max_length: M, at least 1.
        frequency_input: "cosine", or "omega" (the paper).
        is_causal: lags 0 to n - 1, or -(n - 1) to n - 1.
        max_lag: taps at greater lags are zero; None for no limit but M.

    Raises:
        TypeError: for a largest lag that is no integer.
        ValueError: for an unknown input, a length below 1, and a negative largest lag.
    """

    def __init__(
        self,
        encoder: RelativePositionEncoder,
        max_length: int,
        frequency_input: str = "cosine",
        is_causal: bool = True,
        max_lag: int | None = None,
    ) -> None:
        super().__init__()
        check_integer("max_lag", max_lag, low=0)
        if frequency_input not in FREQUENCY_INPUTS:
            raise ValueError(f"frequency_input is {frequency_input!r}; it must be 'omega' or 'cosine'.")
        self.encoder = encoder
        self.frequency_input = frequency_input
        self.is_causal = is_causal
        self.max_lag = max_lag
        self.set_context_length(max_length)

    def set_context_length(self, length: int) -> None:
        """Sample the same response on a grid of another M: more taps, each near what it was.

        Args:
            length: M, at least 1.

        Raises:
            ValueError: for a length below 1.
        """
        if length < 1:
            raise ValueError(f"the context length is {length}; it must be at least 1.")
        self.max_length = length

    def response(self, device: torch.device | None = None) -> Tensor:
        """Evaluate the response on the grid.

        Args:
            device: where, by default where the weights are.

        Returns:
            (channels, M + 1), real (the real part) when causal, else complex.
        """
        parts = self._evaluate(device)
        if self.is_causal:
            return parts
        imaginary = parts[1].clone()
        imaginary[:, :: self.max_length] = 0
        return torch.complex(parts[0], imaginary)

    def _evaluate(self, device: torch.device | None) -> Tensor:
        """Return (channels, M + 1) when causal, else (2, channels, M + 1), imaginary parts undefined at 0 and pi."""
        device = weight_of(self.encoder.out_proj).device if device is None else device
        bins = torch.arange(self.max_length + 1, device=device)
        omega = bins.to(self.encoder.dtype) * (math.pi / self.max_length)
        values = self.encoder(omega.cos() if self.frequency_input == "cosine" else omega)
        if self.is_causal:
            return values
        # The encoder puts out all rows, real parts first: a share of the rows would not be the parts of its channels.
        parts = own_part(values.unflatten(0, (2, -1)), weight_of(self.encoder.out_proj), dim=1)
        if self.frequency_input == "cosine":
            parts = parts * torch.stack([torch.ones_like(omega), omega.sin()]).unsqueeze(1)
        return parts

    def response_for(self, length: int, values: Tensor) -> Tensor | None:
        """Return the response where products over `length` positions gain from it, without the taps.

        Args:
            length: number of positions.
            values: what is to be mixed; only whether it is traced and where it lies matter.

        Returns:
            (2, channels, M + 1) as `response_matmul` takes it. None when causal, when lags are cut off, when the grid
            is shorter or much longer than the input, where the table of crossovers says that products with taps are
            faster, and under tracing, where the operator takes taps.
        """
        unsuited = self.is_causal or self.max_lag is not None or dispatch(values)[0] != "eager"
        if unsuited or not response_suits(length, self.max_length):
            return None
        if implementation("response", values, length) == "taps":
            return None
        return self._evaluate(values.device)

    def forward(self, length: int, device: torch.device | None = None) -> Tensor:
        """Build the taps for sequences of `length`.

        Args:
            length: number of positions.
            device: where to build them, by default where the weights are.

        Returns:
            (channels, length) when causal, else (channels, 2 length - 1).
        """
        response = self._evaluate(device)
        taps = causal_taps(response) if self.is_causal else two_sided_taps(*response)
        last = self.max_length
        reach = last if self.max_lag is None else min(self.max_lag, last)
        origin = 0 if self.is_causal else last  # where lag 0 stands
        if torch.compiler.is_compiling():
            # Without a comparison of lengths, so that one graph serves those below M and those beyond.
            lags = torch.arange(0 if self.is_causal else 1 - length, length, device=taps.device)
            taps = taps.index_select(1, lags.clamp(-reach, reach) + origin)
            return taps.masked_fill(lags.abs() > reach, 0)
        reach = min(reach, length - 1)
        beyond = length - 1 - reach
        taps = taps[:, origin - (0 if self.is_causal else reach) : origin + reach + 1]
        return nn.functional.pad(taps, (0 if self.is_causal else beyond, beyond)) if beyond else taps

    @property
    def at_once(self) -> int:
        """Number of taps that may not be zero, of a causal kernel: all of them take as long as a few."""
        return 1 + (self.max_length if self.max_lag is None else min(self.max_lag, self.max_length))

    def extra_repr(self) -> str:
        """Return the settings that the printed module shows."""
        return (
            f"max_length={self.max_length}, frequency_input={self.frequency_input!r}, is_causal={self.is_causal}, "
            f"max_lag={self.max_lag}"
        )
