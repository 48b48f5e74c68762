"""How much of a task of the Long Range Arena is done at each size, and how models train in minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("tnn", "ski_tnn", "fd_tnn", "ipa", "poly2", "poly3", "hybrid", "attention", "library", "short_conv")
CONTROL, LIBRARY = "short_conv", "library"
TOEPLITZ = ("tnn", "ski_tnn", "fd_tnn")
BATCH_NORMED = (*TOEPLITZ, CONTROL)


@dataclass(frozen=True)
class Size:
    """How much of a task is done; None leaves the recipe's.

    Attributes:
        data: settings of its generator, `rows` among them; empty for data that is not generated.
        recipe: what takes the place of settings of the task's recipe.
        batch: examples of an update, and of an evaluation's batch.
        updates: of a run.
        evaluations: of a run, on validation data.
        learning_rates: of the families with batch norms (the Toeplitz ones and their control), and of the others.
        families: family -> what takes the place of settings of that family alone.
        seconds: of a run, in place of `updates`; the run is then laid out to learn in little time, see `LEARNING`.
    """

    data: Mapping[str, Any]
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batch: int | None = None
    updates: int | None = None
    evaluations: int = 4
    learning_rates: tuple[float, float] | None = None
    families: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float | None = None


def _rows(train: int, held_out: int) -> dict[str, int]:
    return {"train": train, "validation": held_out, "test": held_out}


def _recipe(overrides: Mapping[str, Any] | None = None, /, **data: Any) -> dict[str, dict[str, Any]]:
    return {"model": {"config_overrides": dict(overrides or {})}, "data": data}


TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
FEWER_LAYERS = {"num_hidden_layers": 4}
UNPLACED = {"position_embedding_type": "none"}
LAST = {"classifier_pooling": "last"}  # the bracket that closes the whole list
WORDS: dict[str, Any] = {"baseline": "bag-of-words"}
RATES = (3e-3, 1e-3)  # the Toeplitz ones' were tried on ListOps, 300 updates, seed 2222: 3e-3 before 2e-3 and 1e-3
SIZES: dict[str, dict[str, Size]] = {
    "listops": {
        "fast": Size(
            {"rows": _rows(1000, 100), "min_length": 16, "max_length": 65},
            _recipe(TINY, max_length=66),
            batch=16,
            updates=12,
            evaluations=8,
            learning_rates=RATES,
        ),
        "reduced": Size(
            {"rows": _rows(100_000, 2000), "min_length": 16, "max_length": 65},
            # Lists of a batch are of about one length: half of the places would be padding.
            {**_recipe(LAST, max_length=66), "training": {"train_sampling_strategy": "group_by_length"}},
            batch=64,
            evaluations=8,
            families={
                "hybrid": _recipe({**UNPLACED, "num_hidden_layers": 6, "norm_type": "simple_rms"}),
                "ski_tnn": _recipe({"num_inducing_points": 16}),
            },
            seconds=1800,
        ),
        "full": Size({"rows": _rows(96_000, 2000)}),
    },
    "text": {
        "fast": Size({}, _recipe(TINY, max_length=256, max_train_samples=500, max_eval_samples=100), 16, 12),
        "reduced": Size(
            {},
            {
                **_recipe(
                    {"hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 192},
                    max_length=512,
                    max_eval_samples=2000,
                    **WORDS,
                ),
                "training": {"muon_learning_rate": 0.01},
            },
            batch=32,
            evaluations=8,
            families={
                **dict.fromkeys(BATCH_NORMED, _recipe(UNPLACED)),
                "hybrid": _recipe({**UNPLACED, "mixer_types": ["tnn", "attention", "tnn"]}),
            },
            seconds=3600,
        ),
        "full": Size({}, _recipe(**WORDS)),
    },
    "retrieval": {
        "fast": Size(
            {"rows": _rows(200, 40), "length": 256}, _recipe(TINY, max_length=256), 16, 12, learning_rates=RATES
        ),
        "reduced": Size(
            {"rows": _rows(40_000, 2000), "length": 500}, _recipe(max_length=500, **WORDS), batch=16, seconds=1800
        ),
        "full": Size({"rows": _rows(20_000, 2000), "length": 4000}, _recipe(**WORDS)),
    },
    "image": {
        "fast": Size({}, _recipe(TINY, max_train_samples=200, max_eval_samples=40), 8, 4, 2, learning_rates=RATES),
        "reduced": Size(
            {},
            # Single pixels are four times as many tokens: eight images a second of one thread, at the full width.
            _recipe(
                {"num_hidden_layers": 4, "hidden_size": 96, "intermediate_size": 192, "patch_size": 2},
                max_eval_samples=2000,
            ),
            batch=32,
            evaluations=8,
            # Half of the 16 positions along an axis.
            families={"ski_tnn": _recipe({"num_inducing_points": 8})},
            seconds=1800,
        ),
        "full": Size({}),
    },
    "pathfinder": {
        "fast": Size({"rows": _rows(200, 40)}, _recipe(TINY), 8, 4, 2),
        "reduced": Size(
            {"rows": _rows(10_000, 500)},
            _recipe(FEWER_LAYERS),
            batch=16,
            evaluations=8,
            families={"ski_tnn": _recipe({"num_inducing_points": 16})},
            seconds=1800,
        ),
        "full": Size({"rows": _rows(160_000, 20_000)}),
    },
    "path-x": {
        "fast": Size({"rows": _rows(8, 4), "image_size": 128}, _recipe(TINY), 2, 2, 1),
        "reduced": Size({"rows": _rows(1000, 100), "image_size": 128}, _recipe(FEWER_LAYERS), 4, 100, 2),
        "full": Size({"rows": _rows(160_000, 20_000), "image_size": 128}),
    },
}
LEARNING: dict[str, dict[str, Any]] = {
    "model": {"config_overrides": {"zero_init_outputs": True, "short_conv_taps": 5, "short_conv_init": "uniform"}},
    "training": {
        "bf16": "auto",
        "optim": "muon",
        "muon_learning_rate": 0.02,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.1,
        "weight_decay_on_all_parameters": False,
        "max_grad_norm": 1.0,
    },
}
"""What takes the place of the papers' settings, which are laid out for 50,000 updates, where there are minutes."""
LEARNING_BATCH_NORMED = {"model": {"config_overrides": {"norm_type": "simple_rms", "norm_eps": 1e-6}}}
"""And of batch norms, which regularize where there are many passes over the data."""

FULL_UPDATES = {
    ("tnn", "listops"): 30_000,
    ("tnn", "text"): 22_500,
    ("tnn", "retrieval"): 45_960,
    ("tnn", "image"): 45_000,
}
"""Updates of the recipes that count epochs, on the benchmark's data; the others make 50,000."""
