"""Tasks by name."""

import numpy as np
import pytest

from hf_seqmix.data.synthetic import SEPARATION_TASKS, separation_task


@pytest.mark.parametrize("name", list(SEPARATION_TASKS))
def test_every_task_draws_rows_and_has_their_values(name):
    task = separation_task(name)
    inputs = task.draw(5, np.random.default_rng(4))
    assert inputs.shape == (5, task.num_tokens, task.width)
    values, half = task.values(inputs), task.num_tokens // 2
    assert values.shape == (5,)
    np.testing.assert_allclose(values, task.evaluate(inputs[:, :half], inputs[:, half:]))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="there is no task 'nothing'"):
        separation_task("nothing")
    with pytest.raises(ValueError, match="does not take these sizes"):
        separation_task("determinant", width=3)
