"""Pictures that tables of the Long Range Arena name: others at the same paths are other data."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import datasets
import pytest
from PIL import Image


@pytest.fixture
def data(script_module: Callable[[str], ModuleType]) -> ModuleType:
    return script_module("benchmarks.lra.data")


def draw(folder: Path, gray: int) -> Path:
    path = folder / "pictures" / "0.png"
    path.parent.mkdir(exist_ok=True)
    Image.new("L", (4, 4), gray).save(path)
    return path


@pytest.mark.parametrize("task", ["pathfinder", "path-x"])
def test_other_pictures_of_the_same_paths_are_other_data(data: ModuleType, tmp_path: Path, task: str) -> None:
    draw(tmp_path, 0)
    (tmp_path / "train.csv").write_text("image,label\npictures/0.png,0\npictures/0.png,1\n")
    (tmp_path / "test.jsonl").write_text('{"image": "https://a.org/0.png", "label": 0}\n')

    def contents() -> dict[str, str]:
        return dict(data.prepare_task(task, tmp_path, tmp_path / "out", {}).contents)

    first = contents()
    assert list(first) == ["train", "test", "train pictures", "test pictures"] and contents() == first
    draw(tmp_path, 1)
    second = contents()
    assert [name for name in first if first[name] != second[name]] == ["train pictures"]


@pytest.mark.parametrize("held", [True, False])
def test_tables_that_hold_pictures_are_known_by_themselves_alone(data: ModuleType, tmp_path: Path, held: bool) -> None:
    path = draw(tmp_path, 0)
    stored = {"bytes": path.read_bytes() if held else None, "path": str(path)}
    files = {split: tmp_path / f"{split}.parquet" for split in ("train", "test")}
    for file in files.values():
        datasets.Dataset.from_dict({"img": [stored] * 2, "label": [0, 1]}).to_parquet(file)
    found = data.prepare_task("pathfinder", tmp_path, tmp_path, {}).contents
    assert list(found) == list(files) + ([] if held else [f"{split} pictures" for split in files])
