"""A view of each layer."""

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from hf_seqmix.analysis import coupling
from hf_seqmix.analysis.inside import look_inside
from hf_seqmix.analysis.inside.memory import memory_of
from hf_seqmix.analysis.inside.plots import plot_maps, plot_memory, plot_spectra
from hf_seqmix.analysis.spectra import spectrum
from tests.analysis.couplings.test_coupling import LENGTH, ids, make
from tests.tolerances import assert_close


def test_every_mixer_has_a_view(tmp_path):
    model, batch = make("attention", "tnn", "poly_transformer"), ids()
    views = look_inside(model, batch, heads=3, probes=None)
    assert [view.mixer for view in views] == ["SoftmaxAttention", "TNNMixer", "PolynomialMixer"]
    assert [view.heads for view in views] == [[0, 1], [0, 24, 47], [0, 2, 3]]
    for layer, view in enumerate(views):
        assert view.weights is not None
        assert_close(view.weights, coupling(model, batch, layer)[:, view.heads])
        assert view.jacobian is not None
        assert_close(view.jacobian, coupling(model, batch, layer, source="jacobian"))
        assert (view.logits is None) == (layer > 0)
        values = spectrum(view.weights, normalize="fro").singular_values
        assert view.spectrum is not None and torch.equal(view.spectrum.singular_values, values)
        assert view.memory is not None and view.memory.mean == memory_of(view.jacobian).mean
        row = view.figures()
        assert 1 <= row["stable_rank"] <= row["entropy_rank"] <= LENGTH
        assert 0 <= row["memory"] < LENGTH
    for plot in (plot_maps, plot_memory, plot_spectra):
        plot(views, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 5000


def test_a_mixer_without_weights_has_a_jacobian():
    (view,) = look_inside(make("poly_transformer", degree=4), ids(1), probes=2)
    assert view.weights is None
    assert view.heads == []
    assert {"stable_rank", "memory"} <= set(view.figures())


def test_models_of_the_library_have_weights_and_logits():
    config = LlamaConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8
    )
    views = look_inside(LlamaModel(config), ids())
    assert len(views) == 2
    assert all(view.jacobian is None and view.logits is not None for view in views)
    assert "memory" in views[0].figures()


def test_one_token_is_enough():
    batch = {"input_ids": torch.tensor([[3]])}
    (view,) = look_inside(make("tnn"), batch, probes=None)
    assert view.figures()["memory"] == 0


def test_pads_are_refused():
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, 0] = 0
    with pytest.raises(ValueError, match="a row has pads or holds several sequences"):
        look_inside(make("tnn"), {**ids(), "attention_mask": mask})
