"""Generation with an assistant whose tokens are others."""

import pytest
import torch
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.data import train_bpe
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
