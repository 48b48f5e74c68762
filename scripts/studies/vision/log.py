"""The results file of vision_spectra.py: a line a run, with everything that the run depends on as its key."""

import argparse
import dataclasses
from typing import Any

from transformers import PreTrainedModel

from hf_seqmix.models.images.processing import SeqMixImageProcessor
from hf_seqmix.training.environment import environment_of, file_digest, portable_command, portable_path
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result
from hf_seqmix.training.run import Run

from .figures import Figures, Measurement, measure
from .training import Images, read_images

__all__ = ["Log"]


class Log:
    """The results file, and what the keys of its runs share.

    Args:
        arguments: of vision_spectra.py.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.file = ResultFile(arguments.output_dir / "results.jsonl")
        self.measurement = Measurement(
            tuple(arguments.layers), arguments.head, arguments.source, arguments.center, arguments.images
        )
        files = {"train": arguments.train_file, "test": arguments.test_file}
        self.data: dict[str, Any] = {"train_rows": arguments.train_rows, "test_rows": arguments.test_rows}
        self.data |= {"image_size": getattr(arguments, "image_size", None)}
        self.data |= {"dataset": arguments.dataset} if not any(files.values()) else {}
        self.data |= {
            split: {"path": portable_path(str(path)), "digest": file_digest(path)}
            for split, path in files.items()
            if path is not None and path.is_file()
        }
        self._images: dict[str, Images] = {}

    def run(self, model: dict[str, Any], training: dict[str, Any], seed: int = 0) -> Run:
        """Return a run as data."""
        data = self.data | {"measured": dataclasses.asdict(self.measurement)}
        return Run("vision-spectra", model, data, training, seed)

    def images(self) -> dict[str, Images]:
        """Return the images of classifiers that are trained here, read once and only if a run is to be made."""
        if not self._images:
            size = {"height": self.arguments.image_size, "width": self.arguments.image_size}
            self._images = read_images(self.arguments, SeqMixImageProcessor(size=size))
        return self._images

    def check(self, model: PreTrainedModel, images: Images) -> None:
        """Measure a model with one image, before a training whose figures could not be measured.

        Raises:
            ValueError: there are fewer images than were asked for, or no such layer, head or source.
        """
        if len(images.pixel_values) < self.measurement.images:
            raise ValueError(
                f"--images is {self.measurement.images}, but only {len(images.pixel_values)} held-out images are "
                "read: give fewer, or more --test-rows."
            )
        for _ in measure(model.eval(), images.pixel_values, dataclasses.replace(self.measurement, images=1)):
            pass

    def keep(self, run: Run, model: PreTrainedModel, scores: dict[str, float], images: Images, **setting: Any) -> None:
        """Measure a model and write the results of its run."""
        found: list[dict[str, Any]] = [
            {"metric": name, "value": value, "setting": {}} for name, value in scores.items()
        ]
        found += list(measure(model, images.pixel_values, self.measurement))
        seed = run.seed if "model_size" in setting else None
        shared: dict[str, Any] = {"run": run, "command": portable_command("vision"), "environment": environment_of()}
        name = str(run.model["name"])
        results = [
            Result(
                run.task,
                name,
                each["metric"],
                each["value"],
                seed,
                setting={**setting, "images": images.source, **each["setting"]},
                **shared,
            )
            for each in found
        ]
        self.file.append(run, results)

    def read(self, run: Run) -> Figures | None:
        """Return the figures of a run, or None if it was not made."""
        found = self.file.get(run)
        return None if found is None else Figures(found)
