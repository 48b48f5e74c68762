import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from hf_seqmix.data import train_bpe

TEXTS = ["The café is in Paris, France.", "Where is the café?", "to be or not to be"] * 4


@pytest.fixture(scope="session")
def tokenizers():
    """One that puts special tokens around texts, one of bytes that is not fast, one that puts nothing anywhere."""
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    for letter in "abcdefghijklmnopqrstuvwxyzé.,?":
        words[letter] = len(words)
        words[f"##{letter}"] = len(words)
    bert = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    bert.normalizer = normalizers.Lowercase()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return {
        "bert": PreTrainedTokenizerFast(
            tokenizer_object=bert,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        ),
        "bytes": ByT5Tokenizer(),
        "bpe": train_bpe(TEXTS, 300),
    }


@pytest.fixture(params=["bert", "bytes", "bpe"])
def tokenizer(request, tokenizers):
    return tokenizers[request.param]
