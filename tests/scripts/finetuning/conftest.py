"""The script, small checkpoints, and what runs the script on rows."""

import importlib
import json

import pytest
import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    BertModel,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM
from hf_seqmix.data import train_bpe
from tests.scripts.finetuning.inputs import TEXTS


@pytest.fixture(scope="session")
def script():
    return importlib.import_module("finetune")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Untrained models: causal with a tokenizer that has no padding token, masked with one of bytes, two of others."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    bpe = train_bpe(TEXTS * 3, 300)
    unpadded = PreTrainedTokenizerFast(
        tokenizer_object=bpe.backend_tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 64, "hidden_dropout": 0.0}
    models = {
        "causal": (TNNForCausalLM(TNNConfig(vocab_size=400, **sizes)), unpadded),
        "masked": (TNNForMaskedLM(TNNConfig(vocab_size=384, is_causal=False, **sizes)), ByT5Tokenizer()),
        "gpt2": (
            GPT2LMHeadModel(GPT2Config(vocab_size=400, n_positions=64, n_embd=16, n_layer=1, n_head=2)),
            unpadded,
        ),
        "bert": (
            BertModel(
                BertConfig(
                    vocab_size=384,
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=16,
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                )
            ),
            ByT5Tokenizer(),
        ),
    }
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def finetune(script, checkpoints, tmp_path):
    """Runs the script for two steps on rows given as a table."""

    def run(rows, *options, model="causal", steps=2, output="out", **splits):
        files = []
        for split, table in {"train": rows, **splits}.items():
            path = tmp_path / f"{split}.json"
            path.write_text(json.dumps(Dataset.from_dict(table).to_list()), encoding="utf-8")
            files += [f"--{split}-file", str(path)]
        return script.main(
            [
                *("--model", str(checkpoints / model), *files, "--output-dir", str(tmp_path / output)),
                *(
                    "--max-steps",
                    str(steps),
                    "--use-cpu",
                    "--disable-tqdm",
                    "true",
                    "--cache-dir",
                    str(tmp_path / "cache"),
                ),
                *("--per-device-train-batch-size", "4", *options),
            ]
        )

    return run
