"""Accuracy by length, against a count by hand and by brute force."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hf_seqmix.metrics
from hf_seqmix.metrics import load_metric
from tests.test_imports import imports


def test_buckets_are_powers_of_two_and_empty_ones_are_left_out():
    result = load_metric("accuracy_by_length").compute(
        predictions=[0, 1, 1, 0, 1], references=[0, 1, 0, 0, 1], lengths=[4, 7, 5, 64, 0]
    )
    assert result == {
        "accuracy": pytest.approx(4 / 5),
        "macro_accuracy": pytest.approx((1 + 2 / 3 + 1) / 3),
        "start": [0, 4, 64],
        "end": [1, 8, 128],
        "num_examples": [1, 3, 1],
        "accuracy_by_length": pytest.approx([1.0, 2 / 3, 1.0]),
    }


@pytest.mark.parametrize("edges", [None, [5, 6, 17, 100, 400]])
@pytest.mark.parametrize("as_list", [True, False])
def test_against_brute_force(edges, as_list):
    rng = np.random.default_rng(0)
    columns = {
        "predictions": rng.integers(3, size=200),
        "references": rng.integers(3, size=200),
        "lengths": rng.integers(5, 90, size=200),
    }
    given = {name: values.tolist() if as_list else values for name, values in columns.items()}
    result = load_metric("accuracy_by_length").compute(**given, edges=edges)
    rows = list(zip(*(values.tolist() for values in columns.values()), strict=True))
    limits = edges or [0, 1, 2, 4, 8, 16, 32, 64, 128]
    expected = []
    for start, end in itertools.pairwise(limits):
        hits = [guess == answer for guess, answer, length in rows if start <= length < end]
        if hits:
            expected.append((start, end, len(hits), sum(hits) / len(hits)))
    names = ("start", "end", "num_examples", "accuracy_by_length")
    assert list(zip(*(result[name] for name in names), strict=True)) == expected
    assert result["accuracy"] == np.mean([guess == answer for guess, answer, _ in rows])
    assert result["macro_accuracy"] == pytest.approx(np.mean([accuracy for *_, accuracy in expected]))
    assert sum(result["num_examples"]) == 200


@pytest.mark.parametrize(
    "lengths, edges, message",
    [
        ([1, -2], None, "negative number, -2"),
        ([1, 2.5], None, "integer lengths"),
        ([1, 5], [0, 5], "beyond the largest, 5"),
        ([1, 5], [2, 6], "smallest length, 1"),
        ([1, 5], [0, 3, 3, 6], "must increase"),
        ([1, 5], [0], "must increase"),
        ([1, 5], [0, 2.5, 6], "edges must be integer"),
    ],
)
def test_lengths_and_edges_that_make_no_sense_raise(lengths, edges, message):
    with pytest.raises(ValueError, match=message):
        load_metric("accuracy_by_length").compute(predictions=[0, 1], references=[0, 1], lengths=lengths, edges=edges)


def test_metrics_import_nothing_of_this_package():
    for name in ("accuracy_by_length", "recall_accuracy"):
        path = Path(hf_seqmix.metrics.__file__).parent / name / f"{name}.py"
        assert not [found for found in imports(path, path.parent) if found.level or found.target[0] == "hf_seqmix"]


@pytest.mark.slow  # a process, where by default the imports are read
def test_opens_in_a_process_without_this_package_and_network(tmp_path):
    code = (
        "import socket, sys\n"
        "def refuse(*args): raise AssertionError(args)\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "import evaluate\n"
        "folder = sys.argv[1]\n"
        "given = dict(predictions=[0, 1], references=[0, 0])\n"
        "by_length = evaluate.load(folder + '/accuracy_by_length', keep_in_memory=True)\n"
        "assert by_length.compute(**given, lengths=[1, 9])['accuracy_by_length'] == [1.0, 0.0]\n"
        "recall = evaluate.load(folder + '/recall_accuracy', keep_in_memory=True)\n"
        "rows = {name: [values] for name, values in given.items()}\n"
        "assert recall.compute(**rows)['accuracy'] == 0.5\n"
        "assert 'hf_seqmix' not in sys.modules\n"
    )
    folder = str(Path(hf_seqmix.metrics.__file__).parent)
    environment = {"HF_HOME": str(tmp_path), "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", code, folder],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
