"""From labeled examples to what a model reads: the task, the model with its tokenizer or image processor, batches."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import datasets
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, PreTrainedModel

from hf_seqmix.data.labeled import (
    Classification,
    ImageClassification,
    ImageCollator,
    QuestionAnswering,
    SegmentCollator,
    SequenceClassification,
    TokenClassification,
)

from .arguments import Arguments, DataArguments
from .examples import image_columns
from .lengths import longest_input
from .models import load_image_processor, load_model, load_tokenizer
from .scoring import Task

__all__ = ["check_classes", "make_task", "prepare_inputs"]

logger = logging.getLogger("finetune")


def make_task(data: DataArguments, train: datasets.Dataset) -> Task:
    """Return what the data asks for.

    Raises:
        ValueError: a column is missing, where the option that names it is said, too, or the data makes no such task.
    """

    def present(*usual: str, default: str) -> list[str]:
        return [next((column for column in usual if column in train.column_names), default)]

    if data.task == "question-answering":
        return QuestionAnswering.from_data(train, stride=data.stride)
    make: Callable[[], Task]
    option, labels = "--text-columns", data.label_column or ["label"]
    if data.task == "token-classification":
        inputs = (data.text_columns or ["tokens"])[:1]
        labels = (data.label_column or present("ner_tags", "tags", "labels", default="tags"))[:1]
        make = partial(TokenClassification.from_data, train, inputs[0], labels[0])
    elif data.task == "image-classification":
        option = "--image-column"
        names = image_columns(data)
        inputs = present(*names, default=names[0])
        make = partial(ImageClassification.from_data, train, inputs[0], labels, data.problem_type)
    else:
        inputs = data.text_columns or present("text", "sentence", default="text")
        make = partial(SequenceClassification.from_data, train, inputs, labels, data.problem_type)
    try:
        return make()
    except ValueError as error:
        needed = {option: inputs, "--label-column": labels}
        if _is_folder_of_images(train) and train.column_names == ["image"]:
            raise ValueError(
                f"the images of {data.dataset} have no labels. Labels are the names of folders, at least two, in "
                "which every split has all its images, as in train/cat/1.png. Move out what has no such folder."
            ) from error
        if missing := [name for name, columns in needed.items() if not {*columns} <= {*train.column_names}]:
            raise ValueError(f"{error} Give {' and '.join(missing)}.") from error
        raise


def check_classes(task: Classification, examples: datasets.DatasetDict, scored: Sequence[str], warn: bool) -> None:
    """Warn of classes that are scored and not trained on; raise a `ValueError` where their folders declare them alone.

    Args:
        task: of the data.
        examples: all rows, before any are left out.
        scored: the splits that are scored.
        warn: whether this process is to warn.
    """
    for split in scored:
        if split not in examples or not (classes := task.untrained(examples["train"], examples[split])):
            continue
        if _is_folder_of_images(examples[split]):
            raise ValueError(
                f"the {split} data has the label {classes[0]!r}, which the training data has not. Give images of it "
                f"to train on, or move the folder {classes[0]} out of the {split} data."
            )
        if warn:
            logger.warning(f"the {split} data has classes without a row to train on: {', '.join(classes)}.")


def _is_folder_of_images(rows: datasets.Dataset) -> bool:
    return rows.info.builder_name == "imagefolder"


def prepare_inputs(
    arguments: Arguments, task: Task, examples: datasets.DatasetDict
) -> tuple[Task, PreTrainedModel, datasets.DatasetDict, Any, Any]:
    """Return the task as the model reads it, the model, its inputs, what prepares and what batches the inputs."""
    if isinstance(task, ImageClassification):
        # The collator decodes images; without this the Trainer would drop them, which are no argument of the model.
        arguments.training.remove_unused_columns = False
        model = load_model(arguments, task.config_fields(), None)
        processor = load_image_processor(arguments, model.config)
        images = {split: task.encode(rows, split, processor) for split, rows in examples.items()}
        pictures = ImageCollator(processor)
        pictures([images["train"][0]])  # or what cannot be made of an image would be said in training
        return task, model, datasets.DatasetDict(images), processor, pictures
    tokenizer = load_tokenizer(arguments, task.texts(examples["train"]))
    model = load_model(arguments, task.config_fields(), tokenizer)
    if isinstance(task, (QuestionAnswering, TokenClassification)):
        tokenizer.padding_side = "right"  # positions of answers and of words count from the first token
    collator: Any = DataCollatorWithPadding(tokenizer)
    if isinstance(task, TokenClassification):
        collator = DataCollatorForTokenClassification(tokenizer)
    elif isinstance(task, SequenceClassification):
        task = task.read_by(model.config)
        if task.num_segments > 1:
            collator = SegmentCollator(tokenizer)
    max_length = longest_input(arguments, model, tokenizer)
    options = {}
    if isinstance(task, SequenceClassification):
        options = {"keep_texts": arguments.data.baseline == "bag-of-words", "mark_cut": True}
    encoded = {split: task.encode(rows, tokenizer, max_length, split, **options) for split, rows in examples.items()}
    return task, model, datasets.DatasetDict(encoded), tokenizer, collator
