"""What pretrain.py trains on: documents, their tokenizer, and blocks of tokens."""

import logging
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_seqmix._files import whole_files
from hf_seqmix.data import (
    build_tokenizer,
    hold_out,
    load_corpus,
    mask_blocks,
    pack_for_evaluation,
    pack_for_training,
    total_bytes,
)
from hf_seqmix.data.tokenization import lost_distinctions, warn_of_other_tokens
from hf_seqmix.training.folders.resumable import LAST

from .arguments import TOKENIZER, Arguments, DataArguments

logger = logging.getLogger(__name__)

# More than enough to learn a vocabulary from; a stream has no end to wait for.
STREAMED_TOKENIZER_DOCUMENTS = 10_000


def load_documents(data: DataArguments) -> tuple[Any, Any]:
    """Return training and validation documents; the latter are None for a stream that has no such split."""
    source: Any = data.dataset
    if data.train_file:
        source = {"train": data.train_file}
    if data.dataset is None and data.validation_file:
        source["validation"] = data.validation_file
    options: dict[str, Any] = {
        "text_column": data.text_column,
        "sample_by": data.sample_by,
        "file_format": data.file_format,
        "streaming": data.streaming,
    }
    corpus = load_corpus(source, **options)
    if "train" not in corpus:
        raise ValueError(f"{source} has no training split; its splits are {', '.join(corpus)}.")
    if data.dataset is not None and data.validation_file:
        return corpus["train"], load_corpus({"validation": data.validation_file}, **options)["validation"]
    if "validation" in corpus:
        return corpus["train"], corpus["validation"]
    if data.streaming:
        return corpus["train"], None
    parts = hold_out(corpus["train"], data.validation_fraction)
    return parts["train"], parts["validation"]


def load_tokenizer(arguments: Arguments, documents: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the run: made and saved by the first process, read by the others and a resumed run.

    A run that goes on from a checkpoint in another folder has the tokenizer of that checkpoint.
    """
    training = arguments.training
    saved = arguments.folder / "tokenizer_config.json"
    own = training.local_process_index == 0
    if saved.is_file() and (arguments.resume or not own):
        return AutoTokenizer.from_pretrained(arguments.folder)
    if not own:
        raise ValueError("the first process of this machine stopped before it had a tokenizer; its message says why.")
    name = arguments.data.tokenizer or arguments.model.model or TOKENIZER
    texts = (row["text"] for row in documents)
    if arguments.data.streaming:
        texts = (row["text"] for row in documents.take(STREAMED_TOKENIZER_DOCUMENTS))
    begun = [] if arguments.resume in (None, LAST) else [Path(arguments.resume), Path(arguments.resume).parent]
    kept = [folder for folder in begun if (folder / saved.name).is_file()]
    tokenizer: PreTrainedTokenizerBase
    if kept:
        tokenizer = AutoTokenizer.from_pretrained(kept[0])
    else:
        masked = arguments.model.objective == "masked"
        tokenizer = build_tokenizer(name, texts, mask_token=masked, ends_texts=masked)
        if arguments.model.model is not None and name != arguments.model.model:
            warn_of_other_tokens(arguments.model.model, name, tokenizer)
    with whole_files(arguments.folder, last=saved.name) as aside:
        tokenizer.save_pretrained(aside)
    # As other processes and a resumed run read it: what is packed with the same tokenizer is packed once.
    return AutoTokenizer.from_pretrained(arguments.folder)


def build_blocks(
    arguments: Arguments, tokenizer: PreTrainedTokenizerBase, train: Any, validation: Any
) -> tuple[Any, Any, int | None]:
    """Return training blocks, evaluation blocks, and the bytes of text that the latter predict."""
    data, causal = arguments.data, arguments.model.objective == "causal"
    options: dict[str, Any] = {
        "causal": causal,
        "respect_documents": data.respect_documents,
        "num_proc": data.preprocessing_num_workers,
    }
    train = pack_for_training(train, tokenizer, data.block_size, **options)
    if data.streaming:
        train = train.shuffle(seed=arguments.training.seed, buffer_size=data.shuffle_buffer_size)
    if validation is None:
        return train, None, None
    validation = pack_for_evaluation(validation, tokenizer, data.block_size, **options)
    if data.max_eval_blocks is not None:
        most = data.max_eval_blocks if data.streaming else min(data.max_eval_blocks, len(validation))
        validation = validation.take(most)
    if causal:
        unknown, lost = _unknown_tokens(tokenizer, validation), lost_distinctions(tokenizer)
        if unknown or lost:
            reasons = [f"{unknown} tokens of the validation text are unknown to the tokenizer"] if unknown else []
            reasons += [f"the tokenizer drops {' and '.join(lost)}"] if lost else []
            logger.warning(
                f"{', and '.join(reasons)}: bits per byte would be of another text, and are left out. A tokenizer "
                "such as 'bpe:4096' or 'byte' keeps every text."
            )
        return train, validation, None if unknown or lost else total_bytes(validation)
    validation = mask_blocks(validation, tokenizer, mlm_probability=data.mlm_probability, seed=arguments.training.seed)
    return train, validation, None


def _unknown_tokens(tokenizer: PreTrainedTokenizerBase, blocks: Any) -> int:
    """Return how many tokens to predict are unknown; some tokenizers give that token another use, too."""
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.sep_token_id):
        return 0
    return sum(row["labels"].count(unknown) for row in blocks.select_columns(["labels"]))
