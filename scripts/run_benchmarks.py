"""Evaluates models on benchmarks: a table, JSON and plots that can be told apart from guesses.

    python scripts/run_benchmarks.py language-modeling --model runs/tnn --model runs/attention \\
        --text-file held-out.txt --context-lengths 128 256 512 1024 2048 --output-dir runs/compare

Each result is written as soon as it is known, and the same command continues where it was interrupted.
"""

import argparse
import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

# Importing the package registers its families with the Auto classes.
from hf_seqmix import __version__
from hf_seqmix.analysis import (
    LanguageModelScore,
    ResultLog,
    iter_language_model_scores,
    markdown_table,
    run_environment,
)
from hf_seqmix.analysis.plots import plot_context_lengths, plot_positions
from hf_seqmix.data import (
    bits_per_byte_gzip,
    bits_per_byte_xz,
    build_tokenizer,
    explain_write_error,
    load_corpus,
    prepare_run_folder,
    write_json,
)

COMPRESSORS = {"gzip -9": bits_per_byte_gzip, "xz -9": bits_per_byte_xz}

TABLE = {
    "model": "model",
    "context_length": "context",
    "bits_per_byte": "bits/byte:.4f",
    "perplexity": "perplexity/token:.6g",
    "word_perplexity": "perplexity/word:.6g",
    "num_tokens": "tokens:,",
    "tokens_per_second": "tokens/s:,.0f",
}

logger = logging.getLogger("run_benchmarks")


def build_parser() -> argparse.ArgumentParser:
    """One sub-command a benchmark; `run` of the parsed arguments is the function that does it."""
    parser = argparse.ArgumentParser(
        prog="run_benchmarks.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="benchmark")
    add_language_modeling(benchmarks)
    return parser


def common_arguments() -> argparse.ArgumentParser:
    """What every benchmark of saved models takes."""
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
    common.add_argument("--batch-size", type=int, help="sequences per forward; chosen from their length by default")
    common.add_argument("--device", help="such as cpu or cuda:0; by default an accelerator if there is one")
    common.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16", "float64"])
    common.add_argument("--seed", type=int, default=0, help="of everything random, if there is any")
    common.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a checkpoint")
    common.add_argument("--overwrite", action="store_true", help="compute again what the output folder already holds")
    return common


def add_language_modeling(benchmarks: Any) -> None:
    """Adds the sub-command `language-modeling`."""
    parser = benchmarks.add_parser(
        "language-modeling",
        parents=[common_arguments()],
        allow_abbrev=False,
        help="bits per byte and perplexity of causal models at several context lengths",
        description="Bits per byte and perplexity of causal language models at several context lengths. Every byte of "
        "the text is scored once for each; documents are scored apart, each after the tokenizer's beginning- or "
        "end-of-sequence token.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text-file", nargs="+", type=Path, metavar="FILE", help="held-out text, a document a file")
    source.add_argument(
        "--dataset", help="a Hub name, name:config, embedded:python-stdlib, or a local file or folder with splits"
    )
    parser.add_argument("--split", help="of the data set; by default test, or else validation")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--sample-by", default="document", choices=["document", "paragraph", "line"])
    parser.add_argument(
        "--join-with",
        metavar="SEPARATOR",
        help="score all documents as one, with this between them (data sets that hold one line a row: '')",
    )
    parser.add_argument("--max-bytes", type=int, help="score only the beginning of the text, about so many bytes")
    parser.add_argument("--tokenizer", help="name or folder; by default the one saved with each model")
    parser.add_argument(
        "--context-lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048], help="tokens of context at most"
    )
    parser.add_argument(
        "--stride", type=int, help="tokens scored per block, for overlapping blocks; the context length by default"
    )
    parser.add_argument(
        "--context-length",
        type=int,
        help="prepare models whose kernels live on a grid for so many tokens first (set_context_length)",
    )
    parser.add_argument(
        "--compressors", action="store_true", help="show gzip and xz of the same text beside the models"
    )
    parser.set_defaults(run=run_language_modeling)


def run_language_modeling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores every model at every context length that the output folder does not hold yet, and reports all of them.

    Raises:
        ValueError: an argument makes no sense, the text cannot be read, or a model cannot be loaded.
    """
    lengths = sorted(set(arguments.context_lengths))
    if lengths[0] < 1:
        raise ValueError(f"--context-lengths must be positive; given {lengths[0]}.")
    texts = load_texts(arguments)
    text_hash = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    log = ResultLog(arguments.output_dir / "results.jsonl")
    names = short_names(arguments.models)

    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for model, name in zip(arguments.models, names, strict=True):
        keys = {length: result_key(arguments, model, text_hash, length) for length in lengths}
        if arguments.overwrite:
            for key in keys.values():
                log.forget(key)
        missing = [length for length in lengths if log.get(keys[length]) is None]
        if missing:
            try:
                score_model(arguments, model, name, texts, {length: keys[length] for length in missing}, log)
            except ValueError as error:
                failures[name] = str(error)
                logger.error(f"{name}: {error}")
        if len(missing) < len(lengths):
            logger.info(f"{name}: {len(lengths) - len(missing)} of {len(lengths)} results were there already")
        for length in lengths:
            result = log.get(keys[length])
            if result is not None:
                rows.append({"model": name, "path": model, **result})

    references = {name: measure(texts) for name, measure in COMPRESSORS.items()} if arguments.compressors else {}
    num_bytes = sum(len(text.encode("utf-8")) for text in texts)
    report = {
        "benchmark": arguments.benchmark,
        "text": {"source": source_of(arguments), "sha256": text_hash, "documents": len(texts), "bytes": num_bytes},
        "references": {name: {"bits_per_byte": value} for name, value in references.items()},
        "results": rows,
        "failures": failures,
        "seed": arguments.seed,
        "environment": run_environment(),
    }
    write_json(arguments.output_dir / "results.json", report)
    if rows:
        write_language_modeling_report(arguments.output_dir, report)
    return report


def load_texts(arguments: argparse.Namespace) -> list[str]:
    """The documents that are scored."""
    if arguments.text_file:
        split = arguments.split or "test"
        corpus = load_corpus(
            {split: arguments.text_file}, text_column=arguments.text_column, sample_by=arguments.sample_by
        )
    else:
        corpus = load_corpus(arguments.dataset, text_column=arguments.text_column, sample_by=arguments.sample_by)
        held_out = [name for name in ("test", "validation") if name in corpus]
        split = arguments.split or (held_out[0] if held_out else None)
        if split not in corpus:
            raise ValueError(
                f"{arguments.dataset} has the splits {', '.join(corpus)}, "
                f"{f'not {split}' if split else 'neither test nor validation'}; choose one with --split."
            )
    texts: list[str] = list(corpus[split]["text"])
    if arguments.join_with is not None:
        separator = arguments.join_with.replace("\\n", "\n").replace("\\t", "\t")
        texts = [separator.join(texts)]
    if arguments.max_bytes is not None:
        texts = first_bytes(texts, arguments.max_bytes)
    return texts


def first_bytes(texts: Iterable[str], limit: int) -> list[str]:
    """The beginning of the documents: at most `limit` UTF-8 bytes, characters kept whole."""
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
    """What the text is, in words."""
    if arguments.text_file:
        return ", ".join(path.name for path in arguments.text_file)
    return f"{arguments.dataset} ({arguments.split})" if arguments.split else str(arguments.dataset)


def short_names(models: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that tell the models apart.

    Raises:
        ValueError: a model is given twice.
    """
    paths = [Path(model).parts for model in models]
    if len(set(paths)) < len(paths):
        raise ValueError(f"A model is given twice: {', '.join(models)}.")
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return list(models)


def result_key(arguments: argparse.Namespace, model: str, text_hash: str, context_length: int) -> dict[str, Any]:
    """Everything that a score depends on."""
    return {
        "benchmark": arguments.benchmark,
        "version": __version__,
        "model": model,
        "files": [fingerprint(Path(name)) for name in (model, arguments.tokenizer) if name],
        "tokenizer": arguments.tokenizer,
        "text": text_hash,
        "dtype": arguments.dtype,
        "context_length": context_length,
        "stride": arguments.stride or context_length,
        "set_context_length": arguments.context_length,
    }


def fingerprint(folder: Path) -> str | None:
    """Changes when a file of a local checkpoint does; None for a name on the Hub."""
    if not folder.is_dir():
        return None
    kinds = {".json", ".safetensors", ".bin", ".txt", ".model", ".py"}
    files = sorted(path for path in folder.iterdir() if path.suffix in kinds and path.is_file())
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def score_model(
    arguments: argparse.Namespace,
    model_name: str,
    name: str,
    texts: list[str],
    keys: dict[int, dict[str, Any]],
    log: ResultLog,
) -> None:
    """Scores one model at the context lengths of `keys` and adds the scores to the log."""
    set_seed(arguments.seed)
    device = torch.device(arguments.device or default_device())
    try:
        tokenizer = (
            build_tokenizer(arguments.tokenizer)
            if arguments.tokenizer
            else AutoTokenizer.from_pretrained(model_name, trust_remote_code=arguments.trust_remote_code)
        )
        model = AutoModelForCausalLM.from_pretrained(
            model_name, dtype=arguments.dtype, trust_remote_code=arguments.trust_remote_code
        )
    except OSError as error:
        raise ValueError(str(error)) from error
    if arguments.context_length is not None:
        set_context_length = getattr(model, "set_context_length", None)
        if callable(set_context_length):
            set_context_length(arguments.context_length)
        else:
            logger.warning(f"{name} has no set_context_length: its kernels do not depend on --context-length")
    logger.info(f"{name}: {model.num_parameters():,} parameters, {model.dtype}, {device}")
    scores = iter_language_model_scores(
        model,
        tokenizer,
        texts,
        context_lengths=list(keys),
        stride=arguments.stride,
        batch_size=arguments.batch_size,
        device=device,
    )
    for score in scores:
        result = {
            **score.to_dict(),
            "tokens_per_second": score.num_tokens / score.seconds,
            "num_parameters": model.num_parameters(),
            "max_position_embeddings": getattr(model.config, "max_position_embeddings", None),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(device),
            "environment": run_environment(),
        }
        log.append(keys[score.context_length], result)


def default_device() -> str:
    """The accelerator's name if there is one, else the CPU's."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return str(accelerator) if accelerator else "cpu"


def write_language_modeling_report(folder: Path, report: dict[str, Any]) -> None:
    """The table, on standard output and as a file, and the plots."""
    rows = [*report["results"], *({"model": name, **values} for name, values in report["references"].items())]
    text = report["text"]
    title = (
        f"{text['source']}: {text['bytes']:,} bytes in {text['documents']:,} document{'s'[: text['documents'] != 1]}"
    )
    table = f"{title}\n\n{markdown_table(rows, TABLE)}\n"
    print(table)
    (folder / "results.md").write_text(table, encoding="utf-8")

    scores: dict[str, list[LanguageModelScore]] = {}
    configured: dict[str, int] = {}
    for row in report["results"]:
        scores.setdefault(row["model"], []).append(LanguageModelScore.from_dict(row))
        if row["max_position_embeddings"]:
            configured[row["model"]] = row["max_position_embeddings"]
    plot_context_lengths(
        scores,
        folder / "context-lengths.png",
        configured_lengths=configured,
        references={name: values["bits_per_byte"] for name, values in report["references"].items()},
        title=title,
    )
    plot_positions(scores, folder / "positions.png", configured_lengths=configured, title=title)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the command line and returns what is written to results.json; exits with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    try:
        prepare_run_folder(arguments.output_dir, resume=True)
        report = arguments.run(arguments)
    except ValueError as error:
        sys.exit(f"run_benchmarks.py: {error}")
    except OSError as error:
        message = explain_write_error(error, arguments.output_dir)
        if message is None:
            raise
        sys.exit(f"run_benchmarks.py: {message}")
    if report["failures"]:
        sys.exit(f"run_benchmarks.py: not evaluated completely: {', '.join(report['failures'])}; see above.")
    return report


if __name__ == "__main__":
    main()
