"""Embeddings of n-grams: their formula, and models that have them in every way a model is called."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, StaticCache

from hf_seqmix import (
    SeqMixConfig,
    SeqMixHybridConfig,
    TNNConfig,
    TNNForCausalLM,
    TNNModel,
    from_hybrid,
    replace_mixers,
    to_hybrid,
)
from hf_seqmix.models.ngram_embedding import hash_ngrams
from hf_seqmix.models.parameter_roles import hidden_matrices
from tests.models.copying import MIXERS, OWN
from tests.models.decoding import check_chunks, check_continuous_batching, check_generation, check_rows_and_crops
from tests.models.hybrid import test_modeling_hybrid as hybrid
from tests.models.poly_transformer import test_modeling_poly_transformer as poly_transformer
from tests.models.ski_tnn import test_modeling_ski_tnn as ski_tnn
from tests.models.suite import PADS, VOCAB, perturb
from tests.models.tnn import test_modeling_tnn as tnn
from tests.tolerances import assert_close

NGRAMS = {"ngram_sizes": [2, 4], "ngram_buckets": 13}
"""Few buckets, so that n-grams share them."""


def make(mixers: list[str], **fields: Any) -> PreTrainedModel:
    config = SeqMixHybridConfig(
        vocab_size=31, hidden_size=16, pad_token_id=0, eos_token_id=None, mixer_types=mixers,
        mixer_configs={mixer: OWN[mixer] for mixer in mixers}, **{**NGRAMS, **fields},
    )  # fmt: skip
    return perturb(AutoModelForCausalLM.from_config(config), 0.2).double().eval()


def bucket(newest_first: list[int], buckets: int) -> int:
    """The formula, in integers of any size."""
    prime = 2**31 - 1
    total = sum((token + 2) * 48271**place for place, token in enumerate(newest_first)) % prime
    return 1103515245 * total % prime % buckets


def embedded(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Embeddings of one sequence with those of its n-grams, token by token, (length, channels)."""
    rows = []
    for end, token in enumerate(ids):
        row = model.embed_tokens.weight[token]
        for size in model.config.ngram_sizes:
            ngram = [ids[end - back] if end >= back else -1 for back in range(size)]
            row = row + model.embed_ngrams.tables[str(size)].weight[bucket(ngram, model.config.ngram_buckets)]
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("buckets", [1, 13, 2**14, 2**26])
@pytest.mark.parametrize("size", [2, 3, 64])
def test_buckets_are_those_of_the_formula(size, buckets):
    """With the largest ids that there are, too: no product overflows."""
    ngrams = torch.cat([torch.randint(-1, 2**31 - 1, (50, size)), torch.full((1, size), 2**31 - 1)])
    expected = [bucket(ngram, buckets) for ngram in ngrams.tolist()]
    assert hash_ngrams(ngrams, buckets).tolist() == expected


def test_integers_of_less_width_have_the_same_buckets():
    ngrams = torch.randint(-1, 2**15 - 1, (50, 3))
    for dtype in (torch.int32, torch.int16):
        assert torch.equal(hash_ngrams(ngrams.to(dtype), 1000), hash_ngrams(ngrams, 1000))


def test_buckets_are_about_evenly_filled():
    """All pairs of 300 tokens in 1,000 buckets: a random function has 90 each, with a deviation of 9.5."""
    pairs = torch.cartesian_prod(torch.arange(300), torch.arange(300))
    filled = hash_ngrams(pairs, 1000).bincount(minlength=1000).double()
    assert filled.std() < 15 and filled.max() < 150
    # The order of tokens counts.
    assert (hash_ngrams(pairs, 2**26) != hash_ngrams(pairs.flip(1), 2**26)).sum() == 300 * 299


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
def test_embeddings_by_the_formula(is_causal):
    """With pads anywhere, and in packed rows; gradients, too."""
    config = TNNConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=1, rpe_hidden_size=8, is_causal=is_causal,
        hidden_dropout=0.0, embedding_scale=1.0, **NGRAMS,
    )  # fmt: skip
    model = perturb(TNNModel(config), 0.2).double()
    plain = TNNModel(TNNConfig(**{**config.to_dict(), "ngram_sizes": None})).double()
    plain.load_state_dict(model.state_dict(), strict=False)
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids, weights = torch.randint(31, mask.shape), torch.randn(*mask.shape, 16, dtype=torch.float64)
    tables = [*model.embed_ngrams.parameters(), model.embed_tokens.weight]

    def check(states: Tensor, parts: list[tuple[int, Tensor, Tensor]]) -> None:
        """parts: the row, and where in it the tokens of each sequence are."""
        expected = torch.zeros((), dtype=torch.float64)
        actual = torch.zeros((), dtype=torch.float64)
        for row, own, tokens in parts:
            alone = plain(inputs_embeds=embedded(model, tokens.tolist()).unsqueeze(0)).last_hidden_state[0]
            assert_close(states[row][own], alone)
            actual = actual + (states[row][own] * weights[row][own]).sum()
            expected = expected + (alone * weights[row][own]).sum()
        for one, other in zip(torch.autograd.grad(actual, tables), torch.autograd.grad(expected, tables), strict=True):
            assert other.abs().max() > 0
            assert_close(one, other, factor=10)

    real = mask.bool()
    check(
        model(ids, mask, use_cache=False).last_hidden_state,
        [(row, real[row], ids[row][real[row]]) for row in range(len(ids))],
    )
    positions = torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4]])
    packed = model(ids[:1], position_ids=positions, use_cache=False).last_hidden_state
    parts = [torch.arange(9) < 3, torch.arange(9) == 3, torch.arange(9) > 3]
    check(packed, [(0, own, ids[0][own]) for own in parts])


@pytest.mark.parametrize("mixers", MIXERS, ids=str)
@torch.no_grad()
def test_decodes_as_it_reads(mixers):
    """Logits in chunks with pads, of growing and preallocated caches; every way to generate gives the same tokens."""
    model, mask = make(mixers), torch.tensor(PADS["inside"])
    ids = torch.randint(1, 31, mask.shape)
    check_chunks(model, ids, mask, [[4, 1, 4], [1] * 9, [2, 7]])
    check_generation(model, make(mixers), ids)


@torch.no_grad()
def test_rows_and_crops_of_a_cache():
    for mixers in MIXERS:
        check_rows_and_crops(make(mixers, copy_head=True, short_conv_taps=3), torch.randint(1, 31, (2, 9)))


def test_continuous_batching_gives_what_a_prompt_gives_alone():
    for mixers in MIXERS[:3]:
        check_continuous_batching(make(mixers), 31)


@torch.no_grad()
def test_ids_are_kept_exactly_in_half_precision():
    """2,049 and its neighbors are one number in bfloat16, but not one token."""
    config = TNNConfig(vocab_size=3001, hidden_size=16, num_hidden_layers=2, ngram_sizes=[3], ngram_buckets=2**12)
    model = perturb(TNNForCausalLM(config)).to(torch.bfloat16).eval()
    for cache in (DynamicCache(config=config), StaticCache(config, max_cache_len=8)):
        model(torch.tensor([[2051, 2049]]), past_key_values=cache)
        seen = []
        model.model.embed_ngrams.tables["3"].register_forward_pre_hook(
            lambda _, given, seen=seen: seen.append(given[0])
        )
        model(torch.tensor([[2050]]), past_key_values=cache)
        assert seen[0].tolist() == [[bucket([2050, 2049, 2051], 2**12)]]


def test_a_new_model_is_the_one_without_them():
    fields = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2}
    torch.manual_seed(0)
    plain = TNNForCausalLM(TNNConfig(**fields)).eval()
    model = TNNForCausalLM(TNNConfig(**fields, **NGRAMS)).eval()
    missing = model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["model.embed_ngrams.tables.2.weight", "model.embed_ngrams.tables.4.weight"]
    ids = torch.randint(31, (2, 7))
    assert torch.equal(model(ids).logits, plain(ids).logits)
    assert not hidden_matrices(model) & {*missing}  # tables are embeddings: not for Muon


def test_they_can_be_added_to_a_trained_model(tmp_path):
    model = perturb(TNNForCausalLM(TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1))).eval()
    model.save_pretrained(tmp_path)
    more = AutoModelForCausalLM.from_pretrained(tmp_path, **NGRAMS).eval()
    ids = torch.randint(31, (2, 7))
    assert torch.equal(more(ids).logits, model(ids).logits)
    assert more.model.embed_ngrams.tables["4"].weight.shape == (13, 16)


@torch.no_grad()
def test_conversions_and_distilled_decoders_keep_them():
    config = TNNConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, rpe_hidden_size=8, decay=0.9, pad_token_id=0, **NGRAMS
    )
    model = perturb(TNNForCausalLM(config)).double().eval()
    ids = torch.randint(1, 31, (2, 40))
    hybrid = to_hybrid(model)
    assert torch.equal(hybrid(ids).logits, model(ids).logits)
    assert torch.equal(from_hybrid(hybrid)(ids).logits, model(ids).logits)
    other = replace_mixers(hybrid, {1: "attention"}, {"attention": {"num_heads": 2}})
    for size, table in model.model.embed_ngrams.tables.items():
        assert torch.equal(other.model.embed_ngrams.tables[size].weight, table.weight)
    alone = torch.func.vmap(lambda row: model.model(row[None], use_cache=False).last_hidden_state[0])(ids)
    assert_close(alone, model.model(ids, use_cache=False).last_hidden_state)
    expected = model.generate(ids, max_new_tokens=6, do_sample=False)
    model.distill_decoder(tolerance=1e-6, exact_taps=4)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ngram_sizes": [1]}, "ngram_sizes is 1; it must be at least 2"),
        ({"ngram_sizes": [65]}, "ngram_sizes is 65; it must be at most 64"),
        ({"ngram_sizes": [3, 2, 3]}, r"ngram_sizes is \[3, 2, 3\], which names a size twice"),
        ({"ngram_sizes": [2], "ngram_buckets": 0}, "ngram_buckets is 0; it must be at least 1"),
        ({"ngram_buckets": 2**27}, "ngram_buckets is 134217728; it must be at most 67108864"),
        ({"ngram_sizes": [2], "image_size": 8}, "ngram_sizes is .*, but image_size is set"),
    ],
)
def test_fields_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        TNNConfig(**fields)


def test_a_cache_that_keeps_no_tokens_is_refused():
    assert make(["attention"]).config.layer_types == ["seqmix_key_inputs"]
    assert TNNConfig(num_hidden_layers=2, **NGRAMS).layer_types == ["seqmix_convolution"] * 2
    with pytest.raises(ValueError, match=r"holds no layer 0 yet, but .*ngram_sizes"):
        make(["attention"])(torch.randint(9, (1, 5)), past_key_values=DynamicCache())


class NGrams:
    """A family's configurations with n-grams, where they are of text."""

    def config(self, *is_causal: bool, **kwargs: Any) -> SeqMixConfig:
        return super().config(*is_causal, **{**({} if "image_size" in kwargs else NGRAMS), **kwargs})

    def test_embeddings_instead_of_ids(self, is_causal):
        model = self.make("Model", is_causal)
        with pytest.raises(ValueError, match=r"ngram_sizes is \[2, 4\].*give input_ids instead of inputs_embeds"):
            model(inputs_embeds=torch.randn(1, 5, model.config.hidden_size, dtype=torch.float64))

    test_not_even_nan_at_pads_matters = None  # of embeddings; tokens at pads may be any in the suite's other test

    def test_generation_from_embeddings(self, generator):
        embeds = generator.get_input_embeddings()(torch.randint(1, VOCAB, (1, 5)))
        with pytest.raises(ValueError, match=r"ngram_sizes is \[2, 4\].*give input_ids instead of inputs_embeds"):
            generator.generate(inputs_embeds=embeds, max_new_tokens=6)


@pytest.mark.slow
class TestNGramsTNN(NGrams, tnn.TestTNN):
    pass


@pytest.mark.slow
class TestNGramsSKITNN(NGrams, ski_tnn.TestSKITNN):
    pass


@pytest.mark.slow
class TestNGramsPolyTransformer(NGrams, poly_transformer.TestPolyTransformer):
    pass


@pytest.mark.slow
class TestNGramsAttentionFirst(NGrams, hybrid.TestCompiledAttentionFirst):
    pass
