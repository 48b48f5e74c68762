"""The labeled examples of a run of finetune.py: where they come from, and which of them each split has."""

import logging

import datasets

from hf_seqmix.data.labeled import load_glue, load_labeled

from .arguments import Arguments, DataArguments

__all__ = ["EVALUATED", "draw_rows", "image_columns", "load_examples"]

EVALUATED = ("validation", "validation_mismatched", "test", "test_mismatched")
"""The splits scored at the end; MNLI has two of either."""

logger = logging.getLogger("finetune")


def load_examples(arguments: Arguments) -> datasets.DatasetDict:
    """Return the splits train, validation and perhaps others; fill in the columns and metrics of a GLUE task."""
    data = arguments.data
    if data.glue_task is not None:
        examples, glue = load_glue(data.glue_task, data.data_dir, data.cache_dir)
        data.text_columns = data.text_columns or list(glue.text_columns)
        data.label_column = data.label_column or [glue.label_column]
        data.metrics = data.metrics or list(glue.metrics)
    elif data.dataset is not None:
        examples = load_labeled(data.dataset, cache_dir=data.cache_dir)
    else:
        files = {"train": data.train_file, "validation": data.validation_file, "test": data.test_file}
        given = {split: file for split, file in files.items() if file is not None}
        paths = image_columns(data) if arguments.reads_images else ()
        examples = load_labeled(given, header=not data.no_header, paths=paths, cache_dir=data.cache_dir)
    if "train" not in examples:
        raise ValueError(f"there is no training split; there is {', '.join(examples)}.")
    if data.validation_from_train:
        if "validation" not in examples:
            raise ValueError(
                f"--validation-from-train needs validation data to test on; there is {', '.join(examples)}."
            )
        own = {split.replace("validation", "test"): rows for split, rows in examples.items() if "validation" in split}
        examples = datasets.DatasetDict({"train": examples["train"], **own})
    if "validation" not in examples and len(examples["train"]) < 2:
        raise ValueError("one training example leaves nothing to evaluate on; give more, or --validation-file.")
    return examples


def image_columns(data: DataArguments) -> list[str]:
    """Return the names of which one is the column of the images."""
    return [data.image_column] if data.image_column else ["image", "img"]


def hold_out(arguments: Arguments, examples: datasets.DatasetDict) -> datasets.DatasetDict:
    """Return the splits with validation data, held out from the training data where there are none."""
    if "validation" in examples:
        return examples
    parts = examples["train"].train_test_split(arguments.data.validation_fraction, seed=arguments.training.seed)
    logger.info(f"{len(parts['test'])} of the training examples are held out to evaluate on")
    return datasets.DatasetDict({**examples, "train": parts["train"], "validation": parts["test"]})


def limit_examples(data: DataArguments, examples: datasets.DatasetDict) -> datasets.DatasetDict:
    """Return the splits that are used, and of each as many examples as are asked for.

    They are drawn: files are often sorted by label, and the first thousand reviews of IMDB are all bad ones.
    """
    limits = {"train": data.max_train_samples, **dict.fromkeys(EVALUATED, data.max_eval_samples)}
    limited = {}
    for split, limit in limits.items():
        if split in examples:
            rows = examples[split]
            limited[split] = rows if limit is None or limit >= len(rows) else rows.shuffle(seed=0).take(limit)
    return datasets.DatasetDict(limited)


def draw_rows(arguments: Arguments, examples: datasets.DatasetDict) -> dict[str, list[int]]:
    """Return which rows of the data each split of the run has; those of a split that is held out are of `train`."""
    numbers = {split: datasets.Dataset.from_dict({"row": range(len(part))}) for split, part in examples.items()}
    drawn = limit_examples(arguments.data, hold_out(arguments, datasets.DatasetDict(numbers)))
    return {split: part["row"][:] for split, part in drawn.items()}
