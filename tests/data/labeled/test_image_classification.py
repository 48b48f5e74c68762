import io
import re
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from hf_seqmix.data.labeled import ImageClassification
from hf_seqmix.models.images.processing import SeqMixImageProcessor


def picture(level, size=(5, 3)):
    buffer = io.BytesIO()
    Image.new("L", size, level).save(buffer, "PNG")
    return {"bytes": buffer.getvalue()}


def rows(labels, images=None):
    return Dataset.from_list(
        [{"picture": (images or {}).get(i, picture(10 * i)), "label": label} for i, label in enumerate(labels)]
    )


def test_encoded_images_are_decoded_one_by_one():
    data = rows(["cat", "dog", "cat"])
    task = ImageClassification.from_data(data, "picture", ["label"])
    assert task.label_names == ("cat", "dog") and task.problem_type == "single_label_classification"
    encoded = task.encode(data, "training")
    assert encoded.column_names == ["image", "labels"] and encoded["labels"][:] == [0, 1, 0]
    assert [np.asarray(row["image"]).tolist() for row in encoded] == [[[10 * i] * 5] * 3 for i in range(3)]


def test_paths_and_declared_features(tmp_path):
    paths = []
    for level in (0, 200):
        paths.append(str(tmp_path / f"{level}.png"))
        Image.new("L", (4, 4), level).save(paths[-1])
    data = Dataset.from_dict({"image": paths, "label": [0.5, 1.5]})
    for split in (data, data.cast_column("image", datasets.Image())):
        task = ImageClassification.from_data(split, "image", ["label"])
        assert task.problem_type == "regression"
        encoded = task.encode(split, "training")
        assert np.asarray(encoded[1]["image"]).mean() == 200 and encoded[1]["labels"] == 1.5


def test_hidden_labels():
    data = rows([0, 1])
    task = ImageClassification.from_data(data, "picture", ["label"])
    assert task.encode(data.remove_columns("label"), "test").column_names == ["image"]
    assert not task.has_labels(data.remove_columns("label"))


def test_columns_that_hold_no_images(tmp_path):
    with pytest.raises(ValueError, match=r"training data has no column 'image'; it has 'picture', 'label'"):
        ImageClassification.from_data(rows([0, 1]), "image", ["label"])
    with pytest.raises(ValueError, match="'picture' of the training data holds no images"):
        ImageClassification.from_data(rows([0, 1], {0: {"bytes": b"no picture"}}), "picture", ["label"])
    ragged = [[[1], [2, 3]]] * 2
    for values in ([3, 4], [["a"], ["b"]], ragged, [[], []], [str(tmp_path / "none.png")] * 2):
        data = Dataset.from_dict({"picture": values, "label": [0, 1]})
        with pytest.raises(ValueError, match=f"holds no images: .*relative to the table .*, else to {Path.cwd()}"):
            ImageClassification.from_data(data, "picture", ["label"])
    task = ImageClassification.from_data(rows([0, 1]), "picture", ["label"])
    with pytest.raises(ValueError, match="1 rows of the test data have no image in column 'picture'"):
        task.encode(Dataset.from_list([{"picture": picture(1)}, {"picture": None}]), "test")


def test_a_damaged_picture_that_claims_to_be_huge_is_named():
    content = io.BytesIO()
    Image.new("L", (4, 4)).save(content, "BMP")
    huge = bytearray(content.getvalue())
    huge[18:26] = (30_000).to_bytes(4, "little") * 2  # width and height
    task = ImageClassification.from_data(rows([0, 1]), "picture", ["label"])
    with pytest.raises(ValueError, match=r"image 1 of the test data .* cannot be read: its bytes are no whole image"):
        task.encode(rows([0, 1], {1: {"bytes": bytes(huge)}}), "test")


def test_rows_without_images_may_be_filtered_out():
    data = Dataset.from_list([{"picture": picture(1), "label": 0}, {"picture": None, "label": 1}] * 2)
    data = data.add_column("id", [0, 1, 2, 3]).map(lambda row: {"label": row["id"] % 3})
    kept = data.filter(lambda row: row["id"] % 2 == 0)
    task = ImageClassification.from_data(kept, "picture", ["label"])
    assert len(task.encode(kept, "training")) == 2


def test_an_image_that_cannot_be_read_is_named_before_training(tmp_path):
    task = ImageClassification.from_data(rows([0, 1]), "picture", ["label"])
    whole = picture(9)["bytes"]
    for content, fault in ((whole[:60], "its bytes are no whole image"), (b"", "it is empty")):
        with pytest.raises(
            ValueError, match=rf"image 1 of the training data \(.*\) cannot be read: {fault}\. Mend it"
        ):
            task.encode(rows([0, 1], {1: {"bytes": content}}), "training")
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    data = Dataset.from_dict({"picture": [str(tmp_path / "a.png"), str(tmp_path / "b.png")], "label": [0, 1]})
    with pytest.raises(ValueError, match=r"image 1 of the test data .* No such file or directory: .*b\.png"):
        task.encode(data, "test")


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_jpeg_that_ends_too_early_is_named_before_training(progressive, as_file, tmp_path):
    noise = Image.effect_noise((32, 32), 100)
    written = io.BytesIO()
    noise.save(written, "JPEG", progressive=progressive, exif=b"Exif\0\0\xff\xd8\xff\xda\xff\xd9")
    whole = written.getvalue()
    task = ImageClassification.from_data(rows([0, 1]), "picture", ["label"])

    def encode(content):
        (tmp_path / "a.jpg").write_bytes(content)
        stored = {"bytes": None, "path": str(tmp_path / "a.jpg")} if as_file else {"bytes": content}
        return task.encode(rows([0, 1], {1: stored}), "training")

    for content in (whole, whole + b"\0\0 behind the end"):
        assert len(encode(content)) == 2
    for length in range(whole.index(b"\xff\xda", 60) + 20, len(whole) - 1, 50):
        with pytest.raises(ValueError, match=r"image 1 of the training data .* ends before its last line\. Mend it"):
            encode(whole[:length])


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("kind", ["BMP", "GIF", "TIFF", "WEBP", "PNG", "PPM"])
def test_an_image_of_any_kind_that_ends_too_early_is_named_before_training(kind, as_file, tmp_path):
    written = io.BytesIO()
    Image.effect_noise((32, 32), 100).save(written, kind)
    whole, path = written.getvalue(), tmp_path / f"a.{kind.lower()}"
    task = ImageClassification.from_data(rows([0, 1]), "picture", ["label"])

    def encode(content):
        path.write_bytes(content)
        stored = {"bytes": None, "path": str(path)} if as_file else {"bytes": content}
        return task.encode(rows([0, 1], {1: stored}), "training")

    assert len(encode(whole)) == 2
    fault = re.escape(str(path)) if as_file else "its bytes are no whole image"
    for share in (0.3, 0.6, 0.9):
        with pytest.raises(
            ValueError, match=rf"image 1 of the training data .* cannot be read: .*{fault}.*\. Mend it"
        ):
            encode(whole[: int(len(whole) * share)])


def test_the_first_image_of_a_folder_is_named_too(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(picture(9, (32, 32))["bytes"][:50])
    data = rows([0, 1], {0: {"bytes": None, "path": str(path)}}).cast_column("picture", datasets.Image())
    with pytest.raises(ValueError, match=rf"image 0 of the training data .* cannot be read: {re.escape(str(path))}: "):
        ImageClassification.from_data(data, "picture", ["label"])


@pytest.mark.parametrize("as_file", [False, True])
def test_pictures_that_the_processor_refuses_are_named_before_training(as_file, tmp_path):
    processor = SeqMixImageProcessor(size={"height": 3, "width": 5}, num_channels=1)
    task = ImageClassification.from_data(rows([0, 1]), "picture", ["label"])

    def encode(values, given):
        written, path = io.BytesIO(), tmp_path / "a.tiff"
        Image.fromarray(values).save(written, "TIFF")
        path.write_bytes(written.getvalue())
        stored = {"bytes": None, "path": str(path)} if as_file else {"bytes": written.getvalue()}
        return task.encode(rows([0, 1], {1: stored}), "training", given)

    ramp = np.linspace(0, 1, 15, dtype=np.float32).reshape(3, 5)
    for values in (ramp * 255, (ramp * 255).astype(np.int32), (ramp * 60000).astype(np.uint16)):
        assert len(encode(values, processor)) == 2
    where = rf" \({re.escape(str(tmp_path / 'a.tiff'))}\)" if as_file else ""
    for values, fault in (
        (ramp, "a picture of mode 'F' has values up to 1, .*"),
        ((ramp * 60000).astype(np.int32), "a picture of mode 'I' has values from 0 to 60000; .*"),
    ):
        with pytest.raises(
            ValueError, match=rf"image 1 of the training data .* cannot be used{where}: {fault}\. Mend"
        ):
            encode(values, processor)
        assert len(encode(values, None)) == 2  # whatever reads them may take them


def test_declared_classes_without_rows_to_train_on():
    named = datasets.ClassLabel(names=["cat", "dog", "wolf"])
    train, test = rows([0, 1]).cast_column("label", named), rows([1, 2, -1]).cast_column("label", named)
    task = ImageClassification.from_data(train, "picture", ["label"])
    assert task.label_names == ("cat", "dog", "wolf")
    assert task.untrained(train, test) == ["wolf"] and task.untrained(train, train) == []
    assert task.untrained(train, test.remove_columns("label")) == []
    lists = datasets.List(named)
    several = [rows(labels).cast_column("label", lists) for labels in ([[0], [0, 1]], [[1, 2], []])]
    assert ImageClassification.from_data(several[0], "picture", ["label"]).untrained(*several) == ["wolf"]
    plain = rows(["cat", "dog"])
    assert ImageClassification.from_data(plain, "picture", ["label"]).untrained(plain, rows(["wolf"])) == []
