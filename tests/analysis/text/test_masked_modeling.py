import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import ByT5Tokenizer

from hf_seqmix.analysis.text.masked_modeling import (
    evaluate_masked_model,
    majority_accuracy,
    mask_documents,
    ngram_bits_per_byte,
)
from hf_seqmix.data import ByteNGram, build_tokenizer
from tests.ecosystem.tiny import tiny_model

TEXTS = [
    "To be, or not to be: that is the question.\n" * 5,
    "é",
    "",
    "Whether 'tis nobler in the mind to suffer\n" * 3,
]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("bpe:290", TEXTS, mask_token=True)


def test_blocks_cover_the_text_and_know_their_bytes(tokenizer):
    blocks = mask_documents(tokenizer, TEXTS, context_length=16, share=0.9)
    data = [text.encode() for text in TEXTS]
    assert 1 in [block.document for block in blocks]
    for block in (block for block in blocks if block.document != 1):  # whose one character is two tokens
        for position, start, end in zip(block.positions, block.byte_starts, block.byte_ends, strict=True):
            piece = data[block.document][start:end].decode()
            assert tokenizer.decode([block.input_ids[position]]).strip() == piece.strip()
    everything = [ids for index in (0, 3) for block in blocks if block.document == index for ids in block.input_ids]
    separator = tokenizer.eos_token_id
    whole = [[separator, *tokenizer(TEXTS[index], add_special_tokens=False).input_ids] for index in (0, 3)]
    assert everything == [token for document in whole for token in document]
    assert all(block.input_ids[position] != separator for block in blocks for position in block.positions)


def test_masks_are_drawn_once_from_the_seed(tokenizer):
    first, again, other = (mask_documents(tokenizer, TEXTS * 9, context_length=16, seed=seed) for seed in (0, 0, 1))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.positions, b.positions)
    assert [block.positions.tolist() for block in first] != [block.positions.tolist() for block in other]
    tokens = sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in TEXTS) * 9
    masked = sum(block.positions.size for block in first)
    assert abs(masked - 0.15 * tokens) < 4 * math.sqrt(0.15 * 0.85 * tokens)


class Knowing(nn.Module):
    """A masked model that knows the frequencies it was given and sees whether anything but gaps was hidden."""

    def __init__(self, log_probabilities, mask):
        super().__init__()
        self.logits, self.mask, self.gaps = nn.Parameter(log_probabilities), mask, 0
        self.config, self.device = SimpleNamespace(vocab_size=len(log_probabilities)), torch.device("cpu")

    def forward(self, input_ids, attention_mask):
        assert (attention_mask[:, 0] == 1).all() and (attention_mask.diff(dim=1) <= 0).all()
        self.gaps += int((input_ids == self.mask).sum())
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def test_score_is_that_of_the_definition(tokenizer):
    blocks = mask_documents(tokenizer, TEXTS, context_length=7)
    answers = np.concatenate([block.input_ids[block.positions] for block in blocks])
    log_probabilities = torch.log_softmax(torch.randn(len(tokenizer)), dim=0)
    model = Knowing(log_probabilities, tokenizer.mask_token_id)
    score = evaluate_masked_model(model, tokenizer, blocks, context_length=7, batch_size=3, progress=False)
    assert score.num_masked == model.gaps == answers.size
    assert score.nll == pytest.approx(-log_probabilities[answers].sum().item(), rel=1e-5)
    assert score.num_right == int((answers == log_probabilities.argmax().item()).sum())
    num_bytes = sum((block.byte_ends - block.byte_starts).sum() for block in blocks)
    assert score.bits_per_byte == pytest.approx(score.nll / math.log(2) / num_bytes)


def test_padding_and_batches_change_nothing(tokenizer):
    model = tiny_model("ski_tnn", "ForMaskedLM").double()
    model.train()
    blocks = mask_documents(tokenizer, TEXTS, context_length=11)
    scores = [
        evaluate_masked_model(model, tokenizer, blocks, context_length=11, batch_size=size, progress=False)
        for size in (1, 8)
    ]
    assert scores[0].nll == pytest.approx(scores[1].nll, rel=1e-6) and model.training
    with pytest.raises(ValueError, match="batch_size must be positive; given -1"):
        evaluate_masked_model(model, tokenizer, blocks, context_length=11, batch_size=-1, progress=False)


def test_baselines_answer_the_same_questions(tokenizer):
    train = ["to be to be to be", "é"]
    blocks = mask_documents(tokenizer, TEXTS, context_length=16)
    ngram = ByteNGram(3).fit(train)
    bits = num_bytes = 0
    for block in blocks:
        data = TEXTS[block.document].encode()
        for start, end in zip(block.byte_starts, block.byte_ends, strict=True):
            for place in range(start, end):
                gram = int.from_bytes(data[max(0, place - 2) : place + 1], "big")
                bits -= math.log2(ngram.probability(np.array([gram]))[0])
                num_bytes += 1
    assert ngram_bits_per_byte(ngram, TEXTS, blocks) == pytest.approx(bits / num_bytes)

    token, accuracy = majority_accuracy(tokenizer, TEXTS, blocks)
    answers = np.concatenate([block.input_ids[block.positions] for block in blocks])
    [expected] = tokenizer(token, add_special_tokens=False).input_ids
    assert accuracy == (answers == expected).mean() > 0
    assert majority_accuracy(ByT5Tokenizer(), ["a", "b", "a"], blocks)[0] == "a"  # ends of texts are no text


def test_wrong_input_is_refused(tokenizer):
    with pytest.raises(ValueError, match="one string"):
        mask_documents(tokenizer, "text")
    with pytest.raises(ValueError, match="give 2 or more"):
        mask_documents(tokenizer, TEXTS, context_length=1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mask_documents(tokenizer, TEXTS, share=0)
    with pytest.raises(ValueError, match="no token was masked"):
        mask_documents(tokenizer, [""])
    blocks = mask_documents(tokenizer, TEXTS)
    with pytest.raises(ValueError, match="no mask token"):
        evaluate_masked_model(tiny_model("tnn", "ForMaskedLM"), ByT5Tokenizer(), blocks, context_length=128)
    with pytest.raises(ValueError, match="the model's vocabulary has 20 entries"):
        small = tiny_model("tnn", "ForMaskedLM", vocab_size=20)
        evaluate_masked_model(small, tokenizer, blocks, context_length=128)
    with pytest.raises(ValueError, match="blocks is empty"):
        evaluate_masked_model(tiny_model("tnn", "ForMaskedLM"), tokenizer, [], context_length=128)
    broken = tiny_model("tnn", "ForMaskedLM", vocab_size=len(tokenizer))
    torch.nn.init.constant_(broken.get_input_embeddings().weight, float("nan"))
    with pytest.raises(ValueError, match="loss that is not finite: the weights are broken"):
        evaluate_masked_model(broken, tokenizer, blocks, context_length=128)
    with pytest.raises(ValueError, match="training text is empty"):
        majority_accuracy(tokenizer, [], blocks)
