"""The blocks of pretrain.py, and the bytes of text that they predict."""

from types import SimpleNamespace

from datasets import Dataset
from pretraining.inputs import build_blocks
from transformers import ByT5Tokenizer


def test_ends_of_texts_are_no_unknown_text_where_one_token_is_both():
    """As in GPT-2's vocabulary."""
    data = {"block_size": 8, "respect_documents": False, "preprocessing_num_workers": None}
    arguments = SimpleNamespace(
        model=SimpleNamespace(objective="causal"),
        data=SimpleNamespace(**data, streaming=False, max_eval_blocks=None),
        training=SimpleNamespace(seed=0),
    )
    train, validation = (Dataset.from_dict({"text": texts}) for texts in (["some text"], ["ab", "cde"]))
    assert build_blocks(arguments, ByT5Tokenizer(unk_token="</s>"), train, validation)[2] == 5
