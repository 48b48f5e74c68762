"""What finetune.py says of texts that are longer than a model reads."""

from types import SimpleNamespace

import pytest
from finetuning.lengths import warn_of_cut


@pytest.mark.parametrize(
    ("positions", "longest", "advice"),
    [
        (512, 10**30, "at most 512 for this model"),
        (512, 64, "at most 64 for this model"),
        (None, 64, "at most 64 for this model"),
        (None, 10**30, "the model sets no limit"),
        (512, 32, "the model takes no more"),
    ],
)
def test_the_model_and_its_tokenizer_limit_what_is_advised(caplog, positions, longest, advice):
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=positions))
    tokenizer = SimpleNamespace(model_max_length=longest)
    warn_of_cut({"train": 1, "test": 0}, {"train": range(4), "test": range(2)}, 32, model, tokenizer)
    [said] = caplog.messages
    assert said.startswith("train: 1 of 4, test: 0 of 2 texts are longer than 32 tokens") and advice in said
