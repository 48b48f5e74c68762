"""Functions of known separation rank, checked with exact ranks, numerical spectra and by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

from hf_seqmix.analysis.degree.modular_rank import modular_rank
from hf_seqmix.analysis.degree.separation_rank import exact_separation_rank, separation_spectrum
from hf_seqmix.data.synthetic import separation_task


def exact_rank(task, limit=40):
    half = task.num_tokens // 2

    def pairs(a, b):
        halves = (x.reshape(*x.shape[:-1], half, task.width) for x in (a, b))
        values = np.asarray(task.evaluate(*halves))
        return values if values.dtype == np.int64 else np.rint(values).astype(np.int64)

    found = exact_separation_rank(pairs, half * task.width, half * task.width, limit=limit, start=32)
    assert found.is_complete
    return found.rank


@pytest.mark.parametrize(("width", "power", "rank"), [(3, 2, 6), (4, 3, 20), (5, 4, 70), (3, 6, 28)])
def test_powers_of_inner_products(width, power, rank):
    task = separation_task("inner_product_power", width=width, power=power)
    assert exact_rank(task, limit=10) == task.rank == rank


@pytest.mark.parametrize(("num_tokens", "width", "rank"), [(6, 2, 8), (6, 3, 27), (10, 2, 32), (4, 5, 25)])
def test_paired_products_and_their_controls(num_tokens, width, rank):
    task = separation_task("paired_product", num_tokens=num_tokens, width=width)
    assert exact_rank(task) == task.rank == rank
    control = separation_task("paired_product_control", num_tokens=num_tokens, width=width)
    assert exact_rank(control) == control.rank == (width if num_tokens % 4 else 1)
    # The same polynomial of the same inputs in another order.
    inputs = task.draw(50, np.random.default_rng(0))
    order = np.arange(num_tokens).reshape(2, -1).T.ravel()  # pairs (i, i + N / 2) side by side
    np.testing.assert_allclose(control.values(inputs[:, order]), task.values(inputs))
    np.testing.assert_allclose((inputs**2).sum(axis=-1), math.sqrt(width))
    assert np.square(task.values(task.draw(100_000, np.random.default_rng(1)))).mean() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("degree", [1, 4, 9])
def test_legendre_products(degree):
    task = separation_task("legendre_products", degree=degree)
    nodes, weights = np.polynomial.legendre.leggauss(degree + 2)  # exact to the degree 2 n + 3 in each number
    halves = nodes[:, None, None]
    values, roots = task.evaluate(halves[:, None], halves[None]), np.sqrt(weights / 2)
    singular = np.linalg.svd(roots[:, None] * values * roots, compute_uv=False)
    np.testing.assert_allclose(singular[: degree + 1], (degree + 1) ** -0.5)
    assert singular[degree + 1] < 1e-12 and task.rank == degree + 1

    def inner(i, j):
        return float(np.sum(np.outer(weights, weights) / 4 * values * np.outer(nodes**i, nodes**j)))

    lower = [inner(i, j) for i in range(degree) for j in range(degree - i)]
    assert np.abs(lower).max() < 1e-14 < 1e-5 < abs(inner(0, degree))
    # So no polynomial of lower degree is better than the mean, whatever its rank.
    assert [task.mse_bound(degree, of) for of in (degree - 1, degree)] == [1, pytest.approx(1 / (degree + 1))]
    assert task.mse_bound(degree + 1) == task.mse_bound(degree + 1, degree) == 0
    inputs = task.draw(1000, np.random.default_rng(0))
    assert inputs.shape == (1000, 2, 1) and -1 < inputs.min() < -0.98 < 0.98 < inputs.max() < 1


@pytest.mark.parametrize(("size", "rank"), [(2, 2), (4, 6), (6, 20)])
def test_determinants(size, rank):
    task = separation_task("determinant", size=size)
    assert exact_rank(task, limit=20) == task.rank == rank
    inputs = task.draw(5, np.random.default_rng(0))
    np.testing.assert_allclose(task.values(inputs), np.linalg.det(inputs))


@pytest.mark.parametrize("bits", [1, 3, 5])
def test_parity_of_inner_products(bits):
    task = separation_task("inner_product_parity", bits=bits)
    halves = np.array(list(itertools.product((0, 1), repeat=bits)))[:, None, :]
    matrix = task.evaluate(halves[:, None], halves[None, :])
    assert modular_rank(np.rint(matrix).astype(np.int64)) == task.rank == 2**bits
    squares = separation_spectrum(torch.tensor(matrix)).singular_values.square()
    np.testing.assert_allclose(squares / squares.sum(), task.spectrum, atol=1e-12)


@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 3.0])
def test_gaussian_coupling_has_mehlers_spectrum(bandwidth):
    task = separation_task("gaussian_coupling", bandwidth=bandwidth)
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    root = np.sqrt(weights / weights.sum())
    half = nodes[:, None, None]
    matrix = root[:, None] * task.evaluate(half[:, None], half[None, :]) * root
    squares = np.linalg.svd(matrix, compute_uv=False) ** 2
    assert task.rank is None
    np.testing.assert_allclose(squares[:6] / squares.sum(), task.spectrum[:6], rtol=1e-6, atol=1e-9)
    assert sum(task.spectrum) == pytest.approx(1)
    plane = separation_task("gaussian_coupling", width=2, bandwidth=bandwidth)
    np.testing.assert_allclose(plane.spectrum[:3], np.outer(task.spectrum, task.spectrum)[[0, 0, 1], [0, 1, 0]])


def test_nearest_neighbor():
    task = separation_task("nearest_neighbor", num_points=3, width=1)
    inputs = np.array([[[0.9], [0.0], [0.0], [3.0], [-1.0], [1.0]]])
    assert task.values(inputs).tolist() == [2.0]
    assert task.rank is None
    assert task.spectrum is None
    assert task.mse_bound(1) == 0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("inner_product_parity", {"bits": 30}),
        ("paired_product", {"num_tokens": 20, "width": 8}),
        ("determinant", {"size": 30}),
    ],
)
def test_spectra_that_fill_the_memory_are_refused(name, fields):
    with pytest.raises(ValueError, match="make it smaller"):
        separation_task(name, **fields)


def test_sizes_out_of_range():
    with pytest.raises(ValueError, match="num_tokens is 3"):
        separation_task("paired_product", num_tokens=3)
    with pytest.raises(ValueError, match="size is 3"):
        separation_task("determinant", size=3)
    with pytest.raises(ValueError, match="bits is 0"):
        separation_task("inner_product_parity", bits=0)
    with pytest.raises(ValueError, match="degree is 0"):
        separation_task("legendre_products", degree=0)
    with pytest.raises(ValueError, match="bandwidth is 0"):
        separation_task("gaussian_coupling", bandwidth=0)
