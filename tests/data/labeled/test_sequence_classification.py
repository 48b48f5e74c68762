import dataclasses

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_seqmix import TNNConfig
from hf_seqmix.data import build_tokenizer
from hf_seqmix.data.labeled import TEXTS_READ, WAS_CUT, SequenceClassification

TEXTS = ["good", "bad", "so so"]


def table(labels, **columns):
    return Dataset.from_dict({"text": TEXTS[: len(labels)], "label": labels, **columns})


@pytest.mark.parametrize(
    "labels, names, ids",
    [
        ([1, 0, 1], ("0", "1"), [1, 0, 1]),
        ([10, 2, 10], ("2", "10"), [1, 0, 1]),
        ([True, False, True], ("0", "1"), [1, 0, 1]),
        (["yes", "no", "yes"], ("no", "yes"), [1, 0, 1]),
    ],
)
def test_classes(labels, names, ids):
    task = SequenceClassification.from_data(table(labels), ["text"], ["label"])
    assert (task.problem_type, task.label_names) == ("single_label_classification", names)
    assert task.references(table(labels), "training").tolist() == ids
    assert task.config_fields()["label2id"] == {names[0]: 0, names[1]: 1}
    logits = np.eye(2)[ids]
    assert task.predictions(logits).tolist() == ids
    assert task.readable(np.array(ids)) == [names[i] for i in ids]


def test_declared_classes_keep_their_order_and_those_that_do_not_occur():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["z", "b", "a"])})
    data = Dataset.from_dict({"text": TEXTS, "label": [2, 0, 2]}, features=features)
    task = SequenceClassification.from_data(data, ["text"], ["label"])
    assert task.label_names == ("z", "b", "a")
    assert task.references(data, "training").tolist() == [2, 0, 2]


def test_regression():
    data = table([0.5, 4.0, 2.0])
    task = SequenceClassification.from_data(data, ["text"], ["label"])
    assert task.config_fields() == {"num_labels": 1, "problem_type": "regression"}
    assert task.references(data, "training").tolist() == [0.5, 4.0, 2.0]
    assert task.predictions(np.array([[1.5], [2.5]])).tolist() == [1.5, 2.5]
    forced = SequenceClassification.from_data(table([1, 2, 3]), ["text"], ["label"], "regression")
    assert forced.references(table(["1", "2.5", "3"]), "test").tolist() == [1, 2.5, 3]
    stars = SequenceClassification.from_data(
        table([1.0, 2.0, 5.0]), ["text"], ["label"], "single_label_classification"
    )
    assert stars.label_names == ("1", "2", "5")


def test_whole_floats_are_a_regression_that_is_warned_of(caplog):
    for labels, options, warned in (
        ([0.0, 1.0, 1.0], (), True),
        ([0.0, 1.0, 0.5], (), False),
        ([0, 1, 1], (), False),
        ([0.0, 1.0, 1.0], ("regression",), False),
    ):
        caplog.clear()
        SequenceClassification.from_data(table(labels), ["text"], ["label"], *options)
        assert ("the labels in column 'label' are whole numbers and floats, which make a reg" in caplog.text) == warned


def test_several_labels_in_every_form():
    expected = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    sets = table([["a", "c"], [], ["b"]])
    numbers = table([[0, 2], [], [1]])
    vectors = table([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    floats = table([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=["x", "y", "z"]))})
    declared = Dataset.from_dict({"text": TEXTS, "label": [[0, 2], [], [1]]}, features=features)
    for data in (sets, numbers, vectors, floats, declared):
        task = SequenceClassification.from_data(data, ["text"], ["label"])
        assert task.problem_type == "multi_label_classification"
        assert task.references(data, "training").tolist() == expected
    columns = Dataset.from_dict({"text": TEXTS, "x": [1, 0, 0], "y": [0, 0, 1]})
    task = SequenceClassification.from_data(columns, ["text"], ["x", "y"])
    assert task.label_names == ("x", "y")
    assert task.references(columns, "training").tolist() == [[1, 0], [0, 0], [0, 1]]
    assert task.predictions(np.array([[0.1, -0.1]])).tolist() == [[1, 0]]
    assert task.readable(np.array([[1, 1], [0, 0]])) == [["x", "y"], []]


def test_zeros_and_ones_are_told_by_the_training_data_alone():
    """Rows of two classes may look like sets of the classes 0 and 1."""
    task = SequenceClassification.from_data(table([[1, 1], [0, 1], [0, 0]]), ["text"], ["label"])
    assert task.references(table([[1, 0], [0, 1], [1, 0]]), "validation").tolist() == [[1, 0], [0, 1], [1, 0]]
    with pytest.raises(ValueError, match="validation data have 3 entries, but the training data has 2 labels"):
        task.references(table([[1, 0, 0], [0, 1, 0], [1, 0, 1]]), "validation")
    sets = SequenceClassification.from_data(table([["a"], ["b", "a"], []]), ["text"], ["label"])
    assert sets.references(table([["b", "b"], [], ["a"]]), "validation").tolist() == [[0, 1], [0, 0], [1, 0]]


def test_inputs_and_labels(tokenizer):
    data = table([[1, 0], [0, 0], [1, 1]], second=["one", "two", "three"])
    task = SequenceClassification.from_data(data, ["text", "second"], ["label"])
    encoded = task.encode(data, tokenizer, 12, "training")
    assert {"input_ids", "attention_mask", "labels"} <= set(encoded.column_names)
    assert not {"text", "second", "label"} & set(encoded.column_names)
    assert max(map(len, encoded["input_ids"])) <= 12
    assert encoded["labels"][:] == [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert encoded.features["labels"].feature.dtype.startswith("float")
    assert "good" in tokenizer.decode(encoded["input_ids"][0]).replace(" ##", "")


def test_pairs_as_two_segments(tokenizer):
    """Each text is what it is alone, with the tokens around it and cut to the length by itself."""
    data = table([1, 0, 1], second=["one", "two and more", ""])
    task = SequenceClassification.from_data(data, ["text", "second"], ["label"])
    assert task.read_by(TNNConfig()) == task
    pairs = task.read_by(TNNConfig(num_segments=2))
    encoded = pairs.encode(data, tokenizer, 6, "training")
    assert encoded["labels"][:] == [1, 0, 1]
    for column, position in (("text", 0), ("second", 1)):
        alone = SequenceClassification.from_data(data, [column], ["label"]).encode(data, tokenizer, 6, "training")
        for name in ("input_ids", "attention_mask"):
            assert [row[position] for row in encoded[name]] == alone[name][:]
    assert list(task.texts(data)) == [*TEXTS, "one", "two and more", ""]
    single = SequenceClassification.from_data(data, ["text"], ["label"])
    with pytest.raises(ValueError, match="num_segments is 2: the model reads pairs, so give two text columns"):
        single.read_by(TNNConfig(num_segments=2))


LONG = ["The café is in Paris, France.", "so so", "x" * 40]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("columns", [["text"], ["text", "second"]])
def test_the_texts_that_inputs_cover(tokenizer, columns, apart):
    """Token ids of what is said to be read are the ids that the model gets; whole texts stay as they are."""
    data = Dataset.from_dict({"text": LONG, "second": ["where is the café", "a", LONG[0]], "label": [0, 1, 0]})
    task = SequenceClassification.from_data(data, columns, ["label"])
    task = dataclasses.replace(task, num_segments=len(columns) if apart else 1)
    cut = task.encode(data, tokenizer, 14, "training", keep_texts=True)
    again = data.remove_columns(columns)
    for position, column in enumerate(columns):
        read = [texts[position] for texts in cut[TEXTS_READ]]
        assert all(text.startswith(part) for text, part in zip(data[column], read, strict=True))
        assert any(text != part for text, part in zip(data[column], read, strict=True)) or column == "second"
        again = again.add_column(column, read)
    # A letter whose second byte was cut is in the ids, and perhaps in no text.
    for row, expected in zip(task.encode(again, tokenizer, 14, "training"), cut, strict=True):
        segments = (
            zip(row["input_ids"], expected["input_ids"], strict=True)
            if task.num_segments > 1
            else [(row["input_ids"], expected["input_ids"])]
        )
        for ids, whole in segments:
            assert ids == whole or len(whole) - 2 <= len(ids) < len(whole)
    free = task.encode(data, tokenizer, 500, "training", keep_texts=True)
    assert free[TEXTS_READ][:] == [[row[column] for column in columns] for row in data]
    assert TEXTS_READ not in task.encode(data, tokenizer, 14, "training").column_names


@pytest.mark.parametrize("apart", [False, True])
def test_rows_whose_texts_are_cut_are_marked(tokenizer, apart):
    data = Dataset.from_dict({"text": ["so so", "x" * 40, "so"], "second": ["a", "a", "x" * 40], "label": [0, 1, 0]})
    task = SequenceClassification.from_data(data, ["text", "second"], ["label"])
    task = dataclasses.replace(task, num_segments=2 if apart else 1)
    for _ in range(2):  # the second time from the cache
        assert task.encode(data, tokenizer, 20, "training", mark_cut=True)[WAS_CUT][:] == [False, True, True]
    assert not any(task.encode(data, tokenizer, 100, "training", mark_cut=True)[WAS_CUT])
    assert WAS_CUT not in task.encode(data, tokenizer, 20, "training").column_names


def test_hidden_labels():
    task = SequenceClassification.from_data(table([0, 1, 1]), ["text"], ["label"])
    for hidden in (
        table([-1, -1, -1]),
        table([None, None, None]),
        table(["", "", ""]),
        table([1]).remove_columns("label"),
    ):
        assert not task.has_labels(hidden)
    assert task.has_labels(table([0, 0, 0]))


@pytest.mark.parametrize(
    "labels, options, message",
    [
        ([1, None, 0], {}, "1 rows of the training data have no label in column 'label', the first is row 1"),
        ([1, 1, 1], {}, "the one label '1'"),
        (["a", "b", "c"], {"problem_type": "regression"}, "holds no numbers"),
        ([float("nan"), 1.0, 2.0], {}, "NaN"),
        ([1, 0, 1], {"problem_type": "multi_label_classification"}, "needs lists of labels"),
        ([[1, 1], [1, 0, 0], [0]], {}, "equally long"),
        ([[2, 2], [1, 0], [0, 0]], {}, "zeros and ones"),
        (
            [1, 0, 1],
            {"problem_type": "regresion"},
            "'regresion'; allowed are single_label_classification, multi_label",
        ),
        ([float("nan"), 1.0, 2.0], {"problem_type": "single_label_classification"}, "numbers or words; given nan"),
        ([[1], [2], [3]], {"problem_type": "single_label_classification"}, r"numbers or words; given \[1\]"),
    ],
)
def test_labels_that_make_no_task(labels, options, message):
    with pytest.raises(ValueError, match=message):
        SequenceClassification.from_data(table(labels), ["text"], ["label"], **options)


def test_no_rows_and_missing_texts_are_refused(tokenizers):
    data = table([0, 1, 1])
    with pytest.raises(ValueError, match="training data has no rows"):
        SequenceClassification.from_data(data.select([]), ["text"], ["label"])
    task = SequenceClassification.from_data(data, ["text"], ["label"])
    holes = Dataset.from_dict({"text": ["a", None, None, "b"], "label": [0, 1, 0, 1]})
    with pytest.raises(ValueError, match="2 rows of the validation data have no text in column 'text'; leave these"):
        task.encode(holes, tokenizers["bytes"], 8, "validation")
    kept = holes.filter(lambda row: row["text"] is not None)
    assert task.encode(kept, tokenizers["bytes"], 8, "validation")["labels"][:] == [0, 1]
    with pytest.raises(ValueError, match="validation data has the label nan, which the training data has not"):
        task.references(Dataset.from_dict({"text": ["a"], "label": [float("nan")]}), "validation")


def test_columns_that_make_no_task(tokenizers):
    data = table([0, 1, 1], number=[1, 2, 3])
    with pytest.raises(ValueError, match=r"training data has no column 'texts'; it has 'text', 'label', 'number'"):
        SequenceClassification.from_data(data, ["texts"], ["label"])
    with pytest.raises(ValueError, match="no column 'target'"):
        SequenceClassification.from_data(data, ["text"], ["target"])
    with pytest.raises(ValueError, match="holds int, not text"):
        SequenceClassification.from_data(data, ["number"], ["label"])
    with pytest.raises(ValueError, match="give one text column, or two"):
        SequenceClassification.from_data(data, ["text"] * 3, ["label"])
    with pytest.raises(ValueError, match="zeros and ones"):
        SequenceClassification.from_data(data, ["text"], ["label", "number"])
    with pytest.raises(ValueError, match="the label -100 says that a label is to be ignored, and is no class"):
        SequenceClassification.from_data(table([0, -100, 1]), ["text"], ["label"])
    task = SequenceClassification.from_data(data, ["text"], ["label"])
    with pytest.raises(ValueError, match="validation data has the label 2, which the training data has not"):
        task.encode(table([0, 2]), tokenizers["bytes"], 8, "validation")
    with pytest.raises(ValueError, match="test data has no column 'text'"):
        task.encode(datasets.Dataset.from_dict({"words": ["a"]}), tokenizers["bytes"], 8, "test")


def test_a_value_that_is_no_text_is_named():
    def with_numbers(rows):  # as columns of JSON have them, which not every version of datasets reads
        return {**rows, "text": [int(text) if text.isdecimal() else text for text in rows["text"]]}

    mixed = Dataset.from_dict({"text": ["a", "b", "5"], "label": [0, 1, 0]})
    mixed = mixed.with_transform(with_numbers, columns=["text"], output_all_columns=True)
    with pytest.raises(ValueError, match="'text' of the training data holds int, not text, in row 2; give text"):
        SequenceClassification.from_data(mixed, ["text"], ["label"])
    task = SequenceClassification.from_data(table([0, 1, 0]), ["text"], ["label"])
    with pytest.raises(ValueError, match="'text' of the test data holds int, not text, in row 2; give text"):
        task.encode(mixed, build_tokenizer("byte"), 16, "test")


def test_what_cannot_be_told_apart_or_read_is_refused():
    texts = {"text": ["a", "b", "c"]}
    same = datasets.Dataset.from_dict({**texts, "label": [[0, 1], [1, 0], [0, 1]]})
    with pytest.raises(ValueError, match="every row of the training data has the same labels"):
        SequenceClassification.from_data(same, ["text"], ["label"])
    sets = datasets.Dataset.from_dict({**texts, "label": [["x", None], ["y"], ["x"]]})
    with pytest.raises(ValueError, match="labels must be numbers or words; given None"):
        SequenceClassification.from_data(sets, ["text"], ["label"])
    labels = datasets.Value("int64")
    train = datasets.Dataset.from_dict({**texts, "label": [0, 1, 0]})
    task = SequenceClassification.from_data(train, ["text"], ["label"])
    numbers = datasets.Dataset.from_dict({"text": [1, 2], "label": [0, 1]})
    with pytest.raises(ValueError, match="'text' of the validation data holds int, not text"):
        task.encode(numbers, build_tokenizer("byte"), 16, "validation")
    declared = train.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    hidden = declared.cast_column("label", labels).map(lambda row: {"label": -1 if row["text"] == "b" else 0})
    hidden = hidden.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    with pytest.raises(
        ValueError, match=r"1 rows of the training data have no label in column 'label', the first is row 1"
    ):
        SequenceClassification.from_data(hidden, ["text"], ["label"])


def test_special_tokens_that_a_text_spells_out_are_text():
    train = datasets.Dataset.from_dict({"text": ["a</s>b<pad>c", "d"], "label": [0, 1]})
    task, tokenizer = SequenceClassification.from_data(train, ["text"], ["label"]), build_tokenizer("byte")
    ids = task.encode(train, tokenizer, 32, "train")[0]["input_ids"]
    assert len(ids) == len("a</s>b<pad>c") + 1 and tokenizer.pad_token_id not in ids
    assert tokenizer.decode(ids[:-1]) == "a</s>b<pad>c"


def test_minus_one_is_a_label_where_the_training_data_has_it():
    task = SequenceClassification.from_data(table([-1, 1, 1]), ["text"], ["label"])
    assert task.has_labels(table([-1, -1, -1])) and not task.has_labels(table([None, None, None]))
