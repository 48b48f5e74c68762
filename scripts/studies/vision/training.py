"""Small classifiers of images for the studies: their data, their configurations by size, and how they are trained."""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    ViTConfig,
    set_seed,
)

import hf_seqmix  # noqa: F401 - registers its families with the Auto classes
from hf_seqmix.data.labeled import ImageClassification, ImageCollator, load_labeled
from hf_seqmix.models.images.processing import SeqMixImageProcessor

__all__ = [
    "CIFAR10",
    "SIZED",
    "Classifiers",
    "Images",
    "Training",
    "add_image_arguments",
    "add_training_arguments",
    "processor_of",
    "read_images",
    "score",
    "train",
    "training_arguments",
]

CIFAR10 = "uoft-cs/cifar10"
_ROWS_AT_ONCE = 250


@dataclasses.dataclass(frozen=True)
class Images(Dataset[dict[str, Tensor]]):
    """Images that are ready for a model.

    Attributes:
        pixel_values: (rows, channels, height, width).
        labels: (rows,), class ids.
        names: of the classes, in the order of their ids.
        source: what the images are, in words.
    """

    pixel_values: Tensor
    labels: Tensor
    names: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"pixel_values": self.pixel_values[place], "labels": self.labels[place]}

    def batches(self, rows: int = _ROWS_AT_ONCE) -> Iterator[dict[str, Tensor]]:
        """Yield all rows in order, as batches of a model."""
        for pixels, labels in zip(self.pixel_values.split(rows), self.labels.split(rows), strict=True):
            yield {"pixel_values": pixels, "labels": labels}


@dataclasses.dataclass(frozen=True)
class Training:
    """How a classifier is trained: AdamW, a linear warm-up in a tenth of the updates, then a half cosine to 0."""

    steps: int
    batch_size: int
    learning_rate: float


@dataclasses.dataclass(frozen=True)
class Classifiers:
    """What the classifiers of a study have in common; `build` makes one of a kind and a size of `SIZED`."""

    patch_size: int
    hidden_size: int
    num_layers: int
    num_heads: int

    def config(self, kind: str, size: int, images: Images) -> PreTrainedConfig:
        """Return the configuration of a classifier.

        Weights of linear layers have the standard deviation (3 hidden_size)^-1/2 at first, that of PyTorch's own
        initialization; with 0.02, which is for wide models, models of this size hardly leave chance at first.

        Raises:
            ValueError: the fields make no model.
        """
        channels, height, width = images.pixel_values.shape[1:]
        shared: dict[str, Any] = {
            "image_size": [height, width],
            "patch_size": self.patch_size,
            "num_channels": channels,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "intermediate_size": 2 * self.hidden_size,
            "initializer_range": (3 * self.hidden_size) ** -0.5,
            "id2label": dict(enumerate(images.names)),
            "label2id": {name: index for index, name in enumerate(images.names)},
        }
        try:
            return SIZED[kind](self, size, shared)
        except StrictDataclassError as error:
            raise ValueError(f"{kind} of size {size}: {error}") from error

    def build(self, kind: str, size: int, images: Images, seed: int) -> PreTrainedModel:
        """Return a classifier with random weights.

        Raises:
            ValueError: the fields make no model, or the installed ViT has heads of another size than asked for.
        """
        set_seed(seed)
        try:
            model = AutoModelForImageClassification.from_config(self.config(kind, size, images))
        except StrictDataclassError as error:
            raise ValueError(f"{kind} of size {size}: {error}") from error
        if kind == "vit" and not any(
            layer.weight.shape == (self.num_heads * size, self.hidden_size)
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear) and name.endswith(("q_proj", "query"))
        ):
            raise ValueError(
                f"the ViT of this version of transformers has no heads of {size} channels with hidden_size "
                f"{self.hidden_size} and {self.num_heads} heads: upgrade transformers, or leave out vit."
            )
        return model


def _vit(classifiers: Classifiers, size: int, fields: dict[str, Any]) -> PreTrainedConfig:
    # `head_dim` is no field of ViTConfig, but its attention asks for such an attribute.
    return ViTConfig(**{**fields, "num_attention_heads": classifiers.num_heads, "head_dim": size})


def _own(model_type: str, **own: Any) -> Callable[[Classifiers, int, dict[str, Any]], PreTrainedConfig]:
    """Return what makes the configuration of a family; a field whose value is a function is given the size."""

    def make(classifiers: Classifiers, size: int, fields: dict[str, Any]) -> PreTrainedConfig:
        sized = {name: value(classifiers, size) if callable(value) else value for name, value in own.items()}
        common = {"is_causal": False, "hidden_dropout": 0.0, "norm_type": "layer", "linear_init": "normal"}
        return AutoConfig.for_model(model_type, **{**fields, **common, "position_embedding_type": "learned", **sized})

    return make


def _size(_: Classifiers, size: int) -> int:
    return size


SIZED: dict[str, Callable[[Classifiers, int, dict[str, Any]], PreTrainedConfig]] = {
    "attention": _own(
        "seqmix_hybrid",
        mixer_types=["attention"],
        # No rotary positions, which turn pairs of channels: heads may have an odd number. Positions are learned ones.
        mixer_configs=lambda shared, size: {
            "attention": {"num_heads": shared.num_heads, "head_dim": size, "rope_theta": None}
        },
    ),
    "vit": _vit,
    "ipa": _own("ipa", num_centers=lambda shared, _: shared.num_heads, kernel_norm="p", kernel_rank=_size),
    # Kernels over centers and tokens, which the paper does not have.
    "ipa_prod": _own("ipa", num_centers=lambda shared, _: shared.num_heads, kernel_norm="prod", kernel_rank=_size),
    "ski_tnn": _own("ski_tnn", num_inducing_points=_size),
    "tnn": _own("tnn", rpe_hidden_size=_size),
    "fd_tnn": _own("fd_tnn", rpe_hidden_size=_size),
    "poly_transformer": _own(
        "poly_transformer", degree=3, num_attention_heads=lambda shared, size: max(1, shared.hidden_size // size)
    ),
}
"""Kinds of classifiers -> their configuration by a size: the channels of a head of attention (queries, keys and
values) and of polynomials (hidden_size / size heads), of a kernel's projections of IPA, the inducing points of
SKI-TNN, the width of the encoder of TNN and FD-TNN."""


def add_image_arguments(parser: argparse.ArgumentParser, splits: Sequence[str] = ("train", "test")) -> None:
    """Add the arguments that say which images of these splits are read; of others, none are."""
    parser.set_defaults(train_file=None, train_rows=0)
    parser.add_argument("--dataset", default=CIFAR10, help=f"on the Hub, with splits {' and '.join(splits)}")
    rows = {"train": (5000, "images to train on, the first ones"), "test": (2000, "held-out images, the first ones")}
    for split in splits:
        parser.add_argument(f"--{split}-file", type=Path, help="a table of images and labels, instead of --dataset")
        parser.add_argument(f"--{split}-rows", type=int, default=rows[split][0], help=rows[split][1])


def add_training_arguments(parser: argparse.ArgumentParser, steps: int) -> None:
    """Add the arguments that say how classifiers are trained."""
    parser.add_argument("--steps", type=int, default=steps, help="updates of a run")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of an update")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="highest learning rate of AdamW")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the training, a run each")


def processor_of(name: str, config: PreTrainedConfig) -> Any:
    """Return the image processor of a checkpoint, or else one for its image size with a mean and deviation of 0.5."""
    try:
        return AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        fields: dict[str, Any] = {
            "size": {"height": size[0], "width": size[1]},
            "num_channels": getattr(config, "num_channels", 3),
        }
        return SeqMixImageProcessor(**fields)


def read_images(
    arguments: argparse.Namespace, processor: Any, splits: Sequence[str] = ("train", "test")
) -> dict[str, Images]:
    """Read the first images of each split.

    Args:
        arguments: of `add_image_arguments`.
        processor: an image processor, which makes `pixel_values`.
        splits: that are read.

    Raises:
        ValueError: a file is missing or holds no labeled images, some but not all files are given, or the Hub cannot
            be reached.
    """
    files: dict[str, Any] = {split: getattr(arguments, f"{split}_file") for split in splits}
    options = " and ".join(f"--{split}-file" for split in splits)
    if any(files.values()) and not all(files.values()):
        raise ValueError(f"give {options}, or neither for the data set of the Hub.")
    rows = {split: getattr(arguments, f"{split}_rows") for split in splits}
    if min(rows.values()) < 1:
        raise ValueError("--train-rows and --test-rows must be at least 1.")
    try:
        tables = load_labeled(files if all(files.values()) else arguments.dataset, paths=("image", "img"))
    except ValueError as error:
        hint = "" if all(files.values()) else f" Where there is no network, give {options}."
        raise ValueError(f"{error}{hint}") from error
    first = tables[splits[0]]
    column = "img" if "img" in first.column_names else "image"
    task = ImageClassification.from_data(first, column, ["label"])
    collate = ImageCollator(processor)
    found = {}
    for split, wanted in rows.items():
        table = task.encode(tables[split].take(min(wanted, len(tables[split]))), split)
        lossy = " (JPEG)" if table[0]["image"].format == "JPEG" else ""
        parts = [
            collate([table[place] for place in range(start, min(start + _ROWS_AT_ONCE, len(table)))])
            for start in range(0, len(table), _ROWS_AT_ONCE)
        ]
        pixels, labels = (torch.cat([part[name] for part in parts]) for name in ("pixel_values", "labels"))
        name = "CIFAR-10" if "cifar10" in str(files[split] or arguments.dataset) else "images"
        found[split] = Images(pixels, labels, tuple(map(str, task.label_names)), f"{name}{lossy}")
    return found


def training_arguments(folder: str, training: Training, seed: int) -> TrainingArguments:
    """Return the arguments of a `Trainer` that keeps nothing; the seed gives the order of the rows."""
    return TrainingArguments(
        output_dir=folder,
        max_steps=training.steps,
        per_device_train_batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=training.steps // 10,
        weight_decay=0.05,
        seed=seed,
        data_seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.accelerator.is_available(),
    )


def train(model: PreTrainedModel, images: Images, training: Training, seed: int) -> None:
    """Train a classifier by the library's `Trainer`."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model=model, args=training_arguments(folder, training, seed), train_dataset=images)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


@torch.no_grad()
def score(model: PreTrainedModel, images: Images) -> dict[str, float]:
    """Return the mean cross-entropy (nats) and the share of wrong answers, without dropout."""
    model.eval()
    loss, wrong = 0.0, 0
    for batch in images.batches():
        batch = {name: values.to(model.device) for name, values in batch.items()}
        outputs = model(**batch)
        loss += outputs.loss.item() * len(batch["labels"])
        wrong += int((outputs.logits.argmax(dim=-1) != batch["labels"]).sum())
    return {"loss": loss / len(images), "error": wrong / len(images)}
