"""What a spectrum says of ranks and errors, checked with sampled halves."""

import math

import numpy as np
import pytest
import torch

from hf_seqmix.analysis.degree.separation_rank import separation_spectrum
from hf_seqmix.data.synthetic import separation_task


def sampled(task, rows=300, seed=0):
    """Spectrum of halves drawn independently."""
    inputs = task.draw(rows, np.random.default_rng(seed))
    half = task.num_tokens // 2
    values = task.evaluate(inputs[:, None, :half], inputs[None, :, half:])
    return separation_spectrum(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("paired_product", {"num_tokens": 4, "width": 3}),
        ("determinant", {"size": 4}),
        ("inner_product_parity", {"bits": 3}),
        ("legendre_products", {"degree": 4}),
    ],
)
def test_samples_follow_the_flat_spectrum(name, sizes):
    task, spectrum = separation_task(name, **sizes), sampled(separation_task(name, **sizes), 1000)
    values = spectrum.singular_values
    assert (values > 1e-6 * values[0]).sum() == task.rank
    for rank in range(task.rank):
        assert spectrum.mse_bound(rank) == pytest.approx(task.mse_bound(rank), abs=0.08)
        assert task.mse_bound(rank) == pytest.approx(1 - rank / task.rank)


def test_wrong_arguments():
    task = separation_task("inner_product_parity")
    with pytest.raises(ValueError, match="rank is -1"):
        task.mse_bound(-1)
    for degree in (-1, math.nan):
        with pytest.raises(ValueError, match=f"degree is {degree}"):
            task.mse_bound(1, degree)
