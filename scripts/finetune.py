r"""Train a classifier on labeled data, from any checkpoint or from scratch, and measure it beside baselines.

    python scripts/finetune.py --model runs/masked --glue-task sst2 --data-dir glue --output-dir runs/sst2
    python scripts/finetune.py --model runs/tnn --train-file train.csv --validation-file dev.csv \
        --text-columns premise hypothesis --label-column label --baseline bag-of-words --output-dir runs/pairs
    python scripts/finetune.py --task token-classification --model NAME --dataset conll2003 --output-dir runs/ner
    python scripts/finetune.py --task question-answering --model NAME --train-file squad.json --output-dir runs/qa
    python scripts/finetune.py --recipe scripts/recipes/lra/image.yaml --family fd_tnn --output-dir runs/image
    python scripts/finetune.py --task image-classification --train-file mnist.parquet --model-type tnn \
        --config-overrides image_size=28 num_channels=1 patch_size=4 is_causal=false hidden_size=64 \
        num_hidden_layers=2 --optim muon --learning-rate 4e-3 --output-dir runs/mnist
    torchrun --nproc-per-node 2 scripts/finetune.py ... --use-cpu
    accelerate launch scripts/finetune.py ...

A recipe holds the same arguments in a file; what is given on the command line overrides it. The output folder gets the
model with its tokenizer or image processor, results.json, loss.png and, with --save-predictions, what the model says
about each example. Every training argument of transformers works too.
"""

import itertools
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_seqmix.training.command import packages_explained

with packages_explained("finetune.py"):
    import datasets
    from finetuning.arguments import LEARNING_RATE, Arguments, check_schedule, parse_arguments
    from finetuning.evaluation import Run, add_baselines, evaluate_split, reduce_logits, scorer, warn_of_unscored
    from finetuning.examples import EVALUATED, draw_rows, load_examples
    from finetuning.inputs import check_classes, make_task, prepare_inputs
    from finetuning.lengths import count_cut, longest_input, warn_of_cut
    from finetuning.models import check_model, with_classes_of_head
    from finetuning.scoring import baselines, default_metrics, results_table, trains_on_classes
    from transformers import EarlyStoppingCallback, TrainerCallback

    from hf_seqmix._files import write_json
    from hf_seqmix.analysis.plots import plot_loss
    from hf_seqmix.data.labeled import (
        TEXTS_READ,
        WAS_CUT,
        Classification,
        QuestionAnswering,
        SequenceClassification,
        TokenClassification,
    )
    from hf_seqmix.metrics import load_metric
    from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
    from hf_seqmix.training import prepare_run_folder

    # Importing the package registers its families with the Auto classes.
    from hf_seqmix.training.environment import run_environment
    from hf_seqmix.training.folders.resumable import ResumableTrainer
    from hf_seqmix.training.folders.same_run import train_unless_finished
    from hf_seqmix.training.precision import settle_precision
    from hf_seqmix.training.scoring import METRIC_KEYS, check_best_metric
    from hf_seqmix.training.script import run_script

logger = logging.getLogger("finetune")


def prepare(arguments: Arguments) -> Run:
    """Return everything up to the first step."""
    data, training = arguments.data, arguments.training
    check_model(arguments)
    if arguments.model.model is None:
        training.warn_of_fine_tuning_rate(LEARNING_RATE)
    with training.main_process_first(desc="preparing the data"):
        if training.process_index == 0:
            overwrite = arguments.run.overwrite_output_dir
            read = (arguments.model.model, arguments.model.tokenizer)
            prepare_run_folder(arguments.folder, resume=arguments.resume is not None, overwrite=overwrite, read=read)
        examples = load_examples(arguments)
        # A few examples need not show every label, nor what is left of a training file.
        task = make_task(data, examples["train"])
        if isinstance(task, Classification):
            check_classes(task, examples, EVALUATED, warn=training.process_index == 0)
        if training.label_smoothing_factor and not trains_on_classes(task):
            raise ValueError(
                f"--label-smoothing-factor is {training.label_smoothing_factor:g}, and the labels are no single"
                " classes, which alone can be smoothed. Leave the option out."
            )
        if not isinstance(task, QuestionAnswering):
            task = with_classes_of_head(arguments, task)
        rows = draw_rows(arguments, examples)
        parts = {split: examples[split if split in examples else "train"] for split in rows}
        examples = datasets.DatasetDict({split: part.select(rows[split]) for split, part in parts.items()})
        metrics = data.metrics or default_metrics(task)
        for name in metrics:
            load_metric(name)
        for split in ("train", "validation"):
            if not task.has_labels(examples[split]):
                raise ValueError(f"the {split} data has no labels; they are needed to train and to evaluate.")
        scored = [split for split in EVALUATED if split in examples and task.has_labels(examples[split])]
        for split in ("train", *scored):
            task.references(examples[split], split)  # what is wrong with labels is not laid to metrics
        if training.process_index == 0:
            warn_of_unscored(task, examples)
        known: dict[str, float] = {}
        for name, split in itertools.product(metrics, scored):
            try:
                scores = next(iter(baselines(task, [name], examples, [split])[split].values()))
            except ValueError as error:
                reason = str(error).partition("\n")[0].rstrip(".")
                if name in default_metrics(task):  # which fit the task, so that it is the data
                    number = len(examples[split])
                    raise ValueError(
                        f"the {split} data cannot be scored by {name}: {reason}. It has {number} "
                        f"row{'s' * (number > 1)}; give more, or other --metrics."
                    ) from error
                raise ValueError(
                    f"--metrics {name} does not fit the task {data.task}: {reason}. Its own are "
                    f"{', '.join(default_metrics(task))}."
                ) from error
            if split == "validation":
                known |= scores
        check_best_metric(training.metric_for_best_model, known)
        task, model, encoded, processor, collator = prepare_inputs(arguments, task, examples)
        check_schedule(arguments, len(encoded["train"]))  # of long contexts several windows each
        cut = count_cut(task, encoded)
    if cut and training.process_index == 0:
        warn_of_cut(cut, examples, longest_input(arguments, model, processor), model, processor)
    if isinstance(task, (SequenceClassification, TokenClassification)):
        encoded = encoded.remove_columns(WAS_CUT)
    width = getattr(model.config, "hidden_size", 256)
    settle_precision(training, arguments.folder, earlier=arguments.earlier_folders, width=width)
    texts = None
    if arguments.data.baseline == "bag-of-words":
        texts = {split: rows[TEXTS_READ][:] for split, rows in encoded.items()}
        encoded = encoded.remove_columns(TEXTS_READ)
    trainer = ResumableTrainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        processing_class=processor,
        data_collator=collator,
        preprocess_logits_for_metrics=partial(reduce_logits, task),
        callbacks=stop_early(arguments, metrics[0]),
        schedule_steps=arguments.run.schedule_steps,
        weight_decay_on_all_parameters=arguments.run.weight_decay_on_all_parameters,
        batch_norm_batches=arguments.run.batch_norm_batches,
        divergence=arguments.run.watch(),
    )
    if not isinstance(model, SeqMixPreTrainedModel):
        # Classifiers of transformers accept the number of items in a whole update and ignore it, and the Trainer then
        # leaves the gradients of an accumulated update too large by the number of its parts (transformers#47688).
        trainer.model_accepts_loss_kwargs = False
    run = Run(arguments, task, metrics, examples, rows, encoded, model, trainer, cut, texts)
    trainer.compute_metrics = scorer(run, "validation")
    return run


def stop_early(arguments: Arguments, metric: str) -> list[TrainerCallback]:
    """Return what ends a run that gets no better by a metric, if that is asked for; the best model is then kept."""
    training, patience = arguments.training, arguments.run.early_stopping_patience
    if patience is None:
        return []
    training.load_best_model_at_end = True
    # Or a resumed run would count the evaluations without a better one from zero.
    training.restore_callback_states_from_checkpoint = True
    if not training.names_best_metric:
        training.metric_for_best_model = METRIC_KEYS.get(metric, Path(metric).stem)
        training.greater_is_better = True
    return [EarlyStoppingCallback(patience)]


def results_of(run: Run, evaluations: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Return everything there is to know about a finished run, ready for JSON."""
    arguments, trainer = run.arguments, run.trainer
    history = trainer.state.log_history
    return {
        "task": arguments.data.task,
        "model": arguments.model.model or arguments.model.model_type,
        **{key: value for key, value in run.task.config_fields().items() if key in ("problem_type", "num_labels")},
        **evaluations,
        "cut_texts": run.cut,
        "train": {
            "examples": len(run.examples["train"]),
            "loss": trainer.mean_train_loss,
            "seconds": seconds,
            **trainer.clock.measured(),
        },
        "train_loss_curve": [[entry["step"], entry["loss"]] for entry in history if "loss" in entry],
        "validation_curve": [
            {"step": entry["step"], **{k.removeprefix("eval_"): v for k, v in entry.items() if k.startswith("eval_")}}
            for entry in history
            if "eval_loss" in entry
        ],
        "num_updates": trainer.state.global_step,
        "best_checkpoint": trainer.state.best_model_checkpoint,
        "num_parameters": run.model.num_parameters(),
        "num_processes": arguments.training.world_size,
        "seed": arguments.training.seed,
        "precision": arguments.training.precision,
        "back_offs": trainer.divergence.back_offs,
        "arguments": arguments.to_json(),
        "environment": run_environment(),
    }


def train_and_save(run: Run, checkpoint: str | None = None) -> dict[str, Any]:
    """Train from the start or from a checkpoint, evaluate, and write the output folder."""
    arguments, trainer, folder = run.arguments, run.trainer, run.folder
    seconds, kept = train_unless_finished(trainer, checkpoint)
    if kept is not None:
        return kept
    evaluations = {split: evaluate_split(run, split) for split in EVALUATED if split in run.encoded}
    if trainer.is_world_process_zero():
        add_baselines(run, evaluations)
    results = results_of(run, evaluations, seconds)
    if trainer.is_world_process_zero():
        write_json(folder / "results.json", results)
        history = trainer.state.log_history
        if any("loss" in entry for entry in history):
            regression = results.get("problem_type") == "regression"
            title = f"{arguments.data.glue_task or arguments.data.task}: {arguments.model.name}"
            plot_loss(
                history,
                folder / "loss.png",
                unit="mean squared error" if regression else "cross-entropy, nats",
                title=title,
            )
        print(results_table(arguments.model.name, evaluations))
    return results


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line and return what is written to results.json; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    return run_script(
        "finetune.py",
        lambda: parse_arguments(sys.argv[1:] if argv is None else argv, __doc__),
        lambda arguments: (run := prepare(arguments), run.trainer),
        lambda arguments, run, checkpoint: train_and_save(run, checkpoint),
    )


if __name__ == "__main__":
    main()
