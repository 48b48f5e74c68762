"""Which examples each split of a run of finetune.py has."""

from types import SimpleNamespace

from datasets import Dataset, DatasetDict
from finetuning import examples


def numbered(**sizes: int) -> DatasetDict:
    return DatasetDict({split: Dataset.from_dict({"place": range(size)}) for split, size in sizes.items()})


def test_all_validation_data_is_tested_on_where_training_data_is_held_out(monkeypatch):
    given = numbered(train=5, validation=3, validation_mismatched=2, test=9)
    monkeypatch.setattr(examples, "load_labeled", lambda *_, **__: given)
    data = SimpleNamespace(glue_task=None, dataset="any", cache_dir=None, validation_from_train=True)
    found = examples.load_examples(SimpleNamespace(data=data))
    assert {split: len(rows) for split, rows in found.items()} == {"train": 5, "test": 3, "test_mismatched": 2}


def test_examples_are_drawn_and_are_not_the_first():
    data = SimpleNamespace(max_train_samples=5, max_eval_samples=4)
    drawn = examples.draw_rows(SimpleNamespace(data=data), numbered(train=40, validation=40, test=3))
    assert {split: len(set(rows)) for split, rows in drawn.items()} == {"train": 5, "validation": 4, "test": 3}
    assert max(drawn["train"]) > 4 and max(drawn["validation"]) > 3 and drawn["test"] == [0, 1, 2]
