"""What each of two processes does in `test_distributed.py`, and what one process does alone, for comparison.

    python -m tests.ecosystem.distributed_worker FOLDER KIND...

The worker forks once everything is imported, which takes longer than most of what the processes do. Both read models
from FOLDER/models; FOLDER/results.json and the trained models are written.
"""

import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

from hf_seqmix.training.every_row import EveryRowTrainer
from hf_seqmix.training.optimizers import RoleOptimizers
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model

ROWS, LENGTH, BATCH, UPDATES = 32, 12, 4, 8
RATE = 0.2
# Older releases of the library would wrap them once more.
TRAINER_TAKES_SPLIT_MODELS = hasattr(PreTrainedModel, "is_distributed_loading_by_transformers")

# Whose processes share whole models or pieces of any, which asks nothing of a family: the others are slow tests.
FEW = ["seqmix_hybrid"]

# Shards of a stream, and workers that read them in each process; again the others are slow tests.
STREAMS = [(1, 0), (3, 2), (4, 0)]
OTHER_STREAMS = [(1, 2), (3, 0), (4, 2)]

# What a plan depends on: the form of a mixer, and mixers that split the same names in two ways.
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fd_tnn both ways": ("fd_tnn", "ForMaskedLM", {}),
    "tnn after norms, learned positions": (
        "tnn",
        "ForMaskedLM",
        {"norm_position": "post", "norm_type": "layer", "position_embedding_type": "learned"},
    ),
    "tnn of short and long decays": ("tnn", "ForCausalLM", {"channel_decays": [0.5, 0.9, 0.99]}),
    "ski_tnn of short and long decays": ("ski_tnn", "ForMaskedLM", {"channel_decays": [0.5, 0.8, 0.95]}),
    "tnn untied": ("tnn", "ForCausalLM", {"tie_word_embeddings": False}),
    "tnn on images": (
        "tnn",
        "ForImageClassification",
        {"image_size": [4, 6], "mixing_dimensions": 2, "is_causal": False, "num_labels": 3},
    ),
    "ski_tnn on images": (
        "ski_tnn",
        "ForImageClassification",
        {"image_size": [4, 6], "mixing_dimensions": 2, "num_labels": 3},
    ),
    "poly degree 5": ("poly_transformer", "ForCausalLM", {"degree": 5}),
    "poly degree 4": ("poly_transformer", "ForCausalLM", {"degree": 4}),
    "poly degree 2.5": ("poly_transformer", "ForCausalLM", {"degree": 2.5}),
    "poly soft degree": ("poly_transformer", "ForCausalLM", {"degree_form": "soft"}),
    "poly degrees of heads": ("poly_transformer", "ForCausalLM", {"head_degrees": [3, 4]}),
    "poly gated": ("poly_transformer", "ForCausalLM", {"forget_gate": True}),
    "poly gated degrees of heads": ("poly_transformer", "ForCausalLM", {"head_degrees": [3, 4], "forget_gate": True}),
    "poly squared": (
        "poly_transformer",
        "ForCausalLM",
        {"kernel_power": 2, "forget_gate": True, "denominator": True},
    ),
    "poly static norms": ("poly_transformer", "ForCausalLM", {"normalization": "static"}),
    "poly static mixing": ("poly_transformer", "ForCausalLM", {"mixing": "triangular"}),
    "ipa copies": (
        "ipa",
        "ForCausalLM",
        {"copy_head": True, "copy_head_tokens": 2, "copy_head_state": True, "token_shift": 3},
    ),
    "ipa one row center": ("ipa", "ForCausalLM", {"num_row_centers": 1, "tie_iterations": True}),
    "ipa both norms": ("ipa", "ForCausalLM", {"kernel_norm": "mix"}),
    "hybrid of tnn and ipa": (
        "seqmix_hybrid",
        "ForCausalLM",
        {"mixer_types": ["tnn", "ipa"], "mixer_configs": {"ipa": {"num_centers": 2}}},
    ),
    "tnn after convolutions": ("tnn", "ForCausalLM", {"short_conv_taps": 3}),
    "hybrid of convolutions": (
        "seqmix_hybrid",
        "ForCausalLM",
        {
            "mixer_types": ["short_conv", "attention"],
            "mixer_configs": {"attention": {"num_heads": 2}},
            "short_conv_taps": 4,
        },
    ),
    "hybrid of three": (
        "seqmix_hybrid",
        "ForCausalLM",
        {
            "mixer_types": ["fd_tnn", "attention", "poly_transformer"],
            "num_hidden_layers": 3,
            "mixer_configs": {"attention": {"num_heads": 2}, "poly_transformer": {"num_attention_heads": 4}},
        },
    ),
}

# Heads whose evaluations are compared, with fields of their configurations.
EVALUATED: dict[str, tuple[str, dict[str, Any]]] = {
    "causal": ("ForCausalLM", {}),
    "masked": ("ForMaskedLM", {}),
    "classes": ("ForSequenceClassification", {"num_labels": 3}),
    "several labels": (
        "ForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    "numbers": ("ForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "tags": ("ForTokenClassification", {"num_labels": 300}),
    "numbers of tokens": ("ForTokenClassification", {"num_labels": 1, "problem_type": "regression"}),
    "answers": ("ForQuestionAnswering", {}),
}
# Rows, and how many a batch has: the second of two processes has a repeat, only repeats, and a whole batch of them.
EVALUATIONS = [(13, 4), (9, 4), (3, 5), (16, 4)]


def head_of(model_type: str) -> str:
    """Name the language model of a family."""
    return "ForCausalLM" if model_type in CAUSAL else "ForMaskedLM"


def rows() -> list[dict[str, Tensor]]:
    """Return rows of 1 to 11 targets each, so that a mean of means of processes is not the mean; some end in pads."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(ROWS):
        ids = torch.randint(0, 300, (LENGTH,), generator=generator)
        mask = torch.ones(LENGTH, dtype=torch.long)
        mask[LENGTH - i % 3 :] = 0
        labels = torch.where(mask == 1, ids, -100)
        labels[: LENGTH - 1 - (7 * i) % 11] = -100
        labels[LENGTH - 3] = ids[LENGTH - 3]
        made.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return made


def by_trainer(model: PreTrainedModel, folder: Path, batch_size: int = BATCH, accumulation: int = 1) -> list[float]:
    """Train with the `Trainer` of transformers, and return the loss of each update."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        max_steps=UPDATES,
        train_sampling_strategy="sequential",
        # Not an optimizer that gradients of any size look the same to.
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        average_tokens_across_devices=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_timeout=120,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def rows_for(name: str) -> list[dict[str, Tensor]]:
    """Return rows with the labels of a head; tokens have unequal numbers of labels, of which some rows have none."""
    data = rows()
    for place, row in enumerate(data):
        ids, labels = row["input_ids"], row["labels"]
        if place % 5 == 4:
            labels[:] = -100
        if name == "answers":
            del row["labels"]
            row |= {"start_positions": ids[0] % 4, "end_positions": 4 + ids[1] % 4}
        elif name in ("classes", "numbers"):
            row["labels"] = ids[0] % 3 if name == "classes" else (ids[0] / 100 if place else torch.tensor(-100.0))
        elif name == "several labels":
            row["labels"] = (ids[:3] % 2).float()
        elif name == "numbers of tokens":
            row["labels"] = torch.where(labels == -100, -100.0, labels / 100)
    return data


def evaluated(name: str, number: int, batch_size: int, folder: Path) -> dict[str, Any]:
    """Return the loss of some rows under a head, by an evaluation and by predictions."""
    suffix, fields = EVALUATED[name]
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_eval_batch_size=batch_size,
        report_to="none",
        disable_tqdm=True,
        ddp_timeout=120,
        dataloader_pin_memory=False,
    )
    trainer = EveryRowTrainer(model=tiny_model("tnn", suffix, **fields), args=arguments)
    data: Any = rows_for(name)[:number]
    predicted = trainer.predict(data)
    return {
        "losses": [trainer.evaluate(data)["eval_loss"], (predicted.metrics or {})["test_loss"]],
        "rows": len(predicted.predictions[0] if name == "answers" else predicted.predictions),
    }


def muon_of(model: PreTrainedModel) -> torch.optim.Optimizer:
    """Return what `--optim muon` makes for a model; AdamW's rate is low, since tiny gradients have any sign."""
    adamw = {"lr": 1e-3, "eps": 1e-3}
    return RoleOptimizers()(model, decays=lambda model: (), adamw=adamw, weight_decay=0.0, muon={"lr": RATE / 4})


def by_loop(
    model: PreTrainedModel, index: int = 0, processes: int = 1, accumulation: int = 1, muon: bool = False
) -> list[float]:
    """Train as `by_trainer` does, where an older `Trainer` does not take a split model.

    Args:
        model: the model to train.
        index: number of this process, which takes every row of a batch with that number.
        processes: number of processes; all rows are this process's if there is one.
        accumulation: parts of the rows whose gradients are added up.
        muon: whether by Muon and AdamW.
    """
    factor = processes if processes == 1 or gradients_are_averaged() else 1
    optimizer = muon_of(model) if muon else torch.optim.SGD(model.parameters(), lr=RATE)
    data, losses = rows(), []
    model.train()
    for start in range(0, UPDATES * BATCH, BATCH):
        batch = data[start : start + BATCH]
        items = torch.stack([row["labels"] != -100 for row in batch]).sum()
        own = batch[index * BATCH // processes : (index + 1) * BATCH // processes]
        total = torch.zeros(())
        for part in range(accumulation):
            part_rows = own[part * len(own) // accumulation : (part + 1) * len(own) // accumulation]
            inputs = {name: torch.stack([row[name] for row in part_rows]) for name in part_rows[0]}
            loss = model(**inputs, num_items_in_batch=items).loss
            (loss * factor).backward()
            total += loss.detach().float()
        if processes > 1:
            dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return losses


def gradients_are_averaged() -> bool:
    """Return whether `fully_shard` averages gradients over processes; on a CPU, torch 2.8 adds gradients up."""
    layer = nn.Linear(1, 2, bias=False)
    fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    layer(torch.ones(1, 1)).sum().backward()
    gradient: Any = layer.weight.grad
    return bool((gradient.full_tensor() == 1).all())


def generated(model: PreTrainedModel) -> list[list[int]] | None:
    """Continue two prompts greedily, with a cache; None for a model of both directions."""
    if not model.can_generate():
        return None
    prompts = torch.stack([row["input_ids"][:5] for row in rows()[:2]])
    # Not to the end, which is no token of these models' own.
    return model.eval().generate(prompts, max_new_tokens=8, do_sample=False, use_cache=True).tolist()


def split(model: nn.Module) -> dict[str, Any]:
    """Return which parameters are in pieces, and what share of all numbers is in this process."""
    held = dict(model.named_parameters())
    local = {n: p.to_local() if isinstance(p, DTensor) else p for n, p in held.items()}
    return {
        "split": [name for name in held if local[name].numel() < held[name].numel()],
        "whole": [name for name in held if local[name].numel() == held[name].numel()],
        "share": sum(p.numel() for p in local.values()) / sum(p.numel() for p in held.values()),
        "dtypes": sorted({str(p.dtype) for p in held.values()}),
    }


class Worker:
    """One of the processes.

    Args:
        folder: the folder with `models`, into which results are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index, self.processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.results: dict[str, dict[str, Any]] = {}

    def run(self, kinds: list[str]) -> None:
        """Run all kinds that are asked for, and write the results."""
        dist.init_process_group("gloo")
        for kind in kinds:
            self.results[kind] = {}
            for name, act in getattr(self, kind)():
                try:
                    self.results[kind][name] = act()
                except Exception:
                    self.results[kind][name] = {"error": traceback.format_exc()}
        parts: list[Any] = [None] * self.processes
        dist.all_gather_object(parts, self.results)
        if self.index == 0:
            (self.folder / "results.json").write_text(json.dumps(parts))
        dist.barrier()
        dist.destroy_process_group()

    def _families(
        self, act: Callable[[str], dict[str, Any]], names: Sequence[str] = EVERY
    ) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        for model_type in names:
            yield model_type, lambda model_type=model_type: act(model_type)

    def _opened(self, model_type: str, size: str, **options: Any) -> PreTrainedModel:
        """Open a saved model in pieces, `size` being "fsdp_size" or "tp_size"."""
        config = DistributedConfig(**{size: self.processes})
        kind = type(tiny_model(model_type, head_of(model_type)))
        return kind.from_pretrained(self.folder / "models" / model_type, distributed_config=config, **options)

    def _tuned(self, kind: str, model_type: str, model: PreTrainedModel, losses: list[float]) -> dict[str, Any]:
        """Save a model, in several files, and return what is compared."""
        model.save_pretrained(self.folder / kind / model_type, max_shard_size="20KB", is_main_process=self.index == 0)
        dist.barrier()
        # In this order: a forward pass without a backward one leaves what was put together last.
        return {"losses": losses, **split(model), "generated": generated(model)}

    def data_parallel(self, names: Sequence[str] = FEW) -> Iterator[Any]:
        def act(model_type: str) -> dict[str, Any]:
            model = tiny_model(model_type, head_of(model_type))
            losses = by_trainer(model, self.folder / "runs", BATCH // self.processes)
            return self._tuned("data_parallel", model_type, model, losses)

        return self._families(act, names)

    def evaluation(self) -> Iterator[Any]:
        """Evaluations of numbers of rows that processes fill up with repeats."""
        for name in EVALUATED:
            for number, batch_size in EVALUATIONS:

                def act(name: str = name, number: int = number, batch_size: int = batch_size) -> dict[str, Any]:
                    return evaluated(name, number, batch_size, self.folder / "runs")

                yield f"{name} {number} {batch_size}", act

    def data_parallel_of_others(self) -> Iterator[Any]:
        return self.data_parallel([name for name in EVERY if name not in FEW])

    def data_parallel_accumulated(self) -> Iterator[Any]:
        """In parts, and with activations computed again."""

        def act(model_type: str) -> dict[str, Any]:
            model = tiny_model(model_type, head_of(model_type))
            model.gradient_checkpointing_enable()
            return {"losses": by_trainer(model, self.folder / "runs", 1, BATCH // self.processes)}

        return self._families(act)

    def fsdp(self, names: Sequence[str] = FEW) -> Iterator[Any]:
        def act(model_type: str) -> dict[str, Any]:
            model = self._opened(model_type, "fsdp_size")
            return self._tuned("fsdp", model_type, model, by_loop(model, self.index, self.processes))

        return self._families(act, names)

    def fsdp_of_others(self) -> Iterator[Any]:
        return self.fsdp([name for name in EVERY if name not in FEW])

    def fsdp_accumulated(self) -> Iterator[Any]:
        """In parts, and with activations computed again."""

        def act(model_type: str) -> dict[str, Any]:
            model = self._opened(model_type, "fsdp_size")
            model.gradient_checkpointing_enable()
            return {"losses": by_loop(model, self.index, self.processes, accumulation=2)}

        return self._families(act)

    def fsdp_bfloat16(self) -> Iterator[Any]:
        def act(model_type: str) -> dict[str, Any]:
            model = self._opened(model_type, "fsdp_size", dtype=torch.bfloat16)
            return {"losses": by_loop(model, self.index, self.processes), **split(model)}

        return self._families(act)

    def tensor_parallel(self) -> Iterator[Any]:
        def act(model_type: str) -> dict[str, Any]:
            model = self._opened(model_type, "tp_size")
            return self._tuned("tensor_parallel", model_type, model, by_loop(model))

        return self._families(act)

    def muon(self) -> Iterator[Any]:
        """Matrices in pieces, both ways."""
        for model_type in EVERY:
            for size in ("fsdp_size", "tp_size"):

                def act(model_type: str = model_type, size: str = size) -> dict[str, Any]:
                    model = self._opened(model_type, size)
                    ranks = (self.index, self.processes) if size == "fsdp_size" else ()
                    return {"losses": by_loop(model, *ranks, muon=True)}

                yield f"{size} {model_type}", act

    def fsdp_by_the_trainer(self) -> Iterator[Any]:
        """By a `Trainer` that takes models in pieces; those of tensor parallelism accelerate refuses on a CPU."""
        for model_type in ("tnn", "ipa") if TRAINER_TAKES_SPLIT_MODELS else ():

            def act(model_type: str = model_type) -> dict[str, Any]:
                model = self._opened(model_type, "fsdp_size")
                return {"losses": by_trainer(model, self.folder / "runs", BATCH // self.processes)}

            yield model_type, act

    def variants(self) -> Iterator[Any]:
        """One step and a generation of other forms, against the same in this process alone."""
        for name, (model_type, suffix, fields) in VARIANTS.items():
            for kind in ("fsdp_size", "tp_size"):

                def act(
                    name: str = name,
                    kind: str = kind,
                    model_type: str = model_type,
                    suffix: str = suffix,
                    fields: dict[str, Any] = fields,
                ) -> dict[str, Any]:
                    alone = tiny_model(model_type, suffix, **fields)
                    folder = self.folder / "variants" / name.replace(" ", "-")
                    if self.index == 0:
                        alone.save_pretrained(folder)
                    dist.barrier()
                    config = DistributedConfig(**{kind: self.processes})
                    model = type(alone).from_pretrained(folder, distributed_config=config)
                    parts = split(model)
                    return compare(alone, model, gradients_are_averaged() or kind == "tp_size") | parts

                yield f"{kind} {name}", act

    def stream_of_others(self) -> Iterator[Any]:
        return self.stream(OTHER_STREAMS)

    def stream(self, cases: Sequence[tuple[int, int]] = STREAMS) -> Iterator[Any]:
        """What each process gets of a stream of documents, as `scripts/pretrain.py` reads it."""
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
        pretrain = importlib.import_module("pretrain")
        for shards, workers in cases:

            def act(shards: int = shards, workers: int = workers) -> dict[str, Any]:
                run = self.folder / "runs" / f"stream-{shards}-{workers}"
                command = (
                    "--model-type tnn --config-overrides hidden_size=8 num_hidden_layers=1 --streaming "
                    "--sample-by line --tokenizer byte --block-size 16 --max-steps 4 --use-cpu "
                    f"--per-device-train-batch-size 2 --shuffle-buffer-size 4 --dataloader-num-workers {workers} "
                    f"--dataset {self.folder}/text-{shards} --output-dir {run}"
                )
                trainer = pretrain.prepare(pretrain.parse_arguments(command.split()))
                loader = iter(trainer.get_train_dataloader())
                # Two passes over 24 documents of one block each, by 2 processes of 2 rows.
                return {"blocks": [row for _ in range(12) for row in next(loader)["input_ids"].tolist()]}

            yield f"{shards} {workers}", act


def compare(alone: PreTrainedModel, model: PreTrainedModel, is_averaged: bool) -> dict[str, Any]:
    """Compare loss, gradients and generation of a split model with those of a whole model."""
    if alone.main_input_name == "pixel_values":
        inputs = {"pixel_values": torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))}
        inputs["labels"] = torch.tensor([0, 2])
    else:
        inputs = {name: torch.stack([row[name] for row in rows()[:4]]) for name in rows()[0]}
    alone.train()
    model.train()
    losses = []
    for each in (alone, model):
        loss = each(**inputs).loss
        loss.backward()
        losses.append(loss.item())
    gradients = {}
    for (name, parameter), (other, piece) in zip(alone.named_parameters(), model.named_parameters(), strict=True):
        assert name == other
        assert parameter.grad is not None and piece.grad is not None, name
        whole = piece.grad.full_tensor() if isinstance(piece.grad, DTensor) else piece.grad
        scale = parameter.grad.abs().max().item() + 1e-6
        gradients[name] = (whole / (1 if is_averaged else 2) - parameter.grad).abs().max().item() / scale
    return {"losses": losses, "gradients": gradients, "generated": [generated(alone), generated(model)]}


def main() -> None:
    """Run what the command line names in two processes, of which this is the first."""
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    child = os.fork()
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), "0" if child else "1")
    Worker(Path(sys.argv[1])).run(sys.argv[2:])
    if child and os.waitpid(child, 0)[1]:
        sys.exit("the second process failed; its words are above")


if __name__ == "__main__":
    main()
