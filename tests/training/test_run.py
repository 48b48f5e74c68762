import argparse
import json
import math
from pathlib import Path

import pytest

from hf_seqmix.training.run import Run, run_of
from tests.training.sample_results import RUN


def test_run_is_read_back_with_its_digest():
    again = Run.from_json(json.loads(json.dumps(RUN.to_json())))
    assert again == RUN
    assert again.digest == RUN.digest
    assert len(RUN.digest) == 12
    assert Run("listops", {"model_type": "tnn"}, seed=1).digest != RUN.digest


@pytest.mark.parametrize("value", [{1, 2}, math.nan, object()])
def test_run_of_what_json_has_not_is_refused(value):
    with pytest.raises(ValueError, match="training of a run, rate"):
        Run("listops", training={"rate": value})


def test_paths_among_arguments_are_portable(tmp_path):
    arguments = argparse.Namespace(
        models=[tmp_path / "a", Path("runs/b")], tokens=[4, 8], output_dir=tmp_path, rate=None
    )
    run = run_of(arguments, "order", lengths=[2])
    assert run.model == {"models": ["DATA/a", "runs/b"]}
    assert run.data == {"tokens": [4, 8], "lengths": [2]} and run.training == {}
