"""The linear recurrent network of the approximation theory, and kernels that the network holds exactly."""

import math

import torch
from torch import Tensor, nn

from ...ops.toeplitz.product import toeplitz_matrix
from .targets import require_at_least

__all__ = ["LinearRNN", "recurrent_complexity"]


class LinearRNN(nn.Module):
    """A linear recurrent network, computed by its impulse response.

    h(t + 1) = W h(t) + U x(t),   h(0) = 0,   y(t) = c^T h(t + 1) = sum_{s <= t} c^T W^s U x(t - s)

    The powers W^s U come from repeated squaring, log2(length) products of matrices, and the outputs are one product
    with the taps. U and c are uniform in +-1/sqrt(m), as in `torch.nn.RNN`, and W in +-recurrent_gain/sqrt(m). W then
    has a spectral radius near recurrent_gain/sqrt(3), up to which c^T W^s U and its gradients decay as radius^s.

    Source: Jiang, Li 2023 (arXiv 2305.18475), section 6, one layer of m = 128. The paper does not tell how W begins.

    Args:
        input_size: d.
        hidden_size: m.
        recurrent_gain: 1, as in `torch.nn.RNN`, or such as sqrt(3) for a radius near 1.

    Raises:
        ValueError: a size is below 1, or the gain is not positive.
    """

    def __init__(self, input_size: int = 1, hidden_size: int = 128, recurrent_gain: float = 1.0) -> None:
        super().__init__()
        require_at_least(input_size=(input_size, 1), hidden_size=(hidden_size, 1))
        if not 0 < recurrent_gain < math.inf:
            raise ValueError(f"recurrent_gain is {recurrent_gain}; give a positive number.")
        bound = 1 / math.sqrt(hidden_size)

        def uniform(*shape: int, gain: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-gain * bound, gain * bound))

        self.recurrent = uniform(hidden_size, hidden_size, gain=recurrent_gain)  # W
        self.input = uniform(hidden_size, input_size)  # U
        self.readout = uniform(hidden_size)  # c

    @classmethod
    def from_taps(cls, taps: Tensor) -> "LinearRNN":
        """Return the network whose impulse response is the given taps, then zero, exactly: a shift register.

        Args:
            taps: (lags,) or (lags, input_size), in the dtype of the network to be.

        Raises:
            ValueError: the taps have another number of dimensions, or there are none.
        """
        if taps.ndim not in (1, 2) or not taps.numel():
            raise ValueError(f"taps have the shape {tuple(taps.shape)}; give (lags,) or (lags, input_size).")
        taps = taps.reshape(len(taps), -1)
        lags, width = taps.shape
        net = cls(width, lags * width).to(taps.dtype)
        identity = torch.eye(lags * width, dtype=taps.dtype)
        with torch.no_grad():
            # Unit (s, j) holds x_j of s tokens ago: rows move down by the width, and the first take the input.
            net.recurrent.copy_(torch.cat([torch.zeros(width, lags * width), identity[:-width]]))
            net.input.copy_(identity[:, :width])
            net.readout.copy_(taps.flatten())
        return net

    def taps(self, length: int) -> Tensor:
        """Return c^T W^s U, (length, input_size), of s = 0, ..., length - 1."""
        return torch.einsum("m,smd->sd", self.readout, self._responses(length))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return y (batch, length) of inputs (batch, length, input_size).

        Raises:
            ValueError: the inputs have another shape.
        """
        self._check(inputs)
        length = inputs.shape[1]
        return torch.einsum("dts,bsd->bt", toeplitz_matrix(self.taps(length).T, length), inputs)

    def states(self, inputs: Tensor) -> Tensor:
        """Return h(t + 1) by the recurrence, (batch, length, hidden_size), of inputs (batch, length, input_size)."""
        self._check(inputs)
        state, states = inputs.new_zeros(len(inputs), len(self.recurrent)), []
        for token in inputs.unbind(dim=1):
            state = state @ self.recurrent.T + token @ self.input.T
            states.append(state)
        return torch.stack(states, dim=1)

    @torch.no_grad()
    def fit_readout(self, inputs: Tensor, targets: Tensor) -> float:
        """Set c to the least squares solution, with W and U as they are, and return the mean square error.

        Args:
            inputs: (batch, length, input_size).
            targets: (batch, length).

        Raises:
            ValueError: the targets do not belong to the inputs.
        """
        if targets.shape != inputs.shape[:2]:
            raise ValueError(
                f"targets have the shape {tuple(targets.shape)} for inputs of shape {tuple(inputs.shape)}; give one"
                " target for each token."
            )
        states, wanted = self.states(inputs).flatten(0, 1).double(), targets.reshape(-1, 1).double()
        # States nearly depend on each other.
        solution = torch.linalg.lstsq(states, wanted, driver="gelsd").solution
        self.readout.copy_(solution[:, 0])
        return (states @ solution - wanted).square().mean().item()

    def _responses(self, length: int) -> Tensor:
        """Return W^s U, (length, hidden_size, input_size)."""
        responses: Tensor = self.input[None]
        power: Tensor = self.recurrent
        while len(responses) < length:
            responses = torch.cat([responses, power @ responses])
            power = power @ power
        return responses[:length]

    def _check(self, inputs: Tensor) -> None:
        if inputs.ndim != 3 or inputs.shape[-1] != self.input.shape[1]:
            raise ValueError(
                f"inputs have the shape {tuple(inputs.shape)}; give (batch, length, {self.input.shape[1]})."
            )


def recurrent_complexity(taps: Tensor, decay_time: float) -> tuple[float, float]:
    """Return the two factors of the measure of complexity of a recurrent network, C_RNN = C1 C2.

    C1 = 1 + inf {b > 0: e^(t / b) |rho(t)| -> 0},   C2 = sup_t e^(t / C1) |rho(t)|

    Behind the last tap, the kernel goes on as e^(-t / decay_time), so that C1 = 1 + decay_time, and the supremum
    is that of the taps.

    Source: Jiang, Li 2023 (arXiv 2305.18475), section 6.

    Args:
        taps: rho(0), rho(1), ..., (lags,), down to where the kernel falls as told.
        decay_time: of the rest, in tokens; 0 if there is none.

    Raises:
        ValueError: there are no taps, or `decay_time` is negative or not finite.
    """
    if taps.ndim != 1 or not taps.numel():
        raise ValueError(f"taps have the shape {tuple(taps.shape)}; give (lags,).")
    if not 0 <= decay_time < math.inf:
        raise ValueError(f"decay_time is {decay_time}; give 0 or a finite number of tokens.")
    decay = 1.0 + (decay_time if taps[-1] else 0.0)
    lags = torch.arange(len(taps), dtype=torch.float64, device=taps.device)
    return decay, (taps.double().abs() * torch.exp(lags / decay)).max().item()
