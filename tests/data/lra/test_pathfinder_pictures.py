"""Pathfinder as rows: balanced, without repetition, the same for a seed, and read as a table of images."""

import importlib
from pathlib import Path

import datasets
import numpy as np
import pytest

from hf_seqmix.data import PathfinderSettings, pathfinder
from hf_seqmix.data.labeled import ImageClassification, load_labeled


def files(rows: datasets.Dataset) -> list[bytes]:
    return [row["bytes"] for row in rows.cast_column("image", datasets.Image(decode=False))["image"]]


@pytest.fixture(scope="module")
def splits() -> datasets.DatasetDict:
    return pathfinder({"train": 201, "test": 50}, contour_length=6)


def test_rows_are_gray_pictures_and_labels(splits: datasets.DatasetDict) -> None:
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 201, "test": 50}
    for rows in splits.values():
        assert rows.column_names == ["image", "label"]
        assert abs(2 * sum(rows["label"]) - len(rows)) <= 1
        assert all(image.size == (32, 32) and image.mode == "L" for image in rows["image"])


def test_no_picture_occurs_twice(splits: datasets.DatasetDict) -> None:
    pictures = [np.asarray(image).tobytes() for rows in splits.values() for image in rows["image"]]
    assert len(set(pictures)) == 251


def test_the_order_of_labels_is_random(splits: datasets.DatasetDict) -> None:
    labels = np.array(splits["train"]["label"])
    assert 30 < labels[:200:2].sum() < 70


def test_rows_follow_from_the_seed_and_the_split_alone(splits: datasets.DatasetDict) -> None:
    again = pathfinder({"test": 8, "validation": 8}, contour_length=6)
    assert files(again["test"]) == files(splits["test"])[:8]
    assert again["test"]["label"] == splits["test"]["label"][:8]
    assert not set(files(again["validation"])) & set(files(splits["test"]))
    other = pathfinder({"test": 8}, contour_length=6, seed=1)
    assert not set(files(other["test"])) & set(files(splits["test"]))


def test_repeated_pictures_are_left_out_and_classes_stay_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(pathfinder.__module__)
    whole, drawn = module.encode_png, [0]

    def mostly_one(picture: np.ndarray) -> bytes:
        drawn[0] += 1
        return whole(picture if drawn[0] % 8 in (0, 3, 6) else np.zeros_like(picture))

    monkeypatch.setattr(module, "encode_png", mostly_one)
    rows = pathfinder({"train": 61}, contour_length=6)["train"]
    assert len(set(files(rows))) == 61
    assert sum(rows["label"]) in (30, 31)


def test_processes_draw_the_same_pictures(splits: datasets.DatasetDict) -> None:
    assert files(pathfinder({"train": 201}, contour_length=6, num_proc=2)["train"]) == files(splits["train"])


def test_a_table_of_the_rows_poses_the_task(splits: datasets.DatasetDict, tmp_path: Path) -> None:
    splits["train"].to_parquet(tmp_path / "train.parquet")
    read = load_labeled({"train": str(tmp_path / "train.parquet")}, cache_dir=str(tmp_path))["train"]
    task = ImageClassification.from_data(read, "image", ["label"])
    encoded = task.encode(read, "train")
    assert encoded["labels"] == splits["train"]["label"]
    np.testing.assert_array_equal(encoded[7]["image"], splits["train"][7]["image"])


def test_path_x() -> None:
    rows = pathfinder({"test": 3}, settings=PathfinderSettings.published(128, 6))["test"]
    assert [image.size for image in rows["image"]] == [(128, 128)] * 3


def test_errors() -> None:
    with pytest.raises(ValueError, match="names no split"):
        pathfinder({})
    with pytest.raises(ValueError, match=r"num_rows\['test'\] is 0"):
        pathfinder({"train": 10, "test": 0})
    with pytest.raises(ValueError, match="no published settings"):
        pathfinder({"train": 10}, image_size=33)
