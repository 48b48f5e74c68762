import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertLMHeadModel,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutput

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.analysis import LanguageModelScore, evaluate_language_model
from hf_seqmix.analysis.text.language_modeling import refuse_future
from hf_seqmix.analysis.text.scores import position_edges
from hf_seqmix.metrics import load_metric

TEXTS = ["The naïve café: 12 €, 價錢.", "", "to be or not to be, that is the question", "x"]


@pytest.fixture(scope="module")
def bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="module")
def byte_tokenizer():
    return ByT5Tokenizer()


@pytest.fixture(scope="module", params=["llama", "tnn"])
def model(request):
    """Untrained, with predictions that are far from uniform."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 16}
    if request.param == "tnn":
        return TNNForCausalLM(TNNConfig(**sizes, initializer_range=0.2)).eval()
    config = LlamaConfig(**sizes, intermediate_size=32, num_attention_heads=2, initializer_range=0.4)
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def brute_force(model, tokenizer, texts, context_length, stride, prefix):
    """Bits, bytes and {position: nats} by one forward per token, with the context written out by the definition."""
    nats, by_position = 0.0, {}
    for text in texts:
        ids = [prefix, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        for target in range(1, len(ids)):
            if target <= context_length:
                first = 0
            else:
                first = -(-(target - context_length) // stride) * stride
            context = ids[first:target]
            logits = model(torch.tensor([context])).logits[0, -1].double()
            loss = -torch.log_softmax(logits, -1)[ids[target]].item()
            nats += loss
            by_position.setdefault(len(context) - 1, []).append(loss)
    return nats, by_position


CONTEXTS = [(1, None), (3, None), (7, None), (1000, None), (7, 1), (7, 3), (7, 7)]


@pytest.mark.parametrize("kind", ["bpe", "byte_tokenizer"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.one_in(6)
def test_equals_scoring_token_by_token(model, kind, context, batch_size, request):
    context_length, stride = context
    tokenizer = request.getfixturevalue(kind)
    prefix = tokenizer.bos_token_id if kind == "bpe" else tokenizer.eos_token_id
    nats, by_position = brute_force(model, tokenizer, TEXTS, context_length, stride or context_length, prefix)

    [score] = evaluate_language_model(
        model,
        tokenizer,
        TEXTS,
        context_lengths=[context_length],
        stride=stride,
        batch_size=batch_size,
        progress=False,
    )

    assert score.num_bytes == sum(len(text.encode("utf-8")) for text in TEXTS)
    assert score.num_tokens == sum(map(len, by_position.values()))
    assert score.num_words == 6 + 10 + 1
    assert score.num_documents == 3
    assert score.nll == pytest.approx(nats, rel=1e-5)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / score.num_bytes, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(nats / score.num_tokens), rel=1e-4)
    assert score.word_perplexity == pytest.approx(math.exp(nats / 17), rel=1e-4)
    assert sum(score.position_nll) == pytest.approx(nats, rel=1e-5)

    positions = [position for position, losses in by_position.items() for _ in losses]
    losses = [loss for losses in by_position.values() for loss in losses]
    expected = load_metric("perplexity_by_position").compute(
        nll=losses, positions=positions, edges=position_edges(context_length)
    )
    assert list(score.position_start) == expected["start"]
    assert list(score.position_tokens) == expected["num_tokens"]
    assert score.position_perplexity == pytest.approx(expected["perplexity"], rel=1e-4)


def test_several_context_lengths_and_the_metrics_agree(model, bpe):
    scores = evaluate_language_model(model, bpe, TEXTS, context_lengths=[16, 4], progress=False)
    assert [score.context_length for score in scores] == [16, 4]
    assert scores[0].nll != scores[1].nll
    for score in scores:
        bits = load_metric("bits_per_byte").compute(nll=[score.nll], num_bytes=[score.num_bytes])
        assert bits == {"bits_per_byte": pytest.approx(score.bits_per_byte)}
        perplexity = load_metric("perplexity").compute(
            nll=[score.nll], num_tokens=[score.num_tokens], num_words=score.num_words
        )
        assert perplexity == {
            "perplexity": pytest.approx(score.perplexity),
            "word_perplexity": pytest.approx(score.word_perplexity),
        }
        restored = json.loads(json.dumps(score.to_dict()))
        assert restored["bits_per_byte"] == score.bits_per_byte
        assert LanguageModelScore.from_dict(restored) == score


def test_small_chunks_of_logits_change_nothing(model, bpe, monkeypatch):
    [expected] = evaluate_language_model(model, bpe, TEXTS, context_lengths=[8], progress=False)
    monkeypatch.setattr("hf_seqmix.analysis.text.blocks._LOGITS_PER_CHUNK", 3 * 400)
    [score] = evaluate_language_model(model, bpe, TEXTS, context_lengths=[8], progress=False)
    assert dataclasses.replace(score, seconds=0) == dataclasses.replace(expected, seconds=0)


def test_uniform_model_gives_log_of_the_vocabulary(byte_tokenizer):
    config = GPT2Config(vocab_size=384, n_positions=32, n_embd=8, n_layer=1, n_head=1)
    model = GPT2LMHeadModel(config)
    model.lm_head.weight.data.zero_()
    [score] = evaluate_language_model(model, byte_tokenizer, TEXTS, context_lengths=[32], progress=False)
    assert score.bits_per_byte == pytest.approx(math.log2(384), rel=1e-6)
    assert score.num_tokens == score.num_bytes


def test_prefix_token_and_mode_are_respected(model, byte_tokenizer):
    model.train()
    [score] = evaluate_language_model(
        model, byte_tokenizer, ["ab"], context_lengths=[4], prefix_token_id=7, progress=False
    )
    assert model.training
    model.eval()
    assert score.nll == pytest.approx(brute_force(model, byte_tokenizer, ["ab"], 4, 4, 7)[0], rel=1e-5)


def test_generators_of_texts_are_read_once(model, bpe):
    [from_list] = evaluate_language_model(model, bpe, TEXTS, context_lengths=[8], progress=False)
    [from_iterator] = evaluate_language_model(model, bpe, iter(TEXTS), context_lengths=[8], progress=False)
    assert from_iterator.nll == from_list.nll


def test_text_the_tokenizer_does_not_know_is_counted(model, caplog):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "to": 2, "be": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")
    [score] = evaluate_language_model(model, wrapped, ["to be or not"], context_lengths=[8], progress=False)
    assert (score.num_tokens, score.num_unknown) == (4, 2)


@pytest.mark.parametrize("text", ["an <unk> word", "<s>struck</s> out", "<pad>"])
def test_special_tokens_spelled_out_in_a_text_are_text(model, byte_tokenizer, bpe, text):
    for tokenizer in (byte_tokenizer, bpe):
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        [score] = evaluate_language_model(model, tokenizer, [text], prefix_token_id=1, progress=False)
        assert score.num_tokens == len(ids)
        assert score.num_unknown == 0
    assert len(byte_tokenizer(text, add_special_tokens=False)["input_ids"]) < score.num_bytes


def test_model_that_sees_later_tokens_is_refused(byte_tokenizer):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config.initializer_range = 0.5
    bidirectional, causal = (
        BertLMHeadModel(config),
        BertLMHeadModel(BertConfig(**{**config.to_dict(), "is_decoder": True})),
    )
    with pytest.raises(ValueError, match="not a causal language model"):
        evaluate_language_model(bidirectional, byte_tokenizer, TEXTS, progress=False)
    evaluate_language_model(bidirectional, byte_tokenizer, TEXTS, check_causality=False, progress=False)
    evaluate_language_model(causal, byte_tokenizer, TEXTS, progress=False)


class Leaky(torch.nn.Module):
    """Adds to the logits of each token a share of those of the token as far from the end."""

    device = torch.device("cpu")

    def __init__(self, dtype, share):
        super().__init__()
        self.table, self.share = torch.nn.Parameter(torch.randn(16, 32, dtype=dtype)), share

    def forward(self, input_ids):
        logits = self.table[input_ids]
        return CausalLMOutput(logits=logits + self.share * logits.flip(1))


def test_the_future_is_seen_where_moved_tokens_are_those_that_were_there():
    with pytest.raises(ValueError, match="not a causal language model"):
        refuse_future(Leaky(torch.float32, 1.0), np.array([3, 4, 4, 3]), half=2)


def test_half_precision_is_allowed_to_round_and_not_to_see_the_future():
    tokens = np.arange(16)
    refuse_future(Leaky(torch.bfloat16, 0.01), tokens)
    for dtype, share in ((torch.float32, 0.01), (torch.bfloat16, 0.1)):
        with pytest.raises(ValueError, match="not a causal language model"):
            refuse_future(Leaky(dtype, share), tokens)


def test_bad_input(model, bpe, byte_tokenizer):
    def run(tokenizer=bpe, texts=TEXTS, model=model, **options):
        evaluate_language_model(model, tokenizer, texts, progress=False, **options)

    for texts in ([], ["", ""]):
        with pytest.raises(ValueError, match="no text"):
            run(texts=texts)
    with pytest.raises(ValueError, match="put it in a list"):
        run(texts="one string")
    for lengths in ([], [0], [4, -1]):
        with pytest.raises(ValueError, match="context_lengths"):
            run(context_lengths=lengths)
    for stride in (0, 5):
        with pytest.raises(ValueError, match="stride"):
            run(context_lengths=[8, 4], stride=stride)
    with pytest.raises(ValueError, match="batch_size"):
        run(batch_size=0)
    with pytest.raises(ValueError, match="prefix_token_id"):
        run(PreTrainedTokenizerFast(tokenizer_object=bpe.backend_tokenizer))

    small = LlamaForCausalLM(
        LlamaConfig(vocab_size=100, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    with pytest.raises(ValueError, match="vocabulary has 100 entries"):
        run(byte_tokenizer, model=small)


def test_more_tokens_than_the_model_takes(byte_tokenizer):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=384, n_positions=16, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="max_position_embeddings = 16"):
        evaluate_language_model(model, byte_tokenizer, TEXTS, context_lengths=[32], progress=False)


def test_losses_that_are_not_finite(model, bpe):
    broken = copy.deepcopy(model)
    broken.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite"):
        evaluate_language_model(broken, bpe, TEXTS, progress=False)
