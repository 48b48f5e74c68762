r"""Pretrain a causal or masked language model of any family on any text.

    python scripts/pretrain.py --recipe scripts/recipes/tnn-stdlib-small.yaml --output-dir runs/tnn
    python scripts/pretrain.py --model-type tnn --config-overrides hidden_size=256 num_hidden_layers=4 \
        --train-file book.txt --tokenizer bpe:4096 --block-size 256 --max-tokens 2_000_000 --output-dir runs/book
    torchrun --nproc-per-node 2 scripts/pretrain.py ... --use-cpu
    accelerate launch scripts/pretrain.py ...

A recipe holds the same arguments in a file; what is given on the command line overrides it. The output folder gets the
model and its tokenizer, checkpoints, results.json and loss.png. `--resume` continues an interrupted run from its
newest whole checkpoint, `--resume PATH` from that one.
"""

import inspect
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import IntervalStrategy

from hf_seqmix._files import whole_files, write_json

# Importing the package registers its families with the Auto classes.
from hf_seqmix.analysis.plots import plot_loss
from hf_seqmix.data import (
    ReproducibleMaskingCollator,
    build_tokenizer,
    hold_out,
    load_corpus,
    mask_blocks,
    pack_for_evaluation,
    pack_for_training,
    total_bytes,
)
from hf_seqmix.training import (
    arguments,
    block_scores,
    config_from_overrides,
    corpus_metrics,
    parse_overrides,
    prepare_run_folder,
    tokenizer_fields,
)
from hf_seqmix.training.arguments import run_script
from hf_seqmix.training.environment import run_environment
from hf_seqmix.training.precision import settle_precision
from hf_seqmix.training.resumable import ResumableTrainer
from hf_seqmix.training.streaming import EndlessStream

# More than enough to learn a vocabulary from; a stream has no end to wait for.
STREAMED_TOKENIZER_DOCUMENTS = 10_000

# Ways to say the same thing: one of them on the command line replaces the others of a recipe.
ALTERNATIVES = (
    {"model_type", "config_file"},
    {"dataset", "train_file"},
    {"max_tokens", "max_steps", "num_train_epochs", "max_seconds"},
    {"global_batch_size", "gradient_accumulation_steps"},
)

REPLACES = {argument: group for group in ALTERNATIVES for argument in group}

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """What is trained."""

    objective: Literal["causal", "masked"] = field(
        default="causal", metadata={"help": "Predict the next token, or masked ones from both sides."}
    )
    model_type: str | None = field(
        default=None, metadata={"help": "Family, such as tnn or seqmix_hybrid, or any model type of transformers."}
    )
    config_file: str | None = field(default=None, metadata={"help": "A config.json to start from instead."})
    config_overrides: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Fields of the configuration, as key=value (several allowed); the rest keeps its default.",
            "action": "extend",
        },
    )


@dataclass
class DataArguments:
    """What it is trained on."""

    dataset: str | None = field(
        default=None, metadata={"help": "A Hub name, name:config, embedded:python-stdlib, or a file or folder."}
    )
    train_file: list[str] = field(default_factory=list, metadata={"help": "Text, JSON, CSV or Parquet files."})
    validation_file: list[str] = field(default_factory=list, metadata={"help": "The same, to evaluate on."})
    validation_fraction: float = field(
        default=0.05, metadata={"help": "Share of the text held out at its end if there is no validation split."}
    )
    text_column: str = field(default="text", metadata={"help": "Column that holds the text."})
    sample_by: Literal["document", "paragraph", "line"] = field(
        default="document", metadata={"help": "What is one document of a text file."}
    )
    file_format: str | None = field(
        default=None, metadata={"help": "text, json, csv or parquet, where the extension does not say it."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read the data while training."})
    shuffle_buffer_size: int = field(default=1000, metadata={"help": "Blocks among which a stream is shuffled."})
    tokenizer: str = field(
        default="bpe:4096", metadata={"help": "byte, bpe:SIZE trained on the spot, or a pretrained name or folder."}
    )
    block_size: int = field(default=512, metadata={"help": "Tokens in a training sequence."})
    respect_documents: bool = field(
        default=False, metadata={"help": "Mix each document alone: position_ids restart at its beginning."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens a masked model predicts."})
    max_eval_blocks: int | None = field(default=None, metadata={"help": "Evaluate on the first blocks only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})


@dataclass
class RunArguments(arguments.RunArguments):
    """How long, how large, and where to; the rest of the training arguments are transformers' own."""

    max_tokens: int | None = field(
        default=None, metadata={"help": "Budget of training tokens, instead of --max-steps or --num-train-epochs."}
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={"help": "Sequences an update over all devices; sets the gradient accumulation steps."},
    )


Arguments = arguments.Arguments[ModelArguments, DataArguments, RunArguments]
KINDS = (ModelArguments, DataArguments, RunArguments)
USAGE = "pretrain.py --output-dir DIR [--recipe FILE] [options]   (--help lists them)"


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line and the recipe that it names.

    Raises:
        ValueError: the recipe has a section or key that there is not, or arguments contradict each other.
    """
    parser = arguments.arguments_parser(KINDS, USAGE, __doc__, {})
    read = Arguments(*arguments.read_arguments(parser, KINDS, argv, REPLACES))
    _check(read)
    return read


def _check(arguments: Arguments) -> None:
    model, data, run, training = arguments.model, arguments.data, arguments.run, arguments.training
    if (model.model_type is None) == (model.config_file is None):
        raise ValueError("give either --model-type, such as tnn, or --config-file, and not both.")
    if (data.dataset is None) == (not data.train_file):
        raise ValueError("give either --dataset or --train-file, and not both.")
    if run.max_tokens is not None and training.max_steps > 0:
        raise ValueError("--max-tokens and --max-steps both say how long to train; give one of them.")
    if run.max_tokens is not None and run.max_seconds is not None:
        raise ValueError("--max-tokens and --max-seconds both say how long to train; give one of them.")
    arguments.check_length()
    if data.streaming and run.max_tokens is None and run.max_seconds is None and training.max_steps <= 0:
        raise ValueError(
            "a stream has no known length: with --streaming give --max-tokens, --max-steps or --max-seconds."
        )


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
    """Return the tokenizer of the run: made and saved by the first process, read by the others and a resumed run."""
    training = arguments.training
    saved = arguments.folder / "tokenizer_config.json"
    own = training.local_process_index == 0
    if saved.is_file() and (arguments.resume or not own):
        return AutoTokenizer.from_pretrained(arguments.folder)
    texts = (row["text"] for row in documents)
    if arguments.data.streaming:
        texts = (row["text"] for row in documents.take(STREAMED_TOKENIZER_DOCUMENTS))
    tokenizer = build_tokenizer(arguments.data.tokenizer, texts, mask_token=arguments.model.objective == "masked")
    with whole_files(arguments.folder, last=saved.name) as aside:
        tokenizer.save_pretrained(aside)
    return tokenizer


def build_config(arguments: Arguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Return the configuration of the model: what the tokenizer and the data ask for, then the user's overrides.

    Raises:
        ValueError: if the family or a field is unknown, a value is refused, or the vocabulary is too small.
    """
    model = arguments.model
    overrides = parse_overrides(model.config_overrides)
    if model.config_file is not None:
        if not Path(model.config_file).is_file():
            raise ValueError(f"there is no configuration file {model.config_file}. Check the spelling.")
        values = PreTrainedConfig.get_config_dict(model.config_file)[0]
        model_type = values.pop("model_type", None)
    else:
        values, model_type = {}, model.model_type
    derived = {
        **tokenizer_fields(tokenizer, arguments.data.block_size),
        "is_causal": model.objective == "causal",
    }
    if "max_position_embeddings" in values.keys() | overrides.keys():
        del derived["max_position_embeddings"]
    config = config_from_overrides(str(model_type), overrides, {**values, **derived})
    if config.vocab_size < len(tokenizer):
        raise ValueError(
            f"vocab_size is {config.vocab_size}, but the tokenizer has {len(tokenizer)} tokens; give at least that "
            "many."
        )
    return config


def build_model(arguments: Arguments, config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model with random weights from the seed of the run."""
    auto = AutoModelForCausalLM if arguments.model.objective == "causal" else AutoModelForMaskedLM
    set_seed(arguments.training.seed)
    model = auto.from_config(config)
    if arguments.data.respect_documents and "position_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"{type(model).__name__} takes no position_ids, so it cannot tell documents apart; leave out"
            " --respect-documents."
        )
    return model


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
        validation = validation.take(data.max_eval_blocks)
    if causal:
        return train, validation, total_bytes(validation)
    validation = mask_blocks(validation, tokenizer, mlm_probability=data.mlm_probability, seed=arguments.training.seed)
    return train, validation, None


def set_length(arguments: Arguments) -> None:
    """Turn the global batch and the budget of tokens into the `Trainer`'s accumulation steps and updates.

    Raises:
        ValueError: if the global batch does not divide, or if the budget does not pay for one update.
    """
    run, training = arguments.run, arguments.training
    sequences = training.train_batch_size * training.world_size
    if run.global_batch_size is not None:
        if run.global_batch_size % sequences:
            raise ValueError(
                f"a global batch of {run.global_batch_size} sequences does not divide into {training.world_size} "
                f"processes of {training.train_batch_size} sequences; change --global-batch-size or "
                "--per-device-train-batch-size."
            )
        training.gradient_accumulation_steps = run.global_batch_size // sequences
    if run.max_tokens is not None:
        tokens = tokens_per_update(arguments)
        if run.max_tokens < tokens:
            raise ValueError(
                f"--max-tokens is {run.max_tokens}, but one update takes {tokens} tokens; give at least that."
            )
        training.max_steps = run.max_tokens // tokens
    elif arguments.data.streaming and run.max_seconds is not None:
        training.max_steps = 1  # until the trial; the library asks for a number where data has no length


def tokens_per_update(arguments: Arguments) -> int:
    """Return training tokens that one update sees, over all processes and accumulation steps."""
    training = arguments.training
    sequences = training.train_batch_size * training.world_size * training.gradient_accumulation_steps
    return sequences * arguments.data.block_size


def prepare(arguments: Arguments) -> ResumableTrainer:
    """Return data, tokenizer and model as a `Trainer`."""
    training = arguments.training
    set_length(arguments)
    with training.main_process_first(desc="preparing the data"):
        if training.process_index == 0:  # or other machines would find what this one has begun to write
            overwrite = arguments.run.overwrite_output_dir
            prepare_run_folder(arguments.folder, resume=arguments.resume is not None, overwrite=overwrite)
        train, validation = load_documents(arguments.data)
        tokenizer = load_tokenizer(arguments, train)
        train, validation, num_bytes = build_blocks(arguments, tokenizer, train, validation)
    if arguments.data.streaming:
        train = EndlessStream(train, training.dataloader_num_workers, training.dataloader_prefetch_factor)
        training.dataloader_num_workers, training.dataloader_prefetch_factor = 0, None
    if validation is None:
        logger.warning("The stream has no validation split: nothing is evaluated. Name one with --validation-file.")
        training.eval_strategy = IntervalStrategy.NO
    model = build_model(arguments, build_config(arguments, tokenizer))
    rows = training.train_batch_size * arguments.data.block_size
    width = getattr(model.config, "hidden_size", 256)
    settle_precision(training, arguments.folder, earlier=arguments.earlier_folders, width=width, rows=rows)
    causal = arguments.model.objective == "causal"
    return ResumableTrainer(
        model=model,
        args=training,
        train_dataset=train,
        eval_dataset=validation,
        processing_class=tokenizer,
        data_collator=default_data_collator
        if causal
        else ReproducibleMaskingCollator(
            tokenizer=tokenizer, mlm_probability=arguments.data.mlm_probability, seed=training.seed
        ),
        preprocess_logits_for_metrics=lambda logits, labels: block_scores(logits, labels, causal=causal),
        compute_metrics=corpus_metrics(num_bytes),
        weight_decay_on_all_parameters=arguments.run.weight_decay_on_all_parameters,
        batch_norm_batches=arguments.run.batch_norm_batches,
        divergence=arguments.run.watch(),
    )


def results_of(arguments: Arguments, trainer: ResumableTrainer, seconds: float) -> dict[str, Any]:
    """Return everything there is to know about a finished run, ready for JSON."""
    history = trainer.state.log_history
    losses = [[entry["step"], entry["loss"]] for entry in history if "loss" in entry]
    evaluations = [entry for entry in history if "eval_token_loss" in entry]
    updates = trainer.state.global_step - trainer.first_step
    model: Any = trainer.model
    return {
        "evaluation": {k.removeprefix("eval_"): v for k, v in evaluations[-1].items()} if evaluations else None,
        "train_loss": losses[-1][1] if losses else None,
        "train_loss_curve": losses,
        "eval_loss_curve": [[entry["step"], entry["eval_token_loss"]] for entry in evaluations],
        "num_parameters": model.num_parameters(),
        "num_updates": trainer.state.global_step,
        "num_train_tokens": trainer.state.global_step * tokens_per_update(arguments),
        "tokens_per_second": updates * tokens_per_update(arguments) / seconds if updates else None,
        "train_seconds": seconds,
        **trainer.clock.measured(),
        "num_processes": arguments.training.world_size,
        "seed": arguments.training.seed,
        "precision": arguments.training.precision,
        "back_offs": trainer.divergence.back_offs,
        "arguments": arguments.to_json(),
        "environment": run_environment(),
    }


def train_and_save(arguments: Arguments, trainer: ResumableTrainer, checkpoint: str | None = None) -> dict[str, Any]:
    """Train from the start or from a checkpoint, evaluates, and writes the output folder."""
    folder = arguments.folder
    seconds = 0.0
    if checkpoint is None or not trainer.restore_finished(checkpoint):
        seconds = trainer.train(resume_from_checkpoint=checkpoint).metrics["train_runtime"]
    trainer.save_model()
    if trainer.eval_dataset is not None:
        trainer.evaluate()
    results = results_of(arguments, trainer, seconds)
    if trainer.is_world_process_zero():
        write_json(folder / "results.json", results)
        # The exact loss of evaluations, not the mean over batches that the library logs.
        curve = [{"step": step, "loss": loss} for step, loss in results["train_loss_curve"]]
        curve += [{"step": step, "eval_loss": loss} for step, loss in results["eval_loss_curve"]]
        if curve:
            plot_loss(curve, folder / "loss.png")
    return results


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line and return what is written to results.json; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    return run_script(
        "pretrain.py",
        lambda: parse_arguments(sys.argv[1:] if argv is None else argv),
        lambda arguments: (trainer := prepare(arguments), trainer),
        train_and_save,
    )


if __name__ == "__main__":
    main()
