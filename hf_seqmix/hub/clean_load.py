"""Opens an exported repository in a process that cannot import hf_seqmix, and compares its outputs.

    python -I clean_load.py PLAN.json ...

`verification.py` runs this file with any interpreter that has torch, transformers and safetensors. The file imports
nothing of the package.
"""

import importlib
import json
import sys
import traceback
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

__all__ = ["aligned", "generate", "main", "outputs"]


class Blocker:
    """Finds no module of hf_seqmix, installed or not."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse the package; leave everything else to the other finders."""
        if name.split(".")[0] == "hf_seqmix":
            raise ModuleNotFoundError(f"{name} is not to be imported here.", name=name)


def main(plan_path: str) -> None:
    """Carry out a plan, and write a report beside it."""
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(plan["threads"])
    torch.manual_seed(0)
    expected = load_file(plan["expected"])
    inputs = {name.removeprefix("input."): value for name, value in expected.items() if name.startswith("input.")}
    report: dict[str, Any] = {"python": sys.version.split()[0], "heads": {}}
    report |= {"torch": torch.__version__, "transformers": transformers.__version__}
    for name, expectation in plan["heads"].items():
        report["heads"][name] = check_head(plan, name, expectation, inputs, expected)
    if "generated" in expected:
        model = open_model(plan["folder"], "AutoModelForCausalLM")
        generated = generate(model, expected["prompt"], expected["generated"].shape[1])
        if not torch.equal(generated, expected["generated"]):
            raise AssertionError(f"generate gave {generated.tolist()}, not {expected['generated'].tolist()}")
        report["generate"] = "equal"
    if plan["train"]:
        report["training"] = train_and_reopen(plan, inputs)
    if plan["text"] is not None:
        ids = open_tokenizer(plan["folder"])(plan["text"])["input_ids"]
        if ids != plan["ids"]:
            raise AssertionError(f"the tokenizer gave {ids}, not {plan['ids']}")
        report["tokenizer"] = "equal"
    if "image" in expected:
        report["image_processor"] = check_image_processor(plan["folder"], expected)
    if "hf_seqmix" in sys.modules:
        raise AssertionError("hf_seqmix was imported")
    Path(plan["report"]).write_text(json.dumps(report), encoding="utf-8")


def open_tokenizer(folder: str) -> Any:
    """Open a tokenizer. It has no code of its own, but the library asks for trust because the configuration has."""
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def open_model(folder: str, auto_class: str) -> Any:
    """Open a repository by one of the library's `Auto` classes, its code trusted."""
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    if not type(model).__module__.startswith("transformers_modules."):
        raise AssertionError(f"{auto_class} opened {type(model)}, which is not the repository's")
    return aligned(model)


@torch.no_grad()
def aligned(model: Any) -> Any:
    """Copy each weight of a model to a boundary of 64 bytes, and return the model.

    Weights that are read from a file lie in memory where the file has them. Sums over memory at other boundaries round
    otherwise.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return model


def check_head(
    plan: dict[str, Any], name: str, expectation: str, inputs: dict[str, Any], expected: dict[str, Any]
) -> str:
    """Open one head, and check that it computes the same, or runs, or refuses the configuration, as expected."""
    if expectation == "refused":
        try:
            open_model(plan["folder"], name)
        except ValueError as error:
            if str(error) != plan["refusals"][name]:
                raise
            return f"refused: {error}"
        raise AssertionError(f"{name} opened, but should refuse the configuration")
    model = open_model(plan["folder"], name)
    with torch.no_grad():
        found = outputs(model, inputs)
    if expectation == "opens":
        for output, value in found.items():
            if not value.isfinite().all():
                raise AssertionError(f"{name} computes {output} that are not finite")
        return "opens"
    prefix = f"output.{name}."
    wanted = {key.removeprefix(prefix): value for key, value in expected.items() if key.startswith(prefix)}
    if found.keys() != wanted.keys():
        raise AssertionError(f"{name} returns {', '.join(found)}; the exported model returned {', '.join(wanted)}")
    difference = max(compare(f"{name}: {key}", found[key], wanted[key], plan["tolerance"]) for key in found)
    return "equal" if difference == 0 else f"equal within {difference:.2g}"


def compare(what: str, found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> float:
    """Return the largest difference of two tensors; refuse other types, other shapes, and NaN in one of them."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        kinds = [f"{value.dtype} of shape {list(value.shape)}" for value in (found, wanted)]
        raise AssertionError(f"{what} is {kinds[0]}, but {kinds[1]} in the exported model")
    if torch.equal(found, wanted):
        return 0.0
    difference = (found.double() - wanted.double()).abs().max().item()
    if not difference <= tolerance:  # NaN, too
        raise AssertionError(f"{what} differs from the exported model by {difference:.3g}")
    return difference


def outputs(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a model's output by name: hidden states or logits."""
    if "input_ids" in inputs and getattr(model.config, "num_segments", 1) == 2 and "Sequence" in type(model).__name__:
        inputs = {name: value.unsqueeze(1).expand(-1, 2, -1) for name, value in inputs.items()}
    result = model(**inputs, return_dict=True)
    return {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}


def generate(model: Any, prompt: torch.Tensor, length: int) -> torch.Tensor:
    """Continue a prompt greedily up to a length, whatever the model's own settings of generation say."""
    kept, new_tokens = model.generation_config, length - prompt.shape[1]
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, use_cache=kept.use_cache
    )
    try:
        return model.generate(prompt, attention_mask=torch.ones_like(prompt))
    finally:
        model.generation_config = kept


def train_and_reopen(plan: dict[str, Any], inputs: dict[str, Any]) -> str:
    """Train one step, save the model, open the saved model, and compare the two."""
    name = next(
        name for name, expectation in plan["heads"].items() if expectation != "refused" and name != "AutoModel"
    )
    name = plan["own_head"] if plan["own_head"] != "AutoModel" else name
    model = open_model(plan["folder"], name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    found = outputs(model, inputs)
    torch.stack([(value.float() * torch.randn(value.shape)).sum() for value in found.values()]).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-2 * parameter.grad / (parameter.grad.norm() + 1e-6)
    model.eval()
    if all(torch.equal(value, before[key]) for key, value in model.state_dict().items()):
        raise AssertionError("a step of training changed nothing")
    again = str(Path(plan["work"]) / "again")
    model.save_pretrained(again)
    importlib.invalidate_caches()
    reopened = open_model(again, name)
    with torch.no_grad():
        again_found = outputs(reopened, inputs)
        for key, value in outputs(model, inputs).items():
            compare(f"what was saved after training: {key}", again_found[key], value, 0.0)
    return f"{name} trained, saved, reopened: equal"


def check_image_processor(folder: str, expected: dict[str, Any]) -> str:
    """Compare the pixels that the image processor makes; without Pillow there is no image processor."""
    try:
        importlib.import_module("PIL")
    except ImportError:
        return "not checked: Pillow is missing"
    if getattr(transformers.AutoImageProcessor, "is_dummy", False):
        return "not checked: this release of transformers wants torchvision"
    processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=True)
    pixels = processor(expected["image"].numpy(), return_tensors="pt")["pixel_values"]
    compare("what the image processor makes", pixels, expected["pixels"], 0.0)
    return "equal"


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]
    for path in sys.argv[1:]:
        try:
            main(path)
        except Exception:
            Path(path).with_name("failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
