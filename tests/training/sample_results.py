"""A run and results of it, for the tests of runs, results, their files and their tables."""

from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

RUN = Run("listops", {"model_type": "tnn"}, {"max_length": 66}, {"learning_rate": 3e-3, "betas": (0.9, 0.98)}, seed=1)


def result(value=0.5, **more):
    fields = {"task": "listops", "model": "tnn", "metric": "accuracy", "seed": 0}
    return Result(value=value, **{**fields, **more})
