"""Spectra of what the layers of a model of images do with a batch, as results, and those results read back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from hf_seqmix.analysis.couplings import coupling, queries_and_keys
from hf_seqmix.analysis.couplings.realized import has_weights
from hf_seqmix.analysis.spectra import SpectrumReport, cross_spectrum, fit_decay, spectrum
from hf_seqmix.models.backbone import SeqMixModel
from hf_seqmix.models.mixers import WeighingMixer
from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
from hf_seqmix.training.results import Result

__all__ = ["QUANTILES", "RANKS", "Figures", "Measurement", "measure"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_WITH_QUANTILES = 16
"""Singular values whose quantiles are kept, the first ones."""
RANKS = ("rank_10", "rank_1", "stable_rank", "entropy_rank")


@dataclass(frozen=True)
class Measurement:
    """What is measured.

    Attributes:
        layers: their numbers; negative ones count from the end.
        head: of attention and IPA. Of operators without heads, all channels are samples.
        source: of `coupling`, or "auto": logits where there are any, else weights, else the Jacobian.
        center: of `spectrum`, for logits.
        images: that are read.
        probes: random vectors a token, which estimate the Jacobian.
    """

    layers: tuple[int, ...]
    head: int
    source: str
    center: str
    images: int
    probes: int = 4


def measure(model: PreTrainedModel, pixel_values: Tensor, wanted: Measurement) -> Iterator[dict[str, Any]]:
    """Yield the figures of each layer as fields of results: metric, value and setting.

    Logits, rho(x(t), x(s)): their singular values over tau, of each image, and of the tokens of all images at once
    ("sigma_cross"), which have no bias of short inputs. Weights and Jacobians: theirs over the Frobenius norm. Only as
    many values as a head has channels: further ones are 0.

    Args:
        model: a model of this package, or one of the library whose attention follows `attn_implementation`.
        pixel_values: (images, channels, height, width).
        wanted: what is measured.

    Raises:
        ValueError: there is no such layer, head or source.
    """
    batch = {"pixel_values": pixel_values[: wanted.images].to(model.device)}
    for layer in wanted.layers:
        source = _source(model, layer) if wanted.source == "auto" else wanted.source
        report, cross = _spectra(model, batch, layer, source, wanted)
        setting = {"layer": layer, "coupling": source}
        figures: dict[str, float | None] = {
            "tokens": report.num_keys,
            "samples": report.num_samples,
            "rank_10": report.eps_rank(0.1).double().mean().item(),
            "rank_1": report.eps_rank(0.01).double().mean().item(),
            "stable_rank": report.stable_rank.mean().item(),
            "entropy_rank": report.entropy_rank.mean().item(),
        }
        if cross is not None:
            figures |= {"decay": _decay(report), "decay_cross": _decay(cross)}
        yield from ({"metric": name, "value": value, "setting": setting} for name, value in figures.items())
        curves = {"sigma": report.mean}
        levels = report.quantiles(*QUANTILES)
        curves |= {f"sigma_q{level:g}": values for level, values in zip(QUANTILES, levels, strict=True)}
        count = report.samples.shape[-1]
        if cross is not None:
            curves["sigma_cross"] = cross.mean
            count = min(count, len(cross.mean))
        for name, values in curves.items():
            kept = values[: min(count, _WITH_QUANTILES) if "_q" in name else count]
            for k, value in enumerate(kept.tolist(), start=1):
                yield {"metric": name, "value": value, "setting": {**setting, "k": k}}


def _spectra(
    model: PreTrainedModel, batch: dict[str, Tensor], layer: int, source: str, wanted: Measurement
) -> tuple[SpectrumReport, SpectrumReport | None]:
    """Return the spectrum of each image, and of all their tokens where the logits are nothing but q . k."""
    if source == "jacobian":
        return spectrum(coupling(model, batch, layer, source=source, probes=wanted.probes), normalize="fro"), None
    head = None if source == "weights" and not _has_heads(model, layer) else wanted.head
    found = coupling(model, batch, layer, head, source)
    if source == "weights":
        return spectrum(found, normalize="fro"), None
    pairs = queries_and_keys(model, batch, layer, wanted.head)
    if pairs.bias is not None:
        return spectrum(found, wanted.center), None
    query, key = (part.flatten(0, 2) for part in (pairs.scale * pairs.query, pairs.key))
    return spectrum(found, wanted.center), cross_spectrum(query, key, wanted.center)


def _source(model: PreTrainedModel, layer: int) -> str:
    if _has_heads(model, layer):
        return "logits"
    return "weights" if has_weights(_mixer(model, layer)) else "jacobian"


def _has_heads(model: PreTrainedModel, layer: int) -> bool:
    return not isinstance(model, SeqMixPreTrainedModel) or isinstance(_mixer(model, layer), WeighingMixer)


def _mixer(model: PreTrainedModel, layer: int) -> Any:
    backbone = next(module for module in model.modules() if isinstance(module, SeqMixModel))
    layers = backbone.config.num_hidden_layers
    if not -layers <= layer < layers:
        raise ValueError(f"layer is {layer}, but the model has {layers} layers, 0 to {layers - 1}.")
    return backbone.layers[layer % layers % len(backbone.layers)].mixer


def _decay(report: SpectrumReport) -> float | None:
    """Return a of sigma_k = c k^-a over all values of the mean that are no rounding errors; None below 3 of them."""
    mean = report.mean
    kept = mean[mean > report.resolution * mean[0]]
    return fit_decay(kept).exponent if len(kept) > 2 else None


class Figures:
    """The results of one run by their names.

    Args:
        results: of one model and one seed.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = list(results)
        self._values = {(each.metric, each.get("layer"), each.get("k")): each.value for each in results}

    def one(self, metric: str, layer: int | None = None) -> float | None:
        """Return a number, of a layer or of the model; None if it was not measured."""
        return self._values.get((metric, layer, None))

    def curve(self, metric: str, layer: int) -> list[float]:
        """Return the values of k = 1, 2, ...; none if they were not measured."""
        found = [(k, value) for (name, own, k), value in self._values.items() if (name, own) == (metric, layer) and k]
        return [value for _, value in sorted(found) if value is not None]

    def source(self, layer: int) -> str:
        """Return what the figures of a layer were read from."""
        return next(str(each.get("coupling")) for each in self.results if each.get("layer") == layer)
