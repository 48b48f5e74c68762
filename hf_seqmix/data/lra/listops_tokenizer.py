"""The vocabulary of ListOps, the Long Range Arena's task of nested lists of digits."""

import tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["listops_tokenizer"]

SPECIAL_TOKENS = ("<pad>", "<unk>", "<eos>")
WORDS = ("[MIN", "[MAX", "[MED", "[SM", "]", *map(str, range(10)))


def listops_tokenizer() -> PreTrainedTokenizerFast:
    """
    A tokenizer of expressions such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, words apart by spaces, with `<eos>` at the end.

    18 tokens: four operators, the bracket that closes, ten digits, `<pad>`, `<unk>` and `<eos>`. Parentheses, which the
    benchmark's files hold and which say nothing that the brackets do not, are left out, as in its own reader (Tay et al.
    2021, arXiv 2011.04006).
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
