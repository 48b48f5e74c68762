"""What finetune.py trains: a checkpoint with a new head, or a model from scratch, and what prepares its inputs."""

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from hf_seqmix._files import whole_files
from hf_seqmix.data import build_tokenizer
from hf_seqmix.data.labeled import Classification, TokenClassification
from hf_seqmix.data.tokenization import warn_of_other_tokens
from hf_seqmix.models.configuration import SeqMixConfig
from hf_seqmix.models.images.processing import SeqMixImageProcessor
from hf_seqmix.models.loading import WrongShapesError
from hf_seqmix.training import (
    config_from_overrides,
    explain_model_error,
    fault_of_model,
    parse_overrides,
    tokenizer_fields,
)

from .arguments import Arguments

AUTO_CLASSES = {
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
    "image-classification": AutoModelForImageClassification,
}

HEADS = {
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "image-classification": "ForImageClassification",
}
"""How the names of models end whose heads have classes."""

DEFAULT_MAX_LENGTH = 512

ClassTask = TypeVar("ClassTask", bound=Classification | TokenClassification)

logger = logging.getLogger("finetune")


def check_model(arguments: Arguments) -> None:
    """Check the files of a checkpoint before the data is read, which may take long.

    Raises:
        ValueError: one is missing or damaged.
    """
    model = arguments.model
    if model.model is not None and not model.random_init and (fault := fault_of_model(model.model)):
        raise ValueError(f"--model {model.model}: {fault}")


def with_classes_of_head(arguments: Arguments, task: ClassTask) -> ClassTask:
    """Return the task with its classes in the order in which the head of the checkpoint has them.

    The labels of a data set may be sorted, or declared in another order, and the rows of a head are not moved.

    Raises:
        ValueError: the head has as many classes, of other names.
    """
    model = arguments.model
    if model.model is None or model.random_init or model.new_head or not task.label_names:
        return task
    config = AutoConfig.from_pretrained(model.model, trust_remote_code=model.trust_remote_code)
    known = tuple(str(name) for _, name in sorted(config.id2label.items()))
    named = known != tuple(f"LABEL_{index}" for index in range(len(known)))
    if (
        not _has_head(arguments, config)
        or not named
        or len(known) != len(task.label_names)
        or known == task.label_names
    ):
        return task  # heads of another size are refused as they are loaded
    if set(known) != set(task.label_names):
        if task.label_names == tuple(map(str, range(len(known)))):
            rows = ", ".join(f"{row} is {name}" for row, name in enumerate(known))
            logger.warning(f"The labels of the data are numbers: {rows}, as the head of {model.model} has them.")
            return task
        raise ValueError(
            f"the head of {model.model} tells {', '.join(known)} apart, and the data has the labels "
            f"{', '.join(task.label_names)}. Draw a head for these by --new-head, or name the labels as the head does."
        )
    if isinstance(task, Classification) and len(task.label_columns) > 1:  # a column a label
        return dataclasses.replace(task, label_names=known, label_columns=known)
    return dataclasses.replace(task, label_names=known)


def _has_head(arguments: Arguments, config: PreTrainedConfig) -> bool:
    """Return whether the checkpoint of a configuration has a head of classes, of the kind that the task needs."""
    head = HEADS.get(arguments.data.task)
    return head is not None and any(name.endswith(head) for name in config.architectures or ())


def load_tokenizer(arguments: Arguments, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the checkpoint, or the one asked for.

    One made for this run is saved by the first process of a machine, and read by the others and by a resumed run, also
    where that goes on in another folder.

    Args:
        arguments: name it, or the checkpoint it belongs to.
        texts: what a BPE is trained on; not used otherwise.

    Raises:
        ValueError: there is none.
    """
    model, training = arguments.model, arguments.training
    if model.model_type is not None:
        own = training.local_process_index == 0
        if (arguments.folder / "tokenizer_config.json").is_file() and (arguments.resume or not own):
            return AutoTokenizer.from_pretrained(arguments.folder)
        if not own and model.tokenizer is not None:
            raise ValueError(
                "the first process of this machine stopped before it had a tokenizer; its message says why."
            )
    if model.tokenizer is not None:
        began = arguments.earlier_folders if model.model_type is not None else []
        kept = [folder for folder in began if (folder / "tokenizer_config.json").is_file()]
        tokenizer: PreTrainedTokenizerBase
        tokenizer = AutoTokenizer.from_pretrained(kept[0]) if kept else build_tokenizer(model.tokenizer, texts)
        if model.model is not None:
            warn_of_other_tokens(model.model, model.tokenizer, tokenizer, trust_remote_code=model.trust_remote_code)
        if model.model_type is not None:
            with whole_files(arguments.folder, last="tokenizer_config.json") as aside:
                tokenizer.save_pretrained(aside)
            # As other processes and a resumed run read it: what is tokenized is tokenized once.
            return AutoTokenizer.from_pretrained(arguments.folder)
        return tokenizer
    try:
        return AutoTokenizer.from_pretrained(model.model, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        reason = explain_model_error(str(model.model), error).rstrip(".")
        raise ValueError(
            f"no tokenizer could be loaded: {reason}. If the checkpoint has none, give --tokenizer."
        ) from error


def load_image_processor(arguments: Arguments, config: PreTrainedConfig) -> Any:
    """Return the image processor of the checkpoint or of the configuration, with mean and deviation as asked for.

    Raises:
        ValueError: there is none, and the configuration does not say which images the model reads.
    """
    data, model = arguments.data, arguments.model
    options = {"image_mean": data.image_mean, "image_std": data.image_std}
    options = {name: value for name, value in options.items() if value is not None}
    if model.model is not None:
        try:
            return AutoImageProcessor.from_pretrained(
                model.model, trust_remote_code=model.trust_remote_code, **options
            )
        except (OSError, ValueError) as error:
            if not isinstance(config, SeqMixConfig):
                raise ValueError(f"no image processor could be loaded from {model.model}: {error}") from error
    try:
        return SeqMixImageProcessor.for_model(config, **options)
    except ValueError as error:
        raise ValueError(
            f"there is no image processor for a {config.model_type} model from scratch: {error} Give a checkpoint "
            "with --model, and --random-init for random weights."
        ) from error


def load_model(
    arguments: Arguments, task_fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None
) -> PreTrainedModel:
    """Return the checkpoint with a new head for the task, or a model from scratch, with a padding token for text.

    Args:
        arguments: which model.
        task_fields: what its configuration needs to know of the task.
        tokenizer: of its texts; None for images.

    Raises:
        ValueError: there is no such checkpoint or model type, a field is refused, or the family has no such head.
    """
    auto = AUTO_CLASSES[arguments.data.task]
    name, trust = arguments.model.model, arguments.model.trust_remote_code
    set_seed(arguments.training.seed)
    if name is None:
        model = auto.from_config(_config_from_scratch(arguments, task_fields, tokenizer))
    else:
        try:
            if arguments.model.random_init:
                config = AutoConfig.from_pretrained(name, trust_remote_code=trust, **task_fields)
                model = auto.from_config(config, trust_remote_code=trust)
            else:
                # Weights are trained in float32, whatever they were saved in; --bf16 computes in less.
                fields = {**task_fields, "ignore_mismatched_sizes": arguments.model.new_head}
                model = auto.from_pretrained(name, dtype=torch.float32, trust_remote_code=trust, **fields)
                before = AutoConfig.from_pretrained(name, trust_remote_code=trust)
                same = len(before.id2label) == len(task_fields.get("id2label", {}))
                if arguments.model.new_head and same and _has_head(arguments, before):  # which fits, and was loaded
                    drawn = auto.from_config(model.config, dtype=torch.float32, trust_remote_code=trust)
                    drawn.base_model.load_state_dict(model.base_model.state_dict())
                    model = drawn
        except WrongShapesError as error:
            raise ValueError(f"{name}: {error}\n--new-head draws a head of other labels anew.") from error
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(explain_model_error(name, error)) from error
    if tokenizer is not None:
        add_padding(model, tokenizer)
    return model


def _config_from_scratch(
    arguments: Arguments, task_fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase | None
) -> PreTrainedConfig:
    assert arguments.model.model_type is not None
    derived, overrides = dict(task_fields), parse_overrides(arguments.model.config_overrides)
    if wrong := sorted({"num_labels", "id2label", "label2id", "problem_type"} & set(overrides)):
        raise ValueError(
            f"--config-overrides names {', '.join(wrong)}, which follow from the labels of the data. Leave them out;"
            " --problem-type says what kind of labels they are."
        )
    if tokenizer is not None:
        derived |= tokenizer_fields(tokenizer, arguments.data.max_length or DEFAULT_MAX_LENGTH)
    return config_from_overrides(arguments.model.model_type, overrides, derived)


def _num_embeddings(model: PreTrainedModel) -> int:
    embeddings: Any = model.get_input_embeddings()
    return embeddings.weight.shape[0]


def add_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer without a padding token one, and tells the model.

    The token that ends a text serves where there is one: padding is masked out and has no label, so what it looks like
    does not matter, and the vocabulary stays as it is. Otherwise a new token is added.
    """
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token
        else:
            tokenizer.add_special_tokens({"pad_token": "<pad>"})
            if len(tokenizer) > _num_embeddings(model):
                model.resize_token_embeddings(len(tokenizer))
        logger.info(f"The tokenizer has no padding token: {tokenizer.pad_token!r} is used; padding is masked out")
    # Models without a mask in their pooling look for this token to find the last real one.
    model.config.pad_token_id = tokenizer.pad_token_id
    size, vocabulary = _num_embeddings(model), len(tokenizer)
    if vocabulary > size:
        raise ValueError(
            f"the tokenizer has {vocabulary} tokens and the model only {size}: they do not belong together."
        )
