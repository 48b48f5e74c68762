"""What the benchmarks of saved models share: their arguments, the text, and how a model is opened."""

import argparse
import bisect
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_seqmix import __version__
from hf_seqmix.data import ByteNGram, build_tokenizer, count_bytes, load_corpus
from hf_seqmix.data.tokenization import warn_of_other_tokens
from hf_seqmix.training import explain_model_error

# Importing the package registers its families with the Auto classes.
from hf_seqmix.training.command import device_name, positive
from hf_seqmix.training.environment import fingerprint, portable_path
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

TEXT_OPTIONS = ("text_column", "sample_by", "file_format")
"""Data arguments of pretrain.py that say how texts are read."""

_OTHER_HEADS = ("Classification", "QuestionAnswering", "MultipleChoice")
"""What names of architectures end in whose embeddings were not trained to predict tokens."""

logger = logging.getLogger("run_benchmarks")


def common_arguments() -> argparse.ArgumentParser:
    """Return what every benchmark of saved models takes."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME_OR_PATH",
        dest="models",
        help="a checkpoint; repeat the option to compare several",
    )
    common.add_argument("--output-dir", type=Path, required=True, help="where results, table and plots go")
    common.add_argument(
        "--batch-size", type=positive, help="sequences per forward; chosen from their length by default"
    )
    common.add_argument(
        "--device",
        type=device_name,
        help="where to run, such as cpu or cuda:0; by default an accelerator if there is one",
    )
    common.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16", "float64"],
        help="data type of the model; auto: as saved",
    )
    common.add_argument("--seed", type=int, default=0, help="seed of everything random, if there is any")
    common.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    common.add_argument("--overwrite", action="store_true", help="compute again what the output folder already holds")
    return common


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which text is scored, and beside what."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text-file", nargs="+", type=Path, metavar="FILE", help="held-out text, a document a file")
    source.add_argument(
        "--dataset", help="a Hub name, name:config, embedded:python-stdlib, or a local file or folder with splits"
    )
    parser.add_argument("--split", help="of the data set; by default test, or else validation")
    parser.add_argument("--text-column", default="text", help="column of the data set that holds the text")
    parser.add_argument(
        "--sample-by",
        default="document",
        choices=["document", "paragraph", "line"],
        help="what one document of a text file is: the file, a paragraph or a line",
    )
    parser.add_argument(
        "--join-with",
        metavar="SEPARATOR",
        help="score all documents as one, with this between them (data sets that hold one line a row: '')",
    )
    parser.add_argument("--max-bytes", type=int, help="score only the beginning of the text, about so many bytes")
    parser.add_argument("--tokenizer", help="name or folder; by default the one saved with each model")
    parser.add_argument(
        "--ngram",
        type=int,
        metavar="N",
        help="show a smoothed n-gram of bytes, counted on the data set's training split, beside the models",
    )


def load_texts(arguments: argparse.Namespace) -> list[str]:
    """Return the documents that are scored; of `--text-file` the files stay that hold them."""
    if arguments.text_file:
        texts = _file_texts(arguments, arguments.text_file)
        arguments.text_file = _scored_files(arguments)
    else:
        corpus = load_data_set(arguments)
        held_out = [name for name in ("test", "validation") if name in corpus]
        split = arguments.split or (held_out[0] if held_out else None)
        if split not in corpus:
            raise ValueError(
                f"{arguments.dataset} has the splits {', '.join(corpus)}, "
                f"{f'not {split}' if split else 'neither test nor validation'}; choose one with --split."
            )
        texts = _joined(arguments, list(corpus[split]["text"]))
    if arguments.max_bytes is not None:
        texts = first_bytes(texts, arguments.max_bytes)
    return texts


def _file_texts(arguments: argparse.Namespace, files: Sequence[Path]) -> list[str]:
    split = arguments.split or "test"
    corpus = load_corpus({split: files}, text_column=arguments.text_column, sample_by=arguments.sample_by)
    return _joined(arguments, list(corpus[split]["text"]))


def _scored_files(arguments: argparse.Namespace) -> list[Path]:
    """Return the first files, which hold what `--max-bytes` scores."""
    files: list[Path] = arguments.text_file

    def num_bytes(number: int) -> int:
        return sum(map(count_bytes, _file_texts(arguments, files[:number])))

    if arguments.max_bytes is None:
        return files
    return files[: 1 + bisect.bisect_left(range(1, len(files)), arguments.max_bytes, key=num_bytes)]


def load_data_set(arguments: argparse.Namespace) -> Any:
    """Return all splits of `--dataset`."""
    return load_corpus(arguments.dataset, text_column=arguments.text_column, sample_by=arguments.sample_by)


def test_texts(data: Mapping[str, Any]) -> list[str] | None:
    """Return the texts of the test split of a run's data set; None where there is none, or its rows hold tokens.

    Args:
        data: arguments of pretrain.py, all of them.
    """
    if data["dataset"] is None or data["tokenized"]:
        return None
    corpus = load_corpus(data["dataset"], **{name: data[name] for name in TEXT_OPTIONS})
    return list(corpus["test"]["text"]) if "test" in corpus else None


def load_training_texts(arguments: argparse.Namespace) -> list[str]:
    """Return the texts that baselines learn from: the data set's training split.

    Raises:
        ValueError: there is none.
    """
    corpus = load_data_set(arguments) if arguments.dataset else {}
    if "train" not in corpus:
        raise ValueError(
            "a baseline that counts needs training text: give --dataset with a split called train, or leave --ngram "
            "out."
        )
    return _joined(arguments, list(corpus["train"]["text"]))


def _joined(arguments: argparse.Namespace, texts: list[str]) -> list[str]:
    """Return one text of all where `--join-with` asks for it."""
    if arguments.join_with is None:
        return texts
    return [arguments.join_with.replace("\\n", "\n").replace("\\t", "\t").join(texts)]


def fit_ngram(arguments: argparse.Namespace) -> dict[str, ByteNGram]:
    """Return the n-gram that `--ngram` asks for, counted on the training split, by its name."""
    if arguments.ngram is None:
        return {}
    ngram = ByteNGram(arguments.ngram)  # refuses an order before anything is read
    return {f"byte {arguments.ngram}-gram": ngram.fit(load_training_texts(arguments))}


def named(results: Iterable[Result] | None, name: str) -> list[Result]:
    """Return results of a log under the name that a model has in this command; those of baselines as they are."""
    return [replace(r, model=name) if r.kind == "measured" else r for r in results or []]


def open_model(
    arguments: argparse.Namespace, name: str, load: Callable[..., Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a checkpoint and its tokenizer.

    Raises:
        ValueError: one of them cannot be read, the tokenizer is one that would be trained, or the checkpoint lacks
            weights, as of a head, or is of another one.
    """
    if str(arguments.tokenizer).startswith("bpe:"):
        raise ValueError(
            f"--tokenizer {arguments.tokenizer} asks for a new tokenizer, whose tokens no checkpoint knows: give the "
            "name or folder of the one that the model was trained with."
        )
    try:
        tokenizer = (
            build_tokenizer(arguments.tokenizer)
            if arguments.tokenizer
            else AutoTokenizer.from_pretrained(name, trust_remote_code=arguments.trust_remote_code)
        )
        if arguments.tokenizer:
            remote = arguments.trust_remote_code
            warn_of_other_tokens(name, arguments.tokenizer, tokenizer, trust_remote_code=remote)
        options = {"dtype": arguments.dtype, "trust_remote_code": arguments.trust_remote_code}
        loaded: tuple[PreTrainedModel, dict[str, Any]] = load(name, **options, output_loading_info=True)
        model, found = loaded
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(explain_model_error(name, error)) from error
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name} has no weights of {', '.join(missing[:3])}, which would be random numbers: give a checkpoint of "
            f"{type(model).__name__}."
        )
    # Tied to the embeddings, a head that was never trained lacks no weights.
    heads = model.config.architectures or []
    if type(model).__name__ not in heads and any(head.endswith(_OTHER_HEADS) for head in heads):
        raise ValueError(f"{name} is a {heads[0]}: give a checkpoint of {type(model).__name__}.")
    return model, tokenizer


def prepare_kernels(model: PreTrainedModel, name: str, length: int) -> None:
    """Sample kernels that live on a grid for so many tokens (`set_context_length`); warn where there are none."""
    set_context_length = getattr(model, "set_context_length", None)
    if callable(set_context_length):
        set_context_length(length)
    else:
        logger.warning(f"{name} has no set_context_length: its kernels do not depend on --context-length")


def describe_text(arguments: argparse.Namespace, texts: Sequence[str]) -> str:
    """Return what is scored, in words."""
    plural = "s" if len(texts) != 1 else ""
    return f"{source_of(arguments)}: {sum(map(count_bytes, texts)):,} bytes in {len(texts):,} document{plural}"


def scoring_run(arguments: argparse.Namespace, task: str, model: str) -> Run:
    """Return what is run: a checkpoint on a text."""
    data = {"text": source_of(arguments), "split": arguments.split, "max_bytes": arguments.max_bytes}
    data = {name: value for name, value in data.items() if value is not None}
    return Run(task, model={"model": portable_path(model)}, data=data, seed=arguments.seed)


def text_hash(texts: Sequence[str]) -> str:
    """Return the SHA-256 of the documents."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def common_key(arguments: argparse.Namespace, model: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return what every score of a model depends on."""
    return {
        "benchmark": arguments.benchmark,
        "version": __version__,
        "model": model,
        "files": [fingerprint(Path(name)) for name in (model, arguments.tokenizer) if name],
        "tokenizer": arguments.tokenizer,
        "text": text_hash(texts),
        "dtype": arguments.dtype,
    }


def first_bytes(texts: Iterable[str], limit: int) -> list[str]:
    """Return the beginning of the documents: at most `limit` UTF-8 bytes, characters kept whole."""
    if limit < 1:
        raise ValueError(f"--max-bytes must be positive; given {limit}.")
    kept = []
    for text in texts:
        data = text.encode("utf-8")[:limit]
        limit -= len(data)
        kept.append(data.decode("utf-8", errors="ignore"))
        if limit <= 0:
            break
    return kept


def source_of(arguments: argparse.Namespace) -> str:
    """Return what the text is, in words, without this machine's folders."""
    if arguments.text_file:
        return ", ".join(path.name for path in arguments.text_file)
    name = portable_path(str(arguments.dataset))
    return f"{name} ({arguments.split})" if arguments.split else name


def short_names(models: Sequence[str]) -> list[str]:
    """Return the shortest ends of the paths that tell the models apart.

    Raises:
        ValueError: a model is given twice.
    """
    paths = [Path(model).parts for model in models]
    if len(set(paths)) < len(paths):
        raise ValueError(f"a model is given twice: {', '.join(models)}.")
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return list(models)


def default_device() -> str:
    """Return the accelerator's name if there is one, else the CPU's."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return str(accelerator) if accelerator else "cpu"
