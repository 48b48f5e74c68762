"""Verifies that an exported repository opens and computes the same where hf_seqmix is not installed."""

import copy
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..models.auto import AUTO_CLASSES
from ..models.pretrained import SeqMixPreTrainedModel
from .cards import head_of
from .checking import check_repository
from .clean_load import aligned, generate, outputs
from .remote_code import family_of

__all__ = ["VerificationError", "check_tolerance", "verify", "verify_all"]

_SCRIPT = Path(__file__).with_name("clean_load.py")
_TEXT = "def main(x): return x + 1"


class VerificationError(RuntimeError):
    """An exported repository does not open, or computes other outputs than the model.

    Args:
        message: what is wrong.
        results: for each repository its report, or a text that says what is wrong.
    """

    def __init__(self, message: str, results: Sequence[dict[str, Any] | str] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


def verify(
    folder: str | Path,
    model: SeqMixPreTrainedModel,
    processor: Any = None,
    *,
    python: str | Path = sys.executable,
    train: bool = False,
    tolerance: float = 0.0,
    timeout: float = 900,
) -> dict[str, Any]:
    """Open an exported repository by every head of its family, in a process that cannot import hf_seqmix.

    The model's own head and its backbone must give the same tensors, bit for bit, and generate the same tokens. Other
    heads must open and give finite outputs, or refuse the configuration with the same error as here.

    Args:
        folder: the repository.
        model: the model that was exported.
        processor: its tokenizer or image processor; None for none.
        python: the interpreter. With another version of torch outputs may round otherwise, see `tolerance`.
        train: whether to take a training step, save the model, and open it again, too.
        tolerance: largest difference of an output allowed, 0 or more.
        timeout: seconds.

    Returns:
        The report: versions, and a line for each head.

    Raises:
        ValueError: if `check_repository` finds something wrong with the files, or for a model that is not of one of
            the package's families.
        VerificationError: with the last output of the other process.
    """
    exported = [(folder, model, processor)]
    return verify_all(exported, python=python, train=train, tolerance=tolerance, timeout=timeout)[0]


def verify_all(
    exported: Sequence[tuple[str | Path, SeqMixPreTrainedModel, Any]],
    *,
    python: str | Path = sys.executable,
    train: bool = False,
    tolerance: float = 0.0,
    timeout: float = 900,
) -> list[dict[str, Any]]:
    """Verify several repositories, as `verify` does, in one and the same process.

    Args:
        exported: (folder, model, processor) of each repository.
        python: the interpreter.
        train: whether to train, save and reopen, too.
        tolerance: largest difference of an output allowed, 0 or more.
        timeout: seconds for all repositories together.

    Returns:
        The report of each repository.

    Raises:
        VerificationError: if one does not stand alone; `results` holds the reports of those that do.
    """
    check_tolerance(tolerance)
    for folder, model, _ in exported:
        head_of(model)
        check_repository(folder)
    results = _open_elsewhere(exported, python, {"train": train, "tolerance": tolerance}, timeout)
    failures = [result for result in results if isinstance(result, str)]
    if failures:
        raise VerificationError("not all stands alone without hf_seqmix:\n" + "\n".join(failures), results)
    return [result for result in results if not isinstance(result, str)]


def check_tolerance(tolerance: float) -> None:
    """Raise ValueError for a tolerance that would compare nothing: it is a finite number, 0 or more."""
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if not is_number or not math.isfinite(tolerance) or tolerance < 0:
        raise ValueError(f"tolerance is {tolerance!r}; it must be a finite number, 0 or more.")


def _open_elsewhere(
    exported: Sequence[tuple[str | Path, SeqMixPreTrainedModel, Any]],
    python: str | Path,
    options: dict[str, Any],
    timeout: float,
) -> list[dict[str, Any] | str]:
    """Return for each repository the report of the other process, or a text that says what went wrong there."""
    with tempfile.TemporaryDirectory() as work:
        places = [Path(work, str(number)) for number in range(len(exported))]
        for place, (folder, model, processor) in zip(places, exported, strict=True):
            place.mkdir()
            plan = {**_plan(Path(folder).resolve(), model, processor, place), **options}
            (place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        environment = {**os.environ, "HF_MODULES_CACHE": str(Path(work, "modules")), "HF_HUB_OFFLINE": "1"}
        command = [str(python), "-I", str(_SCRIPT), *(str(place / "plan.json") for place in places)]
        try:
            process = subprocess.run(
                command,
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
            )
            ending = f"the process ended with {process.returncode}: {process.stderr.strip()[-4000:]}"
        except subprocess.TimeoutExpired:
            ending = f"did not open within {timeout:g} s without hf_seqmix."
        except OSError as error:
            raise ValueError(f"{python} cannot be run: {error.strerror}.") from error
        results: list[dict[str, Any] | str] = []
        for place, (folder, _, _) in zip(places, exported, strict=True):
            if (place / "report.json").exists():
                results.append(json.loads((place / "report.json").read_text(encoding="utf-8")))
            elif (place / "failure.txt").exists():
                results.append(f"{folder}: {(place / 'failure.txt').read_text(encoding='utf-8').strip()[-4000:]}")
            else:
                results.append(f"{folder}: {ending}")
        return results


def _plan(folder: Path, model: SeqMixPreTrainedModel, processor: Any, place: Path) -> dict[str, Any]:
    """Write the expected outputs of another process to a folder, and return what the process has to check."""
    own_head = AUTO_CLASSES[head_of(model)].__name__
    tensors = _expected(model, own_head, processor)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, place / "expected.safetensors")
    expectations = _expectations(model)
    text = _TEXT if processor is not None and model.config.image_shape is None else None
    return {
        "folder": str(folder),
        "work": str(place),
        "expected": str(place / "expected.safetensors"),
        "report": str(place / "report.json"),
        "threads": torch.get_num_threads(),
        "heads": {name: "refused" if is_refusal else found for name, (is_refusal, found) in expectations.items()},
        "refusals": {name: found for name, (is_refusal, found) in expectations.items() if is_refusal},
        "own_head": own_head,
        "text": text,
        "ids": None if text is None else processor(text)["input_ids"],
    }


def _classes(model: SeqMixPreTrainedModel) -> dict[str, type]:
    classes = family_of(model.config).classes
    return {AUTO_CLASSES[suffix].__name__: cls for suffix, cls in classes.items() if suffix in AUTO_CLASSES}


def _expectations(model: SeqMixPreTrainedModel) -> dict[str, tuple[bool, str]]:
    """Return for each `Auto` class (True, error) if it must refuse the configuration, else (False, expectation)."""
    found = {}
    for name, cls in _classes(model).items():
        try:
            with torch.device("meta"):
                cls(model.config)
        except ValueError as error:
            found[name] = (True, str(error))
        else:
            found[name] = (False, "equal" if type(model) is cls or name == "AutoModel" else "opens")
    return found


@torch.no_grad()
def _expected(model: SeqMixPreTrainedModel, own_head: str, processor: Any) -> dict[str, Tensor]:
    """Return inputs, and the outputs of the model and its backbone on the CPU."""
    weights = [*model.parameters(), *model.buffers()]
    if model.training or any(
        weight.device.type != "cpu" or weight.data_ptr() % 64 or not weight.is_contiguous() for weight in weights
    ):
        model = aligned(copy.deepcopy(model).cpu().eval())
    config, generator = model.config, torch.Generator().manual_seed(0)
    image = config.image_shape
    if image is not None:
        shape = (2, image.num_channels, *image.image_size)
        inputs = {"pixel_values": torch.randn(shape, generator=generator, device="cpu").to(model.dtype)}
    else:
        length = min(12, config.max_position_embeddings)
        ids = torch.randint(0, config.vocab_size, (2, length), generator=generator, device="cpu")
        mask = torch.ones_like(ids)
        mask[1, : length // 3] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
    tensors = {f"input.{name}": value for name, value in inputs.items()}
    backbone = model if own_head == "AutoModel" else model.model
    for head, part in {"AutoModel": backbone, own_head: model}.items():
        tensors |= {f"output.{head}.{name}": value.clone() for name, value in outputs(part, inputs).items()}
    if own_head == "AutoModelForCausalLM" and config.max_position_embeddings > 1:
        prompt = inputs["input_ids"][:1, : min(4, config.max_position_embeddings - 1)].clone()
        tensors["prompt"] = prompt
        tensors["generated"] = generate(model, prompt, min(12, config.max_position_embeddings))
    if image is not None and processor is not None:
        height, width = (size + 5 for size in image.image_size)
        pixels = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8, device="cpu")
        tensors["image"], tensors["pixels"] = pixels, processor(pixels.numpy(), return_tensors="pt")["pixel_values"]
    return tensors
