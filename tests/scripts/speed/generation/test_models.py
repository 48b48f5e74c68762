"""Ways to decode give the text of the model without a cache, and a difference is an error."""

import pytest
import torch
from generation.models import FAMILIES, Sizes, build, check, contender, logits_error, ready, text_after
from timing.protocol import WrongResultError

SIZES = Sizes(width=64, depth=1, longest=40, prompt=3)


@pytest.mark.parametrize("name", [*FAMILIES, "tnn:plain", "hybrid:plain", "tnn:static", "llama:static"])
def test_texts_with_a_cache_are_those_without(name):
    of = contender(name)
    model = ready(of, SIZES)
    check(of, model, 6, [20], SIZES)
    text = text_after(model, of.way, 5 if of.way == "plain" else 2, 20, SIZES)
    assert (text.new, text.ids.shape[1]) == (20, 23)
    seconds, logits = text.turn(4, logits=True)
    assert len(seconds) == 4 and logits_error(of, text, logits) < 1e-4
    assert (text.new, text.ids.shape[1]) == (24, 27)


def test_no_model_ends_its_texts_early():
    assert all(build(family, SIZES).generation_config.eos_token_id is None for family in ("tnn", "llama", "poly3"))


def test_a_wrong_product_is_found(monkeypatch):
    of = contender("tnn:plain")
    model = ready(of, SIZES)
    vecdot = torch.linalg.vecdot
    monkeypatch.setattr(torch.linalg, "vecdot", lambda *given: -vecdot(*given))
    with pytest.raises(WrongResultError, match="differ from those without"):
        check(of, model, 6, [], SIZES)
    monkeypatch.setattr(torch.linalg, "vecdot", lambda *given: 1.01 * vecdot(*given))
    with pytest.raises(WrongResultError, match="logits after 28 tokens differ"):
        check(of, model, 1, [20], SIZES)


def test_a_model_without_toeplitz_layers_has_no_plain_product():
    with pytest.raises(ValueError, match="no Toeplitz layer"):
        ready(contender("llama:plain"), SIZES)
