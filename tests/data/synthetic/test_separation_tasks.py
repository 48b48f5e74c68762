"""Tasks by name, and as data sets."""

import numpy as np
import pytest

from hf_seqmix.data.synthetic import SEPARATION_TASKS, separation_dataset, separation_task


@pytest.mark.parametrize("name", list(SEPARATION_TASKS))
def test_every_task_is_a_dataset(name):
    task = separation_task(name)
    rows = separation_dataset(task, {"train": 5, "test": 3}, seed=4)
    assert {split: len(part) for split, part in rows.items()} == {"train": 5, "test": 3}
    inputs = np.array(rows["train"]["inputs"])
    assert inputs.shape == (5, task.num_tokens, task.width)
    np.testing.assert_allclose(task.values(inputs), rows["train"]["target"], rtol=1e-4, atol=1e-5)
    assert task.name in rows["test"].info.description
    assert (str(task.rank) if task.rank else "not known") in rows["test"].info.description
    again = separation_dataset(task, {"train": 5, "test": 3}, seed=4)
    assert again["test"]["target"] == rows["test"]["target"]
    assert np.abs(np.array(rows["test"]["inputs"]) - inputs[:3]).max() > 0


def test_wrong_arguments():
    with pytest.raises(ValueError, match="there is no task 'nothing'"):
        separation_task("nothing")
    with pytest.raises(ValueError, match="does not take these sizes"):
        separation_task("determinant", width=3)
    with pytest.raises(ValueError, match="num_rows is"):
        separation_dataset(separation_task("parity"), {"train": 0})
