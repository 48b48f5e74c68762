"""The command line of pretrain.py: its arguments, the recipe it may name, and how long a run is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hf_seqmix.training import arguments, check_fields, parse_overrides
from hf_seqmix.training.segments.carried_states import StateSettings

# Ways to say the same thing: one of them on the command line replaces the others of a recipe.
ALTERNATIVES = (
    {"model", "model_type", "config_file"},
    {"dataset", "train_file"},
    {"max_tokens", "max_steps", "num_train_epochs", "max_seconds"},
    {"global_batch_size", "gradient_accumulation_steps"},
)

REPLACES = {argument: group for group in ALTERNATIVES for argument in group}
# A trained model brings these along.
REPLACES["model"] = {*REPLACES["model"], "config_overrides", "tokenizer"}
# Whether more is better belongs to the metric.
REPLACES["metric_for_best_model"] = {"greater_is_better"}
# What is evaluated on belongs to what is trained on.
for _source in ("dataset", "train_file"):
    REPLACES[_source] = {*REPLACES[_source], "validation_file"}

TOKENIZER = "bpe:4096"
"""Of a model with random weights, if nothing else is said."""


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
    model: str | None = field(
        default=None,
        metadata={
            "help": "A trained model to train further instead, a folder or a name on the Hub: its weights, "
            "configuration and tokenizer, but no optimizer; --resume goes on with an interrupted run."
        },
    )
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
    tokenized: bool = field(
        default=False,
        metadata={
            "help": "The rows hold input_ids, --block-size of them, and labels where not every token is predicted: "
            "no tokenizer is made. The configuration says vocab_size."
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={
            "help": "byte, bpe:SIZE trained on the spot, or a pretrained name or folder; by default that of --model, "
            f"else {TOKENIZER}."
        },
    )
    block_size: int = field(default=512, metadata={"help": "Tokens in a training sequence."})
    respect_documents: bool = field(
        default=False, metadata={"help": "Mix each document alone: position_ids restart at its beginning."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens a masked model predicts."})
    pair_share: float = field(
        default=0.0,
        metadata={
            "help": "Share of a masked model's blocks that hold a text and, after a separator, a rewriting of it "
            "(parts in another order, some replaced): for models to be fine-tuned on pairs of sentences."
        },
    )
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
    state_segments: int = field(
        default=0,
        metadata={
            "help": "Read streams of so many consecutive blocks, a row each: a block goes on from the state that the "
            "one before it left, without gradients (--state-segments 16 with blocks of 256: texts of 4096 tokens). "
            "0 reads every block alone."
        },
    )
    states_from: float = field(
        default=0.0,
        metadata={"help": "Share of the updates after which --state-segments begins; blocks before are read alone."},
    )

    def states(self) -> StateSettings | None:
        """Return which blocks go on from the state of the one before; None for none.

        Raises:
            ValueError: for a number or share that makes no sense.
        """
        if self.state_segments == 0:
            if self.states_from != 0:
                raise ValueError(
                    f"--states-from is {self.states_from}, but there are no streams: give --state-segments."
                )
            return None
        return StateSettings(self.state_segments, self.states_from)


Arguments = arguments.Arguments[ModelArguments, DataArguments, RunArguments]
KINDS = (ModelArguments, DataArguments, RunArguments)
USAGE = "pretrain.py --output-dir DIR [--recipe FILE] [options]   (--help lists them)"


def parse_arguments(argv: Sequence[str], description: str | None = None) -> Arguments:
    """Read the command line and the recipe that it names.

    Raises:
        ValueError: the recipe has a section or key that there is not, or arguments contradict each other.
    """
    parser = arguments.arguments_parser(KINDS, USAGE, description, {})
    read = Arguments(*arguments.read_arguments(parser, KINDS, argv, REPLACES))
    _check(read)
    return read


def _check(arguments: Arguments) -> None:
    model, data, run, training = arguments.model, arguments.data, arguments.run, arguments.training
    if [model.model_type, model.config_file, model.model].count(None) != 2:
        raise ValueError(
            "give either --model-type, such as tnn, or --config-file, or --model, a trained one, and no two of them."
        )
    if model.model_type is not None:
        check_fields(model.model_type, parse_overrides(model.config_overrides))
    if model.model is not None and model.config_overrides:
        raise ValueError(
            "--config-overrides belong to a model with random weights; --model has its own configuration."
        )
    if (data.dataset is None) == (not data.train_file):
        raise ValueError("give either --dataset or --train-file, and not both.")
    if run.max_tokens is not None and training.max_steps > 0:
        raise ValueError("--max-tokens and --max-steps both say how long to train; give one of them.")
    if run.max_tokens is not None and run.max_seconds is not None:
        raise ValueError("--max-tokens and --max-seconds both say how long to train; give one of them.")
    if run.max_tokens is not None and training.auto_find_batch_size:
        raise ValueError(
            "--max-tokens becomes a number of updates by the size of a batch, which --auto-find-batch-size changes: "
            "leave it out, or give --max-steps."
        )
    arguments.check()
    least = {
        "--block-size": (data.block_size, 2),
        "--max-eval-blocks": (data.max_eval_blocks, 1),
        "--global-batch-size": (run.global_batch_size, 1),
        "--shuffle-buffer-size": (data.shuffle_buffer_size, 1),
    }
    for name, (value, bound) in least.items():
        if value is not None and value < bound:
            raise ValueError(f"{name} is {value}; it must be at least {bound}.")
    if not 0 < data.mlm_probability < 1:
        raise ValueError(f"--mlm-probability must lie between 0 and 1; given {data.mlm_probability}.")
    if data.pair_share != 0:
        _check_pairs(model, data)
    if data.streaming and run.max_tokens is None and run.max_seconds is None and training.max_steps <= 0:
        raise ValueError(
            "a stream has no known length: with --streaming give --max-tokens, --max-steps or --max-seconds."
        )
    if not 0 < data.validation_fraction < 1:
        raise ValueError(f"--validation-fraction must lie between 0 and 1; given {data.validation_fraction}.")
    if data.tokenized and data.streaming:
        raise ValueError("--tokenized rows are read as a whole; leave out --streaming.")
    if data.tokenized and data.respect_documents:
        raise ValueError("--tokenized rows do not say where a document ends; leave out --respect-documents.")
    if (
        data.tokenized
        and "vocab_size" not in parse_overrides(model.config_overrides)
        and not (model.config_file or model.model)
    ):
        raise ValueError(
            "--tokenized rows come without a tokenizer, which would say how many tokens there are: give "
            "--config-overrides vocab_size=NUMBER."
        )
    if run.states() is not None:
        _check_states(model, data)


def _check_pairs(model: ModelArguments, data: DataArguments) -> None:
    if not 0 < data.pair_share <= 1:
        raise ValueError(f"--pair-share must lie between 0 and 1; given {data.pair_share}.")
    if model.objective != "masked":
        raise ValueError(f"--pair-share goes with --objective masked; the objective is {model.objective}.")
    if data.block_size < 16:
        raise ValueError(
            f"--pair-share puts two texts into a block: --block-size must be at least 16; given {data.block_size}."
        )
    for option, given in (("--tokenized", data.tokenized), ("--respect-documents", data.respect_documents)):
        if given:
            raise ValueError(f"--pair-share makes new blocks, which does not go with {option}: leave one of them out.")


def _check_states(model: ModelArguments, data: DataArguments) -> None:
    if model.objective != "causal":
        raise ValueError(
            f"--state-segments goes with --objective causal: a {model.objective} model sees both sides and has no "
            "state."
        )
    if data.streaming:
        raise ValueError(
            "--state-segments reads blocks in an order of its own, which a stream has not: leave out --streaming."
        )
    if data.respect_documents:
        raise ValueError(
            "--state-segments hands states on, and --respect-documents lets none pass the border of a document: leave "
            "one of them out."
        )


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
