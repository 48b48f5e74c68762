import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_seqmix.data import build_tokenizer
from hf_seqmix.data.labeled import WAS_CUT, TokenClassification

WORDS = [["The", "café", "in", "Paris"], ["not"], []]
TAGS = [["O", "O", "O", "LOC"], ["O"], []]


def table(words=WORDS, tags=TAGS):
    return Dataset.from_dict({"tokens": words, "tags": tags})


def test_label_sits_on_the_last_token_of_each_word(tokenizer):
    task = TokenClassification.from_data(table(), "tokens", "tags")
    assert task.label_names == ("LOC", "O")
    encoded = task.encode(table(), tokenizer, 40, "training")
    for words, tags, row in zip(WORDS, TAGS, encoded, strict=True):
        assert len(row["labels"]) == len(row["input_ids"]) == len(row["attention_mask"]) >= 1
        assert row["kept"] == list(range(len(words)))
        ends = [i for i, label in enumerate(row["labels"]) if label != -100]
        assert [task.label_names[row["labels"][i]] for i in ends] == tags
        for word, end in zip(words, ends, strict=True):
            text = tokenizer.decode(row["input_ids"][: end + 1]).replace("##", "").replace(" ", "").lower()
            assert text.endswith(word.lower())


def test_words_beyond_the_length_are_left_out_and_count_as_label_0(tokenizers):
    task = TokenClassification.from_data(table(), "tokens", "tags")
    encoded = task.encode(table(), tokenizers["bytes"], 12, "training")  # "The café" is 9 bytes, " in" 3
    assert encoded["kept"][0] == [0, 1] and len(encoded["input_ids"][0]) == 10
    assert task.encode(table(), tokenizers["bytes"], 13, "training")["kept"][0] == [0, 1, 2]  # which just fits
    labels = np.full((3, 10), -100)
    for row, own in zip(labels, encoded["labels"], strict=True):
        row[: len(own)] = own
    output = np.ones((3, 10), dtype=int)
    assert task.predictions(output, labels, encoded["kept"], [4, 1, 0]) == [[1, 1, 0, 0], [1], []]
    assert task.readable([[1, 0]]) == [["O", "LOC"]]


def test_declared_labels_and_references():
    features = Features({"tokens": List(Value("string")), "tags": List(ClassLabel(names=["O", "LOC"]))})
    data = Dataset.from_dict({"tokens": WORDS, "tags": [[0, 0, 0, 1], [0], []]}, features=features)
    task = TokenClassification.from_data(data, "tokens", "tags")
    assert task.label_names == ("O", "LOC")
    assert task.references(data, "training") == [[0, 0, 0, 1], [0], []]
    assert task.config_fields()["id2label"] == {0: "O", 1: "LOC"}


@pytest.mark.parametrize("feature", [Value("int64"), ClassLabel(names=["0", "1"])])
def test_words_of_the_label_minus_100_have_no_label(tokenizers, feature):
    tags = [[-100, 0, 1, -100], [1], []]
    data = table(tags=tags).cast_column("tags", List(feature))
    task = TokenClassification.from_data(data, "tokens", "tags")
    assert task.label_names == ("0", "1")
    assert task.references(data, "training") == tags
    encoded = task.encode(data, tokenizers["bytes"], 40, "training")
    assert encoded["kept"][:] == [[1, 2], [0], []] and encoded[WAS_CUT][:] == [False] * 3
    assert [label for label in encoded["labels"][0] if label != -100] == [0, 1]
    assert task.predictions(np.ones((1, 40), dtype=int), np.array([[0, 1] + [-100] * 38]), [[1, 2]], [4]) == [
        [0, 1, 1, 0]
    ]
    assert task.readable(tags) == [[None, "0", "1", None], ["1"], []]
    assert task.encode(data, tokenizers["bytes"], 12, "training")[WAS_CUT][0]
    assert not task.has_labels(table(tags=[[-100] * 4, [-100], []]))


def test_split_without_labels(tokenizers):
    task = TokenClassification.from_data(table(), "tokens", "tags")
    hidden = table().remove_columns("tags")
    assert not task.has_labels(hidden)
    encoded = task.encode(hidden, tokenizers["bytes"], 40, "test")
    assert sum(label != -100 for label in encoded["labels"][0]) == 4


def test_bad_data(tokenizers):
    with pytest.raises(ValueError, match="must hold lists"):
        TokenClassification.from_data(Dataset.from_dict({"tokens": ["a b"], "tags": ["O O"]}), "tokens", "tags")
    with pytest.raises(ValueError, match="row 1 of the training data has 1 words and 2 labels"):
        TokenClassification.from_data(table([["a"], ["b"]], [["O"], ["O", "X"]]), "tokens", "tags")
    with pytest.raises(ValueError, match="no column 'words'"):
        TokenClassification.from_data(table(), "words", "tags")
    task = TokenClassification.from_data(table(), "tokens", "tags")
    with pytest.raises(ValueError, match="validation data has the label 'PER'"):
        task.encode(table([["a"]], [["PER"]]), tokenizers["bytes"], 40, "validation")


def test_the_token_that_ends_a_text_can_have_a_label(tokenizers):
    words, tags = [["be", "[SEP]"], ["be", "cafe", "[SEP]"], ["[SEP]"]], [["O", "LOC"], ["O", "O", "LOC"], ["LOC"]]
    data = table(words, tags)
    task = TokenClassification.from_data(data, "tokens", "tags")
    bert = tokenizers["bert"]
    encoded = task.encode(data, bert, 6, "training")
    assert encoded["input_ids"][0] == bert("be")["input_ids"] and encoded["input_ids"][2] == bert("")["input_ids"]
    assert encoded["labels"][0] == [-100, -100, 1, 0] and encoded["labels"][2] == [-100, 0]
    assert encoded["kept"] == [[0, 1], [0], [0]]  # "cafe" is cut, and with it the label of the whole text
    assert [label for label in encoded["labels"][1] if label != -100] == [1]


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        ([["a", None], ["b"]], [["O", "B"], ["O"]], r"row 0 of the train data has the word None, which is no text"),
        ([["a", "b"], ["b"]], [["O", None], ["B"]], "labels must be numbers or words; given None"),
        ([["a"], None], [["O"], ["B"]], "1 rows of the training data have no list in column 'words'"),
    ],
)
def test_missing_words_and_labels_are_no_text_and_no_class(words, tags, message):
    train = Dataset.from_dict({"words": words, "tags": tags})
    with pytest.raises(ValueError, match=message):
        task = TokenClassification.from_data(train, "words", "tags")
        task.encode(train, build_tokenizer("byte"), 32, "train")


@pytest.mark.parametrize("tags", [[None, None], [[-1], [-1, -1]], [None, [None, None]]])
def test_hidden_labels(tokenizers, tags):
    task = TokenClassification.from_data(table(), "tokens", "tags")
    hidden = Dataset.from_dict({"tokens": [["a"], ["b", "c"]], "tags": tags})
    assert not task.has_labels(hidden) and task.has_labels(table())
    task.encode(hidden, tokenizers["bytes"], 40, "test")


def test_labels_that_are_partly_missing():
    task = TokenClassification.from_data(table(), "tokens", "tags")
    some = Dataset.from_dict({"tokens": [["a"], ["b"]], "tags": [[TAGS[0][0]], None]})
    with pytest.raises(ValueError, match="1 rows of the validation data have no list in column 'tags'"):
        task.references(some, "validation")
