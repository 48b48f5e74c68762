"""Results of the training of a language model: its loss on validation and test text, and the curve over seconds."""

import math
from collections.abc import Mapping
from typing import Any

from hf_seqmix.training.results import Result, group_results

CHOSEN_BY = {"bits_per_byte": "bits per byte", "token_loss": "nats a token"}
"""What rates are chosen by, on the validation text: the second for masked models and text tokenized before."""

TEST_METRICS = ("test_bits_per_byte", "test_bits_per_byte_longer")
"""On the test split, of the length of training and of a longer one."""


def measure(found: Mapping[str, Any], shared: dict[str, Any]) -> list[Result]:
    """Return the results of a run's results.json; curves over the seconds of training."""
    evaluation, updates = found["evaluation"], found["num_updates"]
    metric = next(metric for metric in CHOSEN_BY if metric in evaluation)
    of_a_nat = 1.0 if metric == "token_loss" else bits_per_byte_of_a_nat(evaluation)
    each = found["seconds_per_update"]  # None where a finished run was only scored again
    seconds = updates * each if each else found["train_seconds"]
    curve = {round(seconds * step / updates, 1): loss * of_a_nat for step, loss in found["eval_loss_curve"]}
    values = {
        metric: evaluation[metric],
        **{name: found[name] for name in TEST_METRICS if name in found},
        "updates": updates,
        "train_seconds": seconds,
        "num_parameters": found["num_parameters"],
        "num_train_tokens": found["num_train_tokens"],
        "steps_per_second": found["steps_per_second"],
    }
    results = group_results(values, **shared)
    return results + group_results({metric: curve}, over="seconds", **shared)


def bits_per_byte_of_a_nat(evaluation: Mapping[str, Any]) -> float:
    """Return the bits per byte of text on which the loss of a token is one nat."""
    if evaluation["token_loss"]:
        return float(evaluation["bits_per_byte"] / evaluation["token_loss"])
    return float(evaluation["num_tokens"] / evaluation["num_bytes"] / math.log(2))
