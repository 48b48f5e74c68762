"""Curves as runs have them: which count as exploded, from which update on, and from where weights were good."""

import json
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForImageClassification
from hf_seqmix.training.divergence.loss_watch import LossWatch, uninformed_loss

VOCABULARY = math.log(4096)


def noisy(levels: list[float], spread: float, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [max(level + draw.gauss(0, spread), 0.0) for level in levels]


def falling(start: float, end: float, updates: int) -> list[float]:
    return [end + (start - end) * math.exp(-5 * update / updates) for update in range(updates)]


def fires(curve: list[float], uninformed: float | None) -> int | None:
    """The update at which the curve counts as exploded; interrupted after each update."""
    watch = LossWatch(uninformed)
    for step, loss in enumerate(curve, 1):
        seen = watch.see(step, loss)
        if seen is not None:
            return step
        state = json.loads(json.dumps(watch.state()))
        watch = LossWatch(uninformed)
        watch.load(state)
    return None


BUMP = [*falling(2.5, 0.01, 100), *(0.01 + 6 * math.exp(-update / 40) for update in range(100))]
CALM = {
    "language model": (noisy(falling(8.4, 3.2, 300), 0.3), VOCABULARY),
    "harder data": (noisy([*falling(8.4, 1.0, 150), *[7.0] * 150], 0.4), VOCABULARY),
    "wild start": (noisy(falling(30.0, 4.0, 200), 1.0), VOCABULARY),
    "spike": ([*falling(8.4, 3.0, 100), *[40.0] * 4, *[3.0] * 50], VOCABULARY),
    "overconfident on new data": (BUMP, math.log(10)),
    "near zero, then guessing": (noisy([*falling(0.7, 0.001, 100), *[0.69] * 100], 0.1), math.log(2)),
    "batches of one": ([random.Random(step).choice((0.001, 0.002, 0.1, 2.5)) for step in range(400)], math.log(2)),
    "fine-tuned further": (noisy([*[0.01] * 50, *[0.2] * 100], 0.01), math.log(2)),
    "regression near zero": (noisy([*falling(1.0, 0.001, 100), *[0.5] * 60], 0.1), None),
    "falls from high": ([*falling(8.4, 3.0, 60), *falling(5000.0, 3.0, 200)], VOCABULARY),
    "an easy first batch": ([0.70, *[1.3] * 30, *[0.65] * 60], math.log(2)),
    "a first batch without mistakes": (noisy([0.02, *[1.7] * 60, *falling(1.7, 0.3, 60)], 0.6), math.log(2)),
    "a bump at first": ([5.9, *[9.2] * 40, *falling(9.2, 5.0, 60)], math.log(384)),
    "short": ([2.3, 9e9] * 9, math.log(10)),
}


@pytest.mark.parametrize("name", CALM)
def test_noise_bumps_and_losses_near_zero_are_no_explosion(name: str) -> None:
    curve, uninformed = CALM[name]
    assert fires(curve, uninformed) is None


EXPLODED = {
    "grows": ([*falling(8.4, 3.0, 100), *[3.0 * 1.2**update for update in range(60)]], VOCABULARY),
    "plateau above the start": (noisy([*falling(8.4, 3.0, 100), *[20.0] * 60], 1.0), VOCABULARY),
    "below a wild start": (noisy([*falling(30.0, 4.0, 100), *[15.0] * 60], 1.0), VOCABULARY),
    "from the first updates on": ([2.3 + update**2 for update in range(60)], math.log(10)),
    "within the first updates": (noisy([6.0, 50.0, *[600.0] * 60], 0.2), math.log(384)),
    "to a wild plateau that falls a little": (noisy([6.0, *falling(300.0, 200.0, 80)], 0.0), math.log(384)),
    "classes": (noisy([*falling(2.3, 0.01, 100), *[9.0] * 60], 2.0), math.log(10)),
    "regression": ([*falling(1.0, 0.01, 100), *[50.0] * 60], None),
}


@pytest.mark.parametrize("name", EXPLODED)
def test_explosions_are_seen_within_forty_updates(name: str) -> None:
    curve, uninformed = EXPLODED[name]
    assert 20 <= (fires(curve, uninformed) or math.inf) <= 140


def test_weights_are_good_until_the_loss_of_the_next_update_is_not() -> None:
    watch = LossWatch(VOCABULARY)
    curve = [*falling(8.4, 3.0, 100), *[50.0] * 60]
    seen = next(step for step, loss in enumerate(curve, 1) if watch.see(step, loss) is not None)
    assert seen > 110
    assert 90 <= watch.good_until() <= 99
    for losses, good in (([3.0] * 7, 6), ([100.0] * 7, 6), ([3.0] * 40, 39), ([3.0] * 40 + [50.0] * 2, 39), ([], 0)):
        watch = LossWatch(VOCABULARY)
        assert all(watch.see(step, loss) is None for step, loss in enumerate(losses, 1))
        assert watch.good_until() == good
        assert watch.is_calm is (50.0 not in losses)


def test_the_loss_of_a_guess() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1}
    assert uninformed_loss(TNNForCausalLM(TNNConfig(vocab_size=20, **sizes))) == math.log(20)
    image = {"image_size": 4, "num_channels": 1, "is_causal": False, "num_labels": 10, **sizes}
    assert uninformed_loss(TNNForImageClassification(TNNConfig(**image))) == math.log(10)
    bert = {**sizes, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 8}
    for fields, expected in (
        ({"num_labels": 3}, math.log(3)),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, math.log(2)),
        ({"num_labels": 1}, None),
        ({"num_labels": 2, "problem_type": "regression"}, None),
    ):
        assert uninformed_loss(BertForSequenceClassification(BertConfig(**bert, **fields))) == expected
    assert uninformed_loss(BertForQuestionAnswering(BertConfig(**bert))) is None
    composite: Any = SimpleNamespace(config=SimpleNamespace(), loss_type="ForCausalLM")
    assert uninformed_loss(composite) is None
