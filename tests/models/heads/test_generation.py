"""Assisted generation: an assistant whose tokens are others, and caches that are kept between turns."""

import pytest
import torch
from transformers import ByT5Tokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.data import train_bpe
from tests.cache.test_rows import of_all_layers
from tests.models.suite import perturb

TEXT = "def read_lines(path):\n    return open(path)\n"


@pytest.mark.parametrize("family", ["tnn", "llama"])
def test_an_assistant_with_another_tokenizer_drafts_what_is_chosen_alone(family: str) -> None:
    tokenizer, other = train_bpe([TEXT * 4], 300), ByT5Tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2}
    model = perturb(TNNForCausalLM(TNNConfig(vocab_size=len(tokenizer), **sizes))).double().eval()
    model.generation_config.pad_token_id = other.eos_token_id  # which ends the assistant's prompts
    if family == "tnn":
        assistant = TNNForCausalLM(TNNConfig(vocab_size=len(other), **sizes)).eval()
    else:
        llama = LlamaConfig(vocab_size=len(other), **sizes, num_attention_heads=2, intermediate_size=16)
        assistant = LlamaForCausalLM(llama).eval()
    prompt = tokenizer(TEXT, return_tensors="pt", return_token_type_ids=False)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    helped = {"assistant_model": assistant, "tokenizer": tokenizer, "assistant_tokenizer": other}
    assert torch.equal(model.generate(**prompt, **options, **helped), model.generate(**prompt, **options))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("helper", ["prompt lookup", "assistant"])
def test_a_kept_cache_is_not_read_again(helper: str, padded: bool) -> None:
    torch.manual_seed(0)
    model = perturb(of_all_layers()).double().eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    options = {"prompt_lookup_num_tokens": 3} if helper == "prompt lookup" else {"assistant_model": model}
    cache = DynamicCache(config=model.config)
    ids = torch.randint(1, 12, (1, 14))
    ids = torch.cat([ids, ids[:, :5]], dim=1)
    mask = torch.ones_like(ids)
    if padded:
        mask[:, :2] = 0
    first = model.generate(ids, attention_mask=mask, **{CACHE_NAME: cache}, max_new_tokens=6, do_sample=False)
    turn = torch.cat([first, torch.tensor([[3, 4, 5]])], dim=1)
    mask = torch.cat([mask, mask.new_ones(1, turn.shape[1] - ids.shape[1])], dim=1)
    plain = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(turn, **plain)
    assert torch.equal(model.generate(turn, **{CACHE_NAME: cache}, **plain, **options), expected)
    assert cache.get_seq_length() <= expected.shape[1]


@pytest.mark.parametrize("helper", ["prompt lookup", "assistant"])
def test_a_preallocated_cache_takes_no_assistant(helper: str) -> None:
    """Sums and inputs of convolutions that a refused candidate has changed cannot be taken back."""
    model = perturb(of_all_layers()).double().eval()
    options = {"prompt_lookup_num_tokens": 3} if helper == "prompt lookup" else {"assistant_model": model}
    cache = StaticCache(config=model.config, max_cache_len=40)
    options |= {CACHE_NAME: cache, "max_new_tokens": 8, "do_sample": False, "disable_compile": True}
    with pytest.raises(ValueError, match=r"(?i)assisted (generate|decoding)"):
        model.generate(torch.randint(1, 12, (1, 14)), **options)
    with pytest.raises(ValueError, match="take a DynamicCache"):
        cache.layers[0].crop(-1)


@pytest.mark.parametrize("max_length", [11, 13, 16, 17])
def test_prompt_lookup_ends_with_the_positions(max_length: int) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 16}
    model = perturb(TNNForCausalLM(TNNConfig(**sizes, position_embedding_type="learned"))).double().eval()
    ids, options = torch.tensor([[1, 2, 3] * 3]), {"max_length": max_length, "do_sample": False, "eos_token_id": None}
    lookup = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 1}
    assert torch.equal(model.generate(ids, **options, **lookup), model.generate(ids, **options))


def test_new_tokens_alone_are_refused_after_a_kept_cache() -> None:
    model = perturb(of_all_layers()).double().eval()
    ids, options = torch.randint(1, 60, (1, 9)), {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    for new in (4, 5):
        cache = DynamicCache(config=model.config)
        model(ids[:, :5], past_key_values=cache, use_cache=True)
        with pytest.raises(ValueError, match=f"holds 5 tokens, and input_ids has {new}: .* of {5 + new} columns"):
            model.generate(ids[:, -new:], **{CACHE_NAME: cache}, **options)
    cache = DynamicCache(config=model.config)
    model(ids[:, :5], past_key_values=cache, use_cache=True)
    new = model.generate(ids[:, 5:], attention_mask=torch.ones(1, 9), **{CACHE_NAME: cache}, **options)
    assert torch.equal(new[:, 4:], model.generate(ids, **options)[:, 9:])


def test_a_prompt_of_embeddings_is_not_read_in_chunks() -> None:
    model = perturb(of_all_layers()).double().eval()
    ids, options = torch.randint(1, 60, (2, 9)), {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    embeds = model.get_input_embeddings()(ids)
    new = model.generate(inputs_embeds=embeds, prefill_chunk_size=2, **options)
    assert torch.equal(new, model.generate(ids, **options)[:, 9:])


def test_a_preallocated_cache_filled_in_chunks_under_autocast() -> None:
    model, ids = perturb(of_all_layers()).eval(), torch.randint(1, 60, (2, 9))
    options = {"max_new_tokens": 3, "eos_token_id": None, "output_logits": True, "return_dict_in_generate": True}
    static = {"cache_implementation": "static", "disable_compile": True}
    with torch.autocast("cpu", torch.bfloat16):
        whole, chunks = (model.generate(ids, **options, **static, **more) for more in ({}, {"prefill_chunk_size": 4}))
    torch.testing.assert_close(chunks.logits[0], whole.logits[0], rtol=0.05, atol=0.05)
    assert [layer.keys.dtype for layer in getattr(chunks, CACHE_NAME).layers] == [
        layer.keys.dtype for layer in getattr(whole, CACHE_NAME).layers
    ]
