"""Decoding in constant time and memory on request: the tails of a model's kernels, fitted by decaying modes."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ...modules.evaluation import in_evaluation
from ...modules.sharding import weight_of
from ...ops.toeplitz.distillation import ModalFit, fit_modes
from ...ops.toeplitz.online_kernel import lags_that_matter
from .tail import DistilledTail

__all__ = ["DistillableDecoder", "DistillationReport"]

MOST_TAPS = 2**16
"""Longest kernel that is fitted: half a gigabyte of taps for 1,024 channels."""


@dataclass(frozen=True)
class DistillationReport:
    """What the fits of a model's layers cost; prints as a table.

    Attributes:
        fits: of each distilled layer, by its number; see `ModalFit`.
        exact_taps: number of taps before the modes.
        model: that was distilled.
    """

    fits: dict[int, ModalFit]
    exact_taps: int
    model: Any = field(repr=False)

    def rows(self) -> list[dict[str, Any]]:
        """Return what the table says, a row a layer; errors and bounds are relative to the l1 norms of kernels."""
        return [
            {
                "layer": layer,
                "order": fit.order,
                "error": fit.error,
                "tap_error": fit.tap_error,
                "tap_bound": fit.bound,
                "slowest_pole": float(fit.poles.abs().max()),
            }
            for layer, fit in self.fits.items()
        ]

    def __str__(self) -> str:
        lines = ["layer  order  l1 error  tap error  bound on taps  slowest pole"]
        lines += [
            f"{row['layer']:5}  {row['order']:5}  {row['error']:8.1e}  {row['tap_error']:9.1e}  "
            f"{row['tap_bound']:13.1e}  {row['slowest_pole']:12.6f}"
            for row in self.rows()
        ]
        return "\n".join([*lines, f"{self.exact_taps} exact taps; errors relative to the l1 norm of each kernel"])

    @torch.no_grad()
    def measure(self, input_ids: Tensor, **inputs: Any) -> dict[str, float]:
        """Return the largest error of a logit, with each layer distilled alone and with all.

        Args:
            input_ids: (batch, length) token ids.
            **inputs: of the model's forward, such as `attention_mask`.

        Returns:
            "layer 0" and so on, and "all": largest |logit - exact logit|.
        """
        tails = _operators(self.model)
        kept = {layer: operator.tail for layer, operator in tails.items()}

        def logits(layers: set[int]) -> Tensor:
            for layer, operator in tails.items():
                operator.tail = kept[layer] if layer in layers else None
            cache = DynamicCache(config=self.model.config)
            return self.model(input_ids, past_key_values=cache, **inputs).logits.double()

        try:
            with in_evaluation(self.model):
                exact = logits(set())
                ways = {f"layer {layer}": {layer} for layer in self.fits} | {"all": set(kept)}
                return {name: float((logits(on) - exact).abs().max()) for name, on in ways.items()}
        finally:
            for layer, operator in tails.items():
                operator.tail = kept[layer]


class DistillableDecoder:
    """What causal language models with Toeplitz layers add: `distill_decoder` and the way back.

    A forward pass with a cache, and so `generate`, then mixes by exact taps and modes. The exact kernel is used
    without a cache, in training and while gradients are recorded. Modes are saved with the model. They do not follow
    weights that change: a new cache then refuses them by a `ValueError`. Distill again, or undo it before training.
    """

    def distill_decoder(
        self, order: int | None = None, tolerance: float = 1e-3, exact_taps: int = 64
    ) -> DistillationReport:
        """Replace the tail of each kernel, in decoding, by decaying modes: a token then costs the same at any length.

        Kernels are those of TNN and FD-TNN. Layers of other mixers, the polynomial one with "toeplitz" mixing among
        them, decode as before.

        Args:
            order: number of poles of every layer; None for the smallest in each layer that meets the tolerance.
            tolerance: on |k - k'|_1 / |k|_1 of every channel, by which outputs of the layer change at most for inputs
                of at most 1 and a kernel of norm 1. Not used with `order`.
            exact_taps: number of taps that stay as they are. More of them need fewer modes.

        Returns:
            Orders, singular values, bounds and errors of all layers, see `DistillationReport`.

        Raises:
            ValueError: for a model without causal layers of TNN or FD-TNN, a kernel without an end (decay 1 and no
                `kernel_max_lag`), and a tolerance that no order meets; the model then stays as it was.
        """
        model: Any = self
        operators = _operators(model)
        if not operators:
            raise ValueError(
                f"{type(self).__name__} has no causal Toeplitz layer of TNN or FD-TNN: there is no kernel to distill."
            )
        fits, kernels = {}, {}
        for layer, operator in operators.items():
            try:
                taps = kernels[layer] = _all_taps(operator)
                beyond = torch.finfo(torch.float32).eps * taps.abs().sum(dim=1)
                fits[layer] = fit_modes(taps, exact_taps, order, tolerance, beyond)
            except ValueError as error:
                raise ValueError(f"layer {layer}: {error}") from error
        modes = [len(fits[layer].poles) if layer in fits else 0 for layer in range(model.config.num_hidden_layers)]
        for layer, fit in fits.items():
            tail = DistilledTail(len(fit.weights), len(fit.poles), exact_taps)
            tail.set(fit, kernels[layer])
            operators[layer].tail = tail.to(model.model.layers[layer].mixer.o_proj.weight.device)
        _configure(model, modes, exact_taps)
        return DistillationReport(fits, exact_taps, self)

    def undo_distillation(self) -> None:
        """Decode by exact kernels again. Caches that the distilled model filled are of no use any more."""
        model: Any = self
        for operator in _operators(model).values():
            operator.tail = None
        _configure(model, None, None)


def _operators(model: Any) -> dict[int, Any]:
    """Return the causal Toeplitz operators of a model whose modes its configuration can name, by their layer."""
    mixers = set(_distillable_mixers(model))
    operators: dict[int, Any] = {
        layer: getattr(block.mixer, "operator", None)
        for layer, (name, block) in enumerate(zip(model.config.layer_mixers, model.model.layers, strict=False))
        if name in mixers
    }
    # By what they have, not by their class: a hybrid without Toeplitz layers needs no Toeplitz products.
    return {layer: each for layer, each in operators.items() if hasattr(each, "tail") and each.is_causal}


def _distillable_mixers(model: Any) -> dict[str, Any]:
    """Return the configurations, by the names of their mixers, that say how many modes a layer has."""
    configs = {name: model.config.mixer_config(name) for name in set(model.config.layer_mixers)}
    return {name: each for name, each in configs.items() if "decoder_modes" in type(each).__dataclass_fields__}


@torch.no_grad()
def _all_taps(operator: Any) -> Tensor:
    """Return all taps of a kernel that count in float32, computed in float64."""
    kernel: Any = copy.deepcopy(operator.kernel).double()
    at_once = getattr(kernel, "at_once", None)  # see `ToeplitzOperator.decoder_kernel`
    if at_once is not None:
        taps = kernel(at_once)
        return taps[:, : lags_that_matter(taps, resolution=torch.finfo(torch.float32).eps)]
    end = kernel.end(torch.float32, weight_of(kernel.encoder.out_proj).device)
    if end is None or end > MOST_TAPS:
        raise ValueError(
            f"the kernel {'has no end' if end is None else f'ends after {end} taps'}, and at most {MOST_TAPS} taps "
            "can be fitted: choose a smaller decay (with a norm in the encoder of lags), or a kernel_max_lag."
        )
    return kernel(end)


def _configure(model: Any, modes: list[int] | None, exact_taps: int | None) -> None:
    """Say in the configuration which layers have modes."""
    for name, config in _distillable_mixers(model).items():
        if config is model.config:
            config.decoder_modes, config.decoder_taps = modes, exact_taps
            continue
        own = {key: value for key, value in model.config.mixer_configs.get(name, {}).items() if key[:8] != "decoder_"}
        if modes is not None:
            own |= {"decoder_modes": modes, "decoder_taps": exact_taps}
        others = {key: value for key, value in model.config.mixer_configs.items() if key != name}
        model.config.mixer_configs = others | ({name: own} if own else {})
