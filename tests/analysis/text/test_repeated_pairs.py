"""Losses by how often a pair of tokens stood in training, and how far back in the context."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import ByT5Tokenizer, OPTConfig, OPTForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from hf_seqmix import PolyTransformerConfig, PolyTransformerForCausalLM
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.text.repeated_pairs import (
    COMMON,
    COUNT_EDGES,
    FREQUENT,
    Bounds,
    PairCounts,
    PairScore,
    pair_distances,
    recall_gap,
    score_pairs,
)

VOCABULARY = 7


class Copier(nn.Module):
    """Expects what followed the last token before, as sure of it as said; else all tokens alike."""

    def __init__(self, sure: float = 4.0) -> None:
        super().__init__()
        self.sure = sure
        self.device = torch.device("cpu")

    def get_input_embeddings(self) -> None:
        """There are none."""

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        for row, ids in enumerate(input_ids.tolist()):
            for place, token in enumerate(ids):
                for before in range(place):
                    if ids[before] == token:
                        logits[row, place] = 0.0
                        logits[row, place, ids[before + 1]] = self.sure
        return CausalLMOutput(logits=logits)


def copier() -> Any:
    """A `Copier` as a model: scores call no more of a model than its forward."""
    return Copier()


def slow_distance(ids: list[int], place: int) -> int:
    for back in range(1, place):
        if ids[place - back - 1 : place - back + 1] == ids[place - 1 : place + 1]:
            return back
    return 0


def test_distances_are_those_of_a_search_backwards() -> None:
    ids = np.random.default_rng(0).integers(0, 4, 61)
    found = pair_distances(ids)
    assert found.tolist() == [slow_distance(ids.tolist(), place) for place in range(1, 61)]
    assert found.max() > 16 and (found == 0).any()
    assert pair_distances(np.asarray([3, 3, 3])).tolist() == [0, 1]
    assert pair_distances(np.asarray([3])).tolist() == []


def test_counts_do_not_span_documents() -> None:
    counts = PairCounts.of([np.asarray([1, 2, 1, 2]), np.asarray([2, 5]), np.asarray([4])])
    assert counts(np.asarray([1, 2, 1, 2, 5, 4, 2**31])).tolist() == [2, 1, 2, 1, 0, 0]
    assert counts(np.asarray([6, 6])).tolist() == [0]
    with pytest.raises(ValueError, match="no document has two tokens"):
        PairCounts.of([np.asarray([4])])


def test_a_model_that_copies_is_right_where_pairs_are_repeated() -> None:
    # 1 2 stands 12 times in training, 3 4 never; both come twice.
    documents = [np.asarray([0, 1, 2, 3, 4, 1, 2, 3, 4])]
    counts = PairCounts.of([np.asarray([1, 2, 6] * 12)])
    scores = score_pairs(copier(), documents, counts, context_length=8, check_causality=False, progress=False)
    found: dict[Any, Any] = {(score.train_count, score.distance): (score.num_tokens, score.nll) for score in scores}
    assert sum(score.num_tokens for score in scores) == 8
    even, right = np.log(VOCABULARY), np.log1p((VOCABULARY - 1) * np.exp(-4.0))
    assert found[(10, 100), (1, 16)] == (1, pytest.approx(right))  # 1 2
    assert found[(0, 1), (1, 16)] == (2, pytest.approx(2 * right))  # 2 3 and 3 4
    assert found[(10, 100), (0, 1)] == (1, pytest.approx(even))
    assert found[(0, 1), (0, 1)] == (4, pytest.approx(4 * even))


def test_a_pair_of_the_block_before_is_new() -> None:
    documents = [np.asarray([0, 1, 2, 3, 4, 1, 2, 3, 4])]
    counts = PairCounts.of([np.asarray([1, 2])])
    scores = score_pairs(copier(), documents, counts, context_length=4, check_causality=False, progress=False)
    assert {score.distance for score in scores} == {(0, 1)}
    assert sum(score.nll for score in scores) == pytest.approx(8 * np.log(VOCABULARY))


def test_classes_sum_to_the_loss_of_a_whole_text() -> None:
    torch.manual_seed(0)
    config = PolyTransformerConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, hidden_dropout=0.5
    )
    model = PolyTransformerForCausalLM(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    generator = np.random.default_rng(1)
    documents = [generator.integers(0, VOCABULARY, length) for length in (1, 2, 30, 47)]
    counts = PairCounts.of([generator.integers(0, VOCABULARY, 300)])
    model.train()
    scores = score_pairs(model, documents, counts, context_length=64, batch_size=2, progress=False)
    assert model.training
    nll = 0.0
    with torch.no_grad():
        for ids in documents[1:]:
            logits = model.eval()(input_ids=torch.from_numpy(ids[None, :-1])).logits[0]
            nll += nn.functional.cross_entropy(logits, torch.from_numpy(ids[1:]), reduction="sum").item()
    assert sum(score.nll for score in scores) == pytest.approx(nll, rel=1e-5)
    assert sum(score.num_tokens for score in scores) == 1 + 29 + 46
    assert len({score.train_count for score in scores}) > 1 and len({score.distance for score in scores}) > 2


def test_the_gap_is_that_of_repeated_pairs_and_of_the_rest() -> None:
    def scores(*losses: float) -> list[PairScore]:
        places: list[tuple[Bounds, Bounds]] = [((0, 1), (0, 1)), ((0, 1), (1, 16)), ((1000, None), (1, 16))]
        given = zip(places, losses, (5, 2, 3), strict=True)
        return [PairScore(count, far, nll, number) for (count, far), nll, number in given]

    gap = recall_gap(scores(10.0, 6.0, 3.0), scores(9.0, 2.0, 4.0))
    assert gap.total == pytest.approx(0.4) and gap.recall == 2.0 and gap.others == 0.0
    assert gap.share_of_tokens == 0.2 and gap.share_of_total == 1.0
    assert gap.common == pytest.approx(-1 / 3)
    assert {COMMON, FREQUENT} < {*COUNT_EDGES}  # no class may lie on both sides
    assert recall_gap(scores(10.0, 6.0, 3.0)[:2], scores(9.0, 2.0, 4.0)[:2]).common is None
    assert [score.is_recall for score in scores(1, 1, 1)] == [False, True, False]
    classes = ((10, FREQUENT), (FREQUENT, 1000), (1000, None))
    assert [PairScore(counts, (1, 16), 1.0, 1).is_recall for counts in classes] == [True, False, False]
    with pytest.raises(ValueError, match="of different tokens"):
        recall_gap(scores(1.0, 1.0, 1.0), scores(1.0, 1.0, 1.0)[:2])
    with pytest.raises(ValueError, match="no token is a repeated pair"):
        recall_gap(scores(1.0, 1.0, 1.0)[:1], scores(1.0, 1.0, 1.0)[:1])


def test_bad_input_is_refused() -> None:
    counts = PairCounts.of([np.asarray([1, 2])])
    with pytest.raises(ValueError, match="context_length must be positive; given 0"):
        score_pairs(copier(), [np.asarray([1, 2])], counts, context_length=0)
    with pytest.raises(ValueError, match="batch_size must be positive; given -1"):
        score_pairs(copier(), [np.asarray([1, 2])], counts, context_length=4, batch_size=-1)
    config = PolyTransformerConfig(vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ValueError, match="the id 4, and the model's vocabulary has 4"):
        score_pairs(PolyTransformerForCausalLM(config), [np.asarray([1, 4])], counts, context_length=4)
    with pytest.raises(ValueError, match="no document has two tokens"):
        score_pairs(copier(), [np.asarray([1])], counts, context_length=4)


def test_a_model_with_few_learned_positions_is_scored() -> None:
    """The check for causality reads no more tokens than are scored at once."""
    config = OPTConfig(
        vocab_size=9, hidden_size=8, word_embed_proj_dim=8, ffn_dim=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=5,
    )  # fmt: skip
    model, ids = OPTForCausalLM(config), np.arange(12) % 9
    scores = score_pairs(model, [ids], PairCounts.of([ids]), context_length=5, progress=False)
    assert sum(score.num_tokens for score in scores) == 11
    text, lengths = "a text of some letters", [5]
    config.vocab_size = len(ByT5Tokenizer())
    score = evaluate_language_model(OPTForCausalLM(config), ByT5Tokenizer(), [text], context_lengths=lengths)
    assert score[0].nll > 0
