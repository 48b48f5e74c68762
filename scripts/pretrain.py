r"""Pretrain a causal or masked language model of any family on any text.

    python scripts/pretrain.py --recipe scripts/recipes/python-2m/tnn.yaml --output-dir runs/tnn
    python scripts/pretrain.py --model-type tnn --config-overrides hidden_size=192 num_hidden_layers=4 \
        --train-file book.txt --tokenizer bpe:4096 --max-tokens 2_000_000 \
        --optim muon --learning-rate 4e-3 --warmup-steps 100 --output-dir runs/book
    python scripts/pretrain.py --recipe RECIPE --model runs/tnn --state-segments 16 --output-dir runs/longer
    torchrun --nproc-per-node 2 scripts/pretrain.py ... --use-cpu
    accelerate launch scripts/pretrain.py ...
    python scripts/pretrain.py --tokenized --train-file blocks.parquet --config-overrides vocab_size=64 ...

A recipe holds the same arguments in a file; what is given on the command line overrides it. The output folder gets the
model and its tokenizer, checkpoints, results.json and loss.png. `--resume` continues an interrupted run from its
newest whole checkpoint, `--resume PATH` from that one.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_seqmix.training.command import packages_explained

with packages_explained("pretrain.py"):
    import numpy as np
    from pretraining.arguments import Arguments, parse_arguments, set_length, tokens_per_update
    from pretraining.inputs import build_blocks, load_documents, load_tokenizer
    from pretraining.models import build_config, build_model, check_model
    from pretraining.tokens import check_ids, check_labels, load_blocks
    from transformers import EvalPrediction, default_data_collator
    from transformers.trainer_utils import IntervalStrategy

    from hf_seqmix._files import write_json
    from hf_seqmix.analysis.kernels import dead_encoders
    from hf_seqmix.analysis.plots import plot_loss
    from hf_seqmix.data import ReproducibleMaskingCollator
    from hf_seqmix.training import block_scores, corpus_metrics, prepare_run_folder
    from hf_seqmix.training.environment import run_environment
    from hf_seqmix.training.folders.resumable import ResumableTrainer
    from hf_seqmix.training.folders.same_run import train_unless_finished
    from hf_seqmix.training.precision import settle_precision
    from hf_seqmix.training.scoring import check_best_metric
    from hf_seqmix.training.script import run_script
    from hf_seqmix.training.segments.stateful import StatefulTrainer
    from hf_seqmix.training.segments.streaming import EndlessStream

logger = logging.getLogger(__name__)

DEAD_BEYOND = 64
"""Lags that are looked at once training is over; a network that has died is the same at all."""


def prepare(arguments: Arguments) -> ResumableTrainer:
    """Return data, tokenizer and model as a `Trainer`."""
    training, causal = arguments.training, arguments.model.objective == "causal"
    set_length(arguments)
    check_model(arguments)
    if arguments.model.model is None:
        training.warn_of_fine_tuning_rate(type(training).learning_rate)
    with training.main_process_first(desc="preparing the data"):
        if training.process_index == 0:  # or other machines would find what this one has begun to write
            overwrite = arguments.run.overwrite_output_dir
            read = (arguments.model.model, arguments.data.tokenizer)
            prepare_run_folder(arguments.folder, resume=arguments.resume is not None, overwrite=overwrite, read=read)
        tokenizer, num_bytes = None, None
        if arguments.data.tokenized:
            train, validation = load_blocks(arguments)
        else:
            train, validation = load_documents(arguments.data)
            tokenizer = load_tokenizer(arguments, train)
            train, validation, num_bytes = build_blocks(arguments, tokenizer, train, validation)
    if arguments.data.streaming:
        train = EndlessStream(train, training.dataloader_num_workers, training.dataloader_prefetch_factor)
        training.dataloader_num_workers, training.dataloader_prefetch_factor = 0, None
    metrics = corpus_metrics(num_bytes)
    check_best_metric(training.metric_for_best_model, metrics(EvalPrediction(np.ones((1, 3)), np.ones(1))))
    if training.metric_for_best_model is not None and not training.names_best_metric:
        # By the name that results.json gives the number.
        training.metric_for_best_model, training.greater_is_better = "token_loss", False
    if validation is None:
        logger.warning("The stream has no validation split: nothing is evaluated. Name one with --validation-file.")
        training.eval_strategy = IntervalStrategy.NO
    config = build_config(arguments, tokenizer)
    if arguments.data.tokenized:
        check_ids(config.vocab_size, train, validation)
        check_labels(train, "training", causal)
    if validation is not None and not arguments.data.streaming:
        check_labels(validation, "validation", causal)
    model = build_model(arguments, config)
    rows = training.train_batch_size * arguments.data.block_size
    width = getattr(model.config, "hidden_size", 256)
    settle_precision(training, arguments.folder, earlier=arguments.earlier_folders, width=width, rows=rows)
    return StatefulTrainer(
        model=model,
        args=training,
        train_dataset=train,
        eval_dataset=validation,
        processing_class=tokenizer,
        data_collator=default_data_collator
        if causal or tokenizer is None  # whose rows say what is masked
        else ReproducibleMaskingCollator(
            tokenizer=tokenizer,
            mlm_probability=arguments.data.mlm_probability,
            seed=training.seed,
            pair_share=arguments.data.pair_share,
            never_empty=True,
        ),
        preprocess_logits_for_metrics=lambda logits, labels: block_scores(logits, labels, causal=causal),
        compute_metrics=metrics,
        weight_decay_on_all_parameters=arguments.run.weight_decay_on_all_parameters,
        batch_norm_batches=arguments.run.batch_norm_batches,
        divergence=arguments.run.watch(),
        states=arguments.run.states(),
    )


def tokens_seen(arguments: Arguments, trainer: ResumableTrainer, updates: int) -> int:
    """Return the training tokens of so many updates; the last of an epoch has as many rows as are left."""
    most = tokens_per_update(arguments)
    rows: Any = trainer.train_dataset
    if arguments.data.streaming or arguments.run.state_segments or not hasattr(rows, "__len__"):
        return updates * most
    epoch = len(rows) * arguments.data.block_size
    if arguments.training.dataloader_drop_last:  # the rows that fill no batch are left out
        batch = arguments.training.train_batch_size * arguments.training.world_size
        epoch = len(rows) // batch * batch * arguments.data.block_size
    whole, rest = divmod(updates, -(-epoch // most))
    return whole * epoch + min(epoch, rest * most)


def results_of(arguments: Arguments, trainer: ResumableTrainer, seconds: float) -> dict[str, Any]:
    """Return everything there is to know about a finished run, ready for JSON."""
    history = trainer.state.log_history
    losses = [[entry["step"], entry["loss"]] for entry in history if "loss" in entry]
    evaluations = [entry for entry in history if "eval_token_loss" in entry]
    updates = trainer.state.global_step - trainer.first_step
    tokens, before = (tokens_seen(arguments, trainer, n) for n in (trainer.state.global_step, trainer.first_step))
    model: Any = trainer.model
    return {
        "evaluation": {k.removeprefix("eval_"): v for k, v in evaluations[-1].items()} if evaluations else None,
        "train_loss": losses[-1][1] if losses else None,
        "train_loss_curve": losses,
        "eval_loss_curve": [[entry["step"], entry["eval_token_loss"]] for entry in evaluations],
        "num_parameters": model.num_parameters(),
        "num_updates": trainer.state.global_step,
        "num_train_tokens": tokens,
        "tokens_per_second": (tokens - before) / seconds if updates else None,
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
    """Train from the start or from a checkpoint, evaluate, and write the output folder."""
    folder = arguments.folder
    seconds, kept = train_unless_finished(trainer, checkpoint)
    if kept is not None:
        return kept
    if trainer.eval_dataset is not None:
        trainer.evaluate()
    results = results_of(arguments, trainer, seconds)
    if trainer.is_world_process_zero():
        write_json(folder / "results.json", results)
        # By the loss that results.json has.
        curve = [{"step": step, "loss": loss} for step, loss in results["train_loss_curve"]]
        curve += [{"step": step, "eval_loss": loss} for step, loss in results["eval_loss_curve"]]
        if curve:
            plot_loss(curve, folder / "loss.png")
        print(summary(results, folder))
        model: Any = trainer.model
        if arguments.training.world_size == 1 and (dead := dead_encoders(model, DEAD_BEYOND)):
            logger.warning(
                f"Networks of kernels no longer depend on the lag: {', '.join(dead)}. These layers mix by their decay "
                "alone. Train with rpe_activation=silu, or with a lower --kernel-learning-rate."
            )
    return results


def summary(results: Mapping[str, Any], folder: Path) -> str:
    """Return the last evaluation, as results.json has it, and where everything is, in a line."""
    figures = results["evaluation"] or {"train_loss": results["train_loss"]}
    names = ("token_loss", "perplexity", "bits_per_byte", "train_loss")
    said = ", ".join(f"{name} {figures[name]:.4f}" for name in names if figures.get(name) is not None)
    files = "model, results.json and loss.png are" if (folder / "loss.png").is_file() else "model and results.json are"
    return f"{f'{said}; ' if said else ''}{files} in {folder}"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line and return what is written to results.json; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    return run_script(
        "pretrain.py",
        lambda: parse_arguments(sys.argv[1:] if argv is None else argv, __doc__),
        lambda arguments: (trainer := prepare(arguments), trainer),
        train_and_save,
    )


if __name__ == "__main__":
    main()
