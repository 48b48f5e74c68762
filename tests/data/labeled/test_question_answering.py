import copy
import itertools

import numpy as np
import pytest
from datasets import Dataset
from transformers.tokenization_python import PreTrainedTokenizer

from hf_seqmix.data.labeled import QuestionAnswering

CONTEXT = "The café is in Paris, France. to be or not to be, that is where it is."
EXAMPLES = {
    "question": ["Where is the café?", "Who?", "to be or not?"],
    "context": [CONTEXT, CONTEXT, "to be"],
    "answers": [
        {"text": ["Paris, France"], "answer_start": [CONTEXT.index("Paris")]},
        {"text": [], "answer_start": []},
        {"text": ["to be", "be"], "answer_start": [0, 3]},
    ],
}
DATA = Dataset.from_dict(EXAMPLES)


def perfect(encoded, width):
    """Logits that point at the labels."""
    starts, ends = np.zeros((len(encoded), width)), np.zeros((len(encoded), width))
    for row, (start, end) in enumerate(zip(encoded["start_positions"], encoded["end_positions"], strict=True)):
        starts[row, start] = ends[row, end] = 10.0
    return starts, ends


@pytest.mark.parametrize("max_length", [48, 200])
def test_labels_point_at_the_answers(tokenizer, max_length):
    task = QuestionAnswering(stride=15)
    encoded = task.encode(DATA, tokenizer, max_length, "training")
    assert max(map(len, encoded["input_ids"])) <= max_length
    answers = task.predictions(perfect(encoded, 200), encoded, DATA, can_be_empty=True)
    assert answers == ["Paris, France", "", "to be"]
    assert task.references(DATA, "training") == [["Paris, France"], [], ["to be", "be"]]


def test_windows_cover_the_context_and_overlap(tokenizers):
    encoded = QuestionAnswering(stride=15).encode(DATA, tokenizers["bytes"], 48, "training")
    windows = [row for row in encoded if row["example"] == 0]
    assert len(windows) > 2
    spans = [(row["offsets"][0][0], row["offsets"][-1][1]) for row in windows]
    assert spans[0][0] == 0 and spans[-1][1] == len(CONTEXT)
    assert all(after > start for (_, after), (start, _) in itertools.pairwise(spans))
    assert all(after < end for (_, after), (_, end) in itertools.pairwise(spans))  # each reads something new
    for row in windows:
        context = row["input_ids"][row["first_token"] : row["first_token"] + len(row["offsets"])]
        assert tokenizers["bytes"].decode(context) in CONTEXT


def test_empty_answer_only_where_it_may_be_one(tokenizers):
    task = QuestionAnswering(stride=15)
    encoded = task.encode(DATA, tokenizers["bpe"], 200, "training")
    starts, ends = np.zeros((len(encoded), 200)), np.zeros((len(encoded), 200))
    starts[:, 0] = ends[:, 0] = 5.0
    assert task.predictions((starts, ends), encoded, DATA, can_be_empty=True) == [""] * 3
    assert "" not in task.predictions((starts, ends), encoded, DATA, can_be_empty=False)


def test_answers_are_not_longer_than_allowed(tokenizers):
    task = QuestionAnswering(stride=15, max_answer_length=2)
    encoded = task.encode(DATA, tokenizers["bpe"], 200, "training")
    starts, ends = np.zeros((len(encoded), 200)), np.zeros((len(encoded), 200))
    first = encoded["first_token"][0]
    starts[0, first], ends[0, first + 9] = 5.0, 5.0
    answer = task.predictions((starts, ends), encoded, DATA, can_be_empty=False)[0]
    assert 0 < len(tokenizers["bpe"](answer)["input_ids"]) <= 3


def test_split_without_answers(tokenizers):
    task = QuestionAnswering(stride=15)
    hidden = DATA.remove_columns("answers")
    assert not task.has_labels(hidden)
    assert set(task.encode(hidden, tokenizers["bpe"], 200, "test")["start_positions"]) == {0}


class Letters(PreTrainedTokenizer):
    """A tokenizer that is not fast and says nothing about pairs of letters when they stand apart."""

    @property
    def vocab_size(self):
        return 1000

    def get_vocab(self):
        return {}

    def _tokenize(self, text):
        return [text[i : i + 3] for i in range(0, len(text), 3)]

    def _convert_token_to_id(self, token):
        return sum(map(ord, token)) % 1000


def test_a_tokenizer_that_pads_on_the_left_is_refused(tokenizer):
    """Its batches would have the labels of all but the longest row at other tokens."""
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    with pytest.raises(ValueError, match=r"pads on the left.*set tokenizer\.padding_side = 'right'"):
        QuestionAnswering(stride=15).encode(DATA, left, 48, "training")


def test_bad_data(tokenizers):
    task = QuestionAnswering.from_data(DATA, stride=15)
    with pytest.raises(ValueError, match="training data has no column 'answers'"):
        QuestionAnswering.from_data(DATA.remove_columns("answers"))
    with pytest.raises(ValueError, match="given -1 and 30"):
        QuestionAnswering.from_data(DATA, stride=-1)
    with pytest.raises(ValueError, match="training data has no column 'question'"):
        task.encode(Dataset.from_dict({"q": ["?"], "context": ["c"]}), tokenizers["bpe"], 200, "training")
    with pytest.raises(ValueError, match="larger max_length or a smaller stride"):
        task.encode(DATA, tokenizers["bytes"], 30, "training")
    with pytest.raises(ValueError, match="use a fast tokenizer"):
        task.encode(DATA, Letters(), 200, "training")


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [("Berlin", 15, "Paris,"), ("Paris", 9999, ""), ("Paris", 16, "aris,"), ("Paris", -5, "The c")],
)
def test_an_answer_that_is_not_where_it_is_said_to_be(tokenizers, text, start, found):
    wrong = {"text": [text], "answer_start": [start]}
    data = Dataset.from_dict({**EXAMPLES, "answers": [*EXAMPLES["answers"][:1], wrong, EXAMPLES["answers"][2]]})
    message = (
        f"row 1 of the training data \\('Who\\?'\\): the answer '{text}' does not stand at answer_start {start} "
        f".*'{found}' stands"
    )
    with pytest.raises(ValueError, match=message):
        QuestionAnswering(stride=15).encode(data, tokenizers["bytes"], 200, "training")


def test_case_and_spaces_of_an_answer_may_differ(tokenizers):
    answers = [{"text": ["paris,\u00a0France"], "answer_start": [CONTEXT.index("Paris")]}, *EXAMPLES["answers"][1:]]
    encoded = QuestionAnswering(stride=15).encode(
        Dataset.from_dict({**EXAMPLES, "answers": answers}), tokenizers["bytes"], 200, "training"
    )
    assert encoded["start_positions"][0] > 0


@pytest.mark.parametrize(
    "answers",
    [[{"text": "x", "answer_start": 0}], {"text": ["x"], "answer_start": ["0"]}, {"text": "x", "answer_start": 0}],
)
def test_answers_of_another_form_are_refused(answers):
    train = Dataset.from_list([{"question": "q", "context": "x", "answers": answers}])
    with pytest.raises(ValueError, match="'answers' must hold, in each row, lists of text and of answer_start"):
        QuestionAnswering.from_data(train)


def test_hidden_and_partly_hidden_answers(tokenizers):
    task = QuestionAnswering(stride=15)
    hidden = DATA.remove_columns("answers").add_column("answers", [None] * len(DATA))
    assert not task.has_labels(hidden) and task.has_labels(DATA)
    some = Dataset.from_dict({**EXAMPLES, "answers": [*EXAMPLES["answers"][:2], None]})
    with pytest.raises(ValueError, match="1 rows of the validation data have no answers in column 'answers'"):
        task.references(some, "validation")


def test_answers_without_a_place_each(tokenizers):
    wrong = {"text": ["Paris"], "answer_start": []}
    data = Dataset.from_dict({**EXAMPLES, "answers": [*EXAMPLES["answers"][:1], wrong, EXAMPLES["answers"][2]]})
    with pytest.raises(ValueError, match=r"row 1 of the training data .*as many answer_start as text"):
        QuestionAnswering(stride=15).encode(data, tokenizers["bytes"], 200, "training")


def test_special_tokens_spelled_out_in_a_context_are_text(tokenizers):
    data = Dataset.from_dict(
        {"question": ["a?"], "context": ["a [SEP] b"], "answers": [{"text": ["b"], "answer_start": [8]}]}
    )
    (ids,) = QuestionAnswering(stride=5).encode(data, tokenizers["bert"], 60, "training")["input_ids"]
    assert ids.count(3) == 2  # those between and after the parts


def test_the_longest_answer_has_as_many_tokens_as_are_allowed(tokenizers):
    task = QuestionAnswering(stride=15, max_answer_length=2)
    encoded = task.encode(DATA, tokenizers["bpe"], 200, "training")
    starts, ends = np.zeros((len(encoded), 200)), np.zeros((len(encoded), 200))
    first, offsets = encoded["first_token"][0], encoded["offsets"][0]
    starts[0, first], ends[0, first + 1], ends[0, first + 2] = 5.0, 1.0, 5.0
    answer = task.predictions((starts, ends), encoded, DATA, can_be_empty=False)[0]
    assert answer == CONTEXT[: offsets[1][1]].strip() != CONTEXT[: offsets[2][1]].strip()
