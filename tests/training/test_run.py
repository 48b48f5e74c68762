import json
import math

import pytest

from hf_seqmix.training.run import Run
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
