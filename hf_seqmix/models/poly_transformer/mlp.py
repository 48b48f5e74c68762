"""Fully connected networks whose layers multiply linear maps: polynomials of a chosen degree."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...modules.norms import build_norm
from ...ops.polynomial.stages import signed_power

__all__ = ["PolynomialMLP"]

_NORMS = {"none": "none", "static": "static", "batch": "batch", "rms": "simple_rms"}


class _ProductLayer(nn.Module):
    """x -> sigma(norm(prod_k (W_k x + b_k))), W_k block-diagonal with a block for each head."""

    def __init__(
        self,
        width: int,
        degree: float,
        num_heads: int,
        bias: bool,
        out_projection: bool,
        activation: str,
        norm_type: str,
        eps: float,
    ) -> None:
        super().__init__()
        self.degree = degree
        whole = math.floor(degree)
        self.exponent = float(degree - whole)
        head = width // num_heads
        self.weight = nn.Parameter(torch.empty(whole, num_heads, head, head))
        self.bias = nn.Parameter(torch.empty(whole, num_heads, head)) if bias else None
        if self.exponent:
            rank = max(1, round(self.exponent * head / 2))
            self.power_in = nn.Parameter(torch.empty(num_heads, rank, head))
            self.power_out = nn.Parameter(torch.empty(num_heads, head, rank))
        self.out_weight = nn.Parameter(torch.empty(width, width)) if out_projection else None
        self.num_heads = num_heads
        self.activation = activation
        self.norm = build_norm(_NORMS[norm_type], width, eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.matrices():
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        if self.bias is not None:
            nn.init.normal_(self.bias, std=0.5)

    def matrices(self) -> list[nn.Parameter]:
        power = [self.power_in, self.power_out] if self.exponent else []
        return [self.weight, *power, *([] if self.out_weight is None else [self.out_weight])]

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (self.num_heads, -1))  # (..., heads, width / heads)
        factors = torch.einsum("...hi,khoi->...kho", heads, self.weight)
        product = (factors if self.bias is None else factors + self.bias).prod(dim=-3)
        if self.exponent:
            power = torch.einsum("...hi,hri,hor->...ho", heads, self.power_in, self.power_out)
            product = product * signed_power(power, self.exponent)
        flat = product.flatten(-2)
        y = self.norm(flat.reshape(1, -1, flat.shape[-1]), None).reshape(flat.shape)
        y = torch.tanh(y) if self.activation == "tanh" else y
        return y if self.out_weight is None else nn.functional.linear(y, self.out_weight)


class PolynomialMLP(nn.Module):
    r"""Fully connected layers that multiply d linear maps of their input elementwise.

    A layer is $x \mapsto \sigma(\mathrm{norm}(\prod_{k=1}^{d} W_k x))$ with $W_k$ of `width` x `width`, so it has
    d width^2 parameters. With the activation "identity" and a constant norm ("none", "static", "batch" in evaluation)
    the layers are a polynomial of degree $\prod_l d_l$.

    A fractional degree d multiplies floor(d) full maps and one map of rank round((d - floor(d)) width / 2), through
    the signed power of exponent d - floor(d). The layer still has d width^2 parameters; it is homogeneous of degree d,
    but no polynomial.

    Source: Navon 2021 (unpublished notes, "Attention is optimal building block"), the fully connected networks there.
    Residual connections, fractional degrees and norms other than "batch" are ours.

    Args:
        width: of each layer.
        degrees: d of each layer, at least 2; or one for all of `num_layers`.
        num_layers: with a single degree.
        in_features: numbers of the input, mapped to `width` by an affine map; None for `width` and no map.
        out_features: numbers of the output, an affine map of the last layer's; None for no map.
        num_heads: blocks of each W_k; each then has width^2 / num_heads parameters.
        bias: affine maps W_k x + b_k, with b_k drawn from N(0, 0.25). Layers are then neither homogeneous nor odd or
            even.
        out_projection: a further map W_O after each layer's norm and activation, width^2 parameters more. The next
            layer's maps make W_O superfluous unless there is a residual.
        activation: "identity" or "tanh".
        norm_type: "none", "static" (a scale that `calibrate_static_norms` sets from a batch), "batch" or "rms".
        residual: x + layer(x) in place of layer(x).
        eps: of the norm.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        width: int,
        degrees: float | Sequence[float],
        num_layers: int | None = None,
        *,
        in_features: int | None = None,
        out_features: int | None = None,
        num_heads: int = 1,
        bias: bool = False,
        out_projection: bool = False,
        activation: str = "identity",
        norm_type: str = "none",
        residual: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if isinstance(degrees, (int, float)):
            if num_layers is None or num_layers < 1:
                raise ValueError(f"num_layers is {num_layers}; with a single degree, give at least 1.")
            degrees = [degrees] * num_layers
        elif num_layers not in (None, len(degrees)):
            raise ValueError(f"num_layers is {num_layers}, but degrees names {len(degrees)} layers; leave one out.")
        if not degrees or min(degrees) < 2:
            raise ValueError(
                f"degrees is {list(degrees)}; give a degree of at least 2 for each of at least one layer."
            )
        if width < 1 or num_heads < 1 or width % num_heads:
            raise ValueError(f"num_heads {num_heads} must divide the width {width}.")
        if activation not in ("identity", "tanh"):
            raise ValueError(f"activation is {activation!r}; it must be 'identity' or 'tanh'.")
        if norm_type not in _NORMS:
            raise ValueError(f"norm_type is {norm_type!r}; it must be one of {', '.join(map(repr, _NORMS))}.")
        self.degree = math.prod(degrees)
        """prod_l d_l, the degree of the layers without residual, activation and data-dependent norm."""
        self.residual = residual
        self.in_proj = nn.Identity() if in_features is None else nn.Linear(in_features, width)
        self.layers = nn.ModuleList(
            _ProductLayer(width, degree, num_heads, bias, out_projection, activation, norm_type, eps)
            for degree in degrees
        )
        self.out_proj = nn.Identity() if out_features is None else nn.Linear(width, out_features)

    def num_product_parameters(self) -> int:
        """Count the parameters of the maps W_k and W_O, without biases, norms, input and output maps."""
        layers = [module for module in self.modules() if isinstance(module, _ProductLayer)]
        return sum(matrix.numel() for layer in layers for matrix in layer.matrices())

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features), each `width` where there is no map."""
        x = self.in_proj(x)
        for layer in self.layers:
            x = x + layer(x) if self.residual else layer(x)
        return self.out_proj(x)
