"""Tokenizer of ListOps, the task of nested lists of digits of the Long Range Arena."""

import tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["listops_tokenizer"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "<eos>")
WORDS = ("[MIN", "[MAX", "[MED", "[SM", "]", *map(str, range(10)))


def listops_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of expressions such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, words apart by spaces, `<eos>` at the end.

    The 18 tokens are four operators, the closing bracket, ten digits, `<pad>`, `<unk>` and `<eos>`. The files of the
    benchmark also hold parentheses, which say nothing that the brackets do not say. They are left out, as in the
    reader of the benchmark (Tay et al. 2021, arXiv 2011.04006).
    """
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: index for index, word in enumerate(SPECIAL_TOKENS + WORDS)}, "<unk>")
    )
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Replace(parenthesis, " ") for parenthesis in "()"]
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <eos>",
        pair="$A <eos> $B:1 <eos>:1",
        special_tokens=[("<eos>", SPECIAL_TOKENS.index("<eos>"))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )
