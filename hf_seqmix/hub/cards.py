"""Model cards: facts that are read off a model, values that the maker gives, and no blanks."""

import math
import re
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..models.auto import AUTO_CLASSES
from ..models.pretrained import SeqMixPreTrainedModel
from .eval_results import eval_results
from .remote_code import family_of

__all__ = ["REQUIRED_VALUES", "build_card", "check_card", "head_of", "model_facts", "plain_card"]

BLANK = "[More Information Needed]"
_BLANK_CELL = re.compile(r"(TODO|TBD|FIXME)(\s*:.*)?|(?i:[\W_]*more information needed[\W_]*)")
"""What a maker or the `Trainer` leaves where a value belongs: cells or lines for which a card is refused."""

REQUIRED_VALUES = (
    "model_name",
    "model_summary",
    "model_description",
    "license",
    "language",
    "training_data",
    "training_procedure",
    "training_command",
    "training_hardware",
    "training_time",
    "results",
    "limits",
)
"""Values that only the maker of a model knows. A model of images needs no language."""

_RESULT_VALUES = ("task", "dataset", "metric", "value", "command")
_OPTIONAL_RESULT_VALUES = ("baselines", "note", "task_type", "dataset_type", "metric_type", "benchmark")
_OPTIONAL_VALUES = ("training_note", "paper", "citation", "usage", "datasets", "metrics", "tags", "base_model")
_LISTS = ("language", "limits", "datasets", "metrics", "tags", "base_model")  # all but limits may be one text, too
_TEXTS = tuple(
    name
    for name in (*REQUIRED_VALUES, "training_note", "paper", "citation", "usage")
    if name not in (*_LISTS, "results")
)
_PIPELINES = {
    "ForCausalLM": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "Model": "feature-extraction",
}


def build_card(
    model: SeqMixPreTrainedModel,
    processor: Any,
    repo_id: str,
    values: Mapping[str, Any],
    template: str | Path | None = None,
    *,
    with_code: bool = True,
) -> ModelCard:
    """Write the card of a model from `model_cards/TEMPLATE.md`.

    Args:
        model: of one of the package's families.
        processor: its tokenizer or image processor; None for none.
        repo_id: name under which the model is loaded.
        values: those of `REQUIRED_VALUES`, and if wanted `training_note` (what else to know of the command), `paper`,
            `citation`, `usage`, `datasets`, `metrics`, `tags` and `base_model`. Values override what `model_facts`
            returns. `results` is a list of mappings with task, dataset, metric, value (a number) and the command that
            reproduces the value; results go to the index of the Hub, too. A result on a benchmark of the Hub may say
            so, see `eval_results`.
        template: a Jinja template; by default the package's.
        with_code: whether the code of the family lies beside the weights, as `export` puts it there.

    Raises:
        ValueError: for a value that is missing, empty, a blank or unknown; the message names the value.
    """
    family_of(model.config)
    facts = model_facts(model, processor)
    all_values = {**facts, **values, "repo_id": repo_id}
    _check_values(values, facts, all_values)
    data = ModelCardData(
        **{
            name: all_values[name]
            for name in ("license", "language", "datasets", "metrics", "base_model", "pipeline_tag", "model_name")
            if all_values.get(name)
        },
        library_name="transformers",
        tags=list(dict.fromkeys(["hf_seqmix", model.config.model_type, *_as_list(values.get("tags"))])),
        eval_results=[_eval_result(result, all_values["pipeline_tag"]) for result in values["results"]],
    )
    # The metadata has these three already.
    given = {name: value for name, value in all_values.items() if name not in ("tags", "datasets", "metrics")}
    card = ModelCard.from_template(data, template_path=str(template or _template_path()), with_code=with_code, **given)
    check_card(str(card))
    return card


def model_facts(model: SeqMixPreTrainedModel, processor: Any = None) -> dict[str, Any]:
    """Return the values of a card that can be read off a model: sizes, classes, kinds."""
    suffix = head_of(model)
    text = model.config.image_shape is None
    facts = {
        "model_type": model.config.model_type,
        "num_parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "auto_class": AUTO_CLASSES[suffix].__name__,
        "pipeline_tag": _PIPELINES[suffix],
        "context_length": model.config.max_position_embeddings,
        "processor_class": None if processor is None else "AutoTokenizer" if text else "AutoImageProcessor",
        "tokenizer": "none",
    }
    if processor is not None:
        pieces = f", {len(processor):,} pieces" if text else ""
        facts["tokenizer"] = f"{type(processor).__name__}{pieces}"
    return facts


def plain_card(model: SeqMixPreTrainedModel, processor: Any = None) -> ModelCard:
    """Return a card with the facts alone, for a model that is not published."""
    facts = model_facts(model, processor)
    data = ModelCardData(library_name="transformers", tags=["hf_seqmix", facts["model_type"]])
    data.pipeline_tag = facts["pipeline_tag"]
    size = f"{facts['num_parameters']:,} parameters, {facts['dtype']}"
    text = (
        f"# {type(model).__name__}\n\n"
        f"A model of the family `{facts['model_type']}` of hf_seqmix: {size}. Nothing is recorded here of its data, "
        "its training, or how good it is.\n\n"
        "```python\n"
        f"from transformers import {facts['auto_class']}\n\n"
        f'model = {facts["auto_class"]}.from_pretrained("path/to/this/folder", trust_remote_code=True)\n'
        "```\n\n"
        "With `import hf_seqmix` before it, `trust_remote_code` is not needed.\n"
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")


def check_card(text: str) -> None:
    """Refuse a card with blanks or without metadata.

    A blank is "[More Information Needed]", or TODO, TBD or FIXME alone in a line, alone in the cell of a table, or
    before a colon, or "More information needed", as the `Trainer` writes, alone in a line or cell. Within a sentence
    or code, the same words are no blanks.

    Raises:
        ValueError: naming the section of each blank, or the fault of the metadata.
    """
    block = re.match(r"\s*---[ \t]*\r?\n(.*?)\n---[ \t]*(?:\r?\n|$)", text, flags=re.DOTALL)
    if not block:
        raise ValueError("the card has no metadata: it must begin with a block of YAML between two lines of '---'.")
    try:
        metadata = yaml.safe_load(block[1])
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"the metadata of the card is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"the metadata of the card is a {type(metadata).__name__}; it must map names to values.")
    blanks = [f"the metadata: {line.strip()[:80]}" for line in block[1].splitlines() if _has_blank(line, key=True)]
    section, in_code = "its beginning", False
    for line in text[block.end() :].splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif line.startswith("#") and not in_code:
            section = repr(line.lstrip("# "))
        if BLANK in line or (not in_code and _has_blank(line)):
            blanks.append(f"{section}: {line.strip()[:80]}")
    if blanks:
        raise ValueError("the card has blanks; say what belongs there:\n  " + "\n  ".join(blanks))


def _has_blank(line: str, key: bool = False) -> bool:
    """Whether a line, after its key or marks, or a cell of a table, is a blank."""
    if key:
        line = re.sub(r"^[\s-]*[\w-]+:\s", "", line)
    cells = [cell.strip(" \t-*>#.!'\"") for cell in line.split("|")]
    return BLANK in line or any(map(_BLANK_CELL.fullmatch, cells))


def _check_values(values: Mapping[str, Any], facts: Mapping[str, Any], all_values: Mapping[str, Any]) -> None:
    known = {*REQUIRED_VALUES, *_OPTIONAL_VALUES, *facts, "repo_id"}
    unknown = sorted(str(name) for name in set(values) - known)
    if unknown:
        raise ValueError(f"the card has no place for {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
    required = [name for name in REQUIRED_VALUES if name != "language" or facts["processor_class"] == "AutoTokenizer"]
    blanks = [name for name in required if _is_blank(all_values.get(name))]
    results = all_values.get("results") or []
    if not isinstance(results, list) or not all(isinstance(result, Mapping) for result in results):
        raise ValueError(
            f"results of a card is {results!r}; it must be a list of mappings with {', '.join(_RESULT_VALUES)}."
        )
    _check_types(values)
    for number, result in enumerate(results):
        blanks += [f"results[{number}].{name}" for name in _RESULT_VALUES if _is_blank(result.get(name))]
        odd = sorted(str(name) for name in set(result) - {*_RESULT_VALUES, *_OPTIONAL_RESULT_VALUES})
        if odd:
            raise ValueError(f"results[{number}] of the card has no place for {', '.join(odd)}.")
        _check_result(f"results[{number}]", result)
    eval_results(results)
    if blanks:
        raise ValueError(f"the card lacks {', '.join(blanks)}: a card with blanks is not finished.")


def _check_types(values: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(values.get(name) or "", str) or isinstance(values.get(name), bool):
            raise ValueError(f"{name} of the card is {values[name]!r}; it must be text, in YAML in quotes if need be.")
    for name in _LISTS:
        value = values.get(name)
        if value is None or (isinstance(value, str) and (name != "limits" or _is_blank(value))):
            continue
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(entry, str) and entry.strip() for entry in value
        ):
            kind = (
                "a list of sentences" if name == "limits" else "text or a list of texts, in YAML in quotes if need be"
            )
            raise ValueError(f"{name} of a card is {value!r}; it must be {kind}.")


def _check_result(where: str, result: Mapping[str, Any]) -> None:
    value = result.get("value")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
    if not _is_blank(value) and not is_number:
        raise ValueError(f"{where}.value of the card is {value!r}; it must be a number.")
    for name in {*_RESULT_VALUES, *_OPTIONAL_RESULT_VALUES} - {"value", "baselines", "benchmark"}:
        if not isinstance(result.get(name) or "", str) or isinstance(result.get(name), bool):
            raise ValueError(f"{where}.{name} of the card is {result[name]!r}; it must be text.")
    if not isinstance(result.get("baselines") or {}, Mapping):
        raise ValueError(f"{where}.baselines of the card is {result['baselines']!r}; it must map names to figures.")
    for name, figure in (result.get("baselines") or {}).items():
        if isinstance(figure, bool) or not isinstance(figure, (int, float, str)) or figure == "":
            raise ValueError(f"{where}.baselines.{name} of the card is {figure!r}; it must be a number or text.")


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip() or BLANK in value
    return value is None or (isinstance(value, (list, tuple, Mapping)) and not value)


def _eval_result(result: Mapping[str, Any], pipeline_tag: str) -> EvalResult:
    benchmark = result.get("benchmark") or {}
    return EvalResult(
        task_type=result.get("task_type") or pipeline_tag,
        task_name=result["task"],
        dataset_type=result.get("dataset_type") or benchmark.get("dataset") or _slug(result["dataset"]),
        dataset_name=result["dataset"],
        metric_type=result.get("metric_type") or _slug(result["metric"]),
        metric_name=result["metric"],
        metric_value=result["value"],
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "unnamed"


def head_of(model: Any) -> str:
    """Return the end of the name of a model's class: its head, or "Model".

    Raises:
        ValueError: for a model that is not one of the package's families.
    """
    if isinstance(model, SeqMixPreTrainedModel):
        for suffix, cls in family_of(model.config).classes.items():
            if type(model) is cls and suffix in AUTO_CLASSES:
                return suffix
    kind = type(model)
    if hasattr(model, "_orig_mod"):
        advice = "it was made by torch.compile, so give the model that was compiled (._orig_mod)."
    elif hasattr(model, "peft_config"):
        advice = "merge its adapters first (merge_and_unload())."
    elif isinstance(model, SeqMixPreTrainedModel):
        advice = "a subclass has code that would not go with it, so load the weights into the package's own class."
    else:
        advice = "open the model with hf_seqmix imported."
    raise ValueError(f"{kind.__module__}.{kind.__name__} is not a class of the package's families: {advice}")


def _template_path() -> Path:
    """Find the template in a clone, or where an installed package keeps it."""
    places = [
        Path(__file__).resolve().parents[2] / "model_cards" / "TEMPLATE.md",
        Path(sysconfig.get_path("data")) / "share" / "hf_seqmix" / "TEMPLATE.md",
    ]
    for place in places:
        if place.is_file():
            return place
    raise ValueError(f"there is no template of a card at {' or '.join(map(str, places))}: name one by template.")
