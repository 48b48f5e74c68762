from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard, ModelCardData

TEMPLATE = Path(__file__).resolve().parents[2] / "model_cards" / "TEMPLATE.md"
BLANK = "[More Information Needed]"

VALUES = {
    "model_name": "TNN small",
    "repo_id": "someone/tnn-small",
    "auto_class": "AutoModelForCausalLM",
    "processor_class": "AutoTokenizer",
    "usage": 'print(tokenizer.decode(model.generate(**tokenizer("def", return_tensors="pt"))[0]))\n',
    "model_summary": "A small Toeplitz language model of Python code.",
    "model_description": "Seven layers.",
    "model_type": "tnn",
    "num_parameters": 48579264,
    "context_length": 512,
    "tokenizer": "byte-level BPE of 4096 pieces",
    "dtype": "float32",
    "paper": "[Toeplitz Neural Network for Sequence Modeling](https://arxiv.org/abs/2305.04749)",
    "training_data": "Python's standard library.",
    "training_procedure": "AdamW.",
    "training_command": "python scripts/pretrain.py --recipe small.yaml",
    "training_hardware": "2 CPU cores",
    "training_time": "3 minutes",
    "results": [
        {
            "task": "language modeling",
            "dataset": "held-out files",
            "metric": "bits per byte",
            "value": 1.71,
            "baselines": {"gzip -9": 1.93, "5-gram": 1.92},
            "note": "context 512",
            "command": "python scripts/run_benchmarks.py language-modeling --model someone/tnn-small",
        },
        {"task": "classification", "dataset": "SST-2", "metric": "accuracy", "value": 0, "command": "python x.py"},
    ],
    "limits": ["It knows nothing but Python.", "It is small."],
    "citation": "@misc{x}",
}

OPTIONAL = {"usage", "paper", "citation", "processor_class"}


def card_data(**more):
    return ModelCardData(
        language="en",
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["hf_seqmix", "tnn"],
        **more,
    )


def test_complete_card_has_no_blank_and_valid_metadata():
    result = EvalResult("text-generation", "held-out", "Held-out files", "bits_per_byte", 1.71)
    card = ModelCard.from_template(
        card_data(model_name="TNN small", eval_results=[result]), template_path=str(TEMPLATE), **VALUES
    )
    text = str(card)
    assert BLANK not in text and "{" not in card.text.replace("{x}", "")
    assert card.data.license == "apache-2.0" and card.data.eval_results[0].metric_value == 1.71
    assert ModelCard(text).data.to_dict() == card.data.to_dict()

    assert "# TNN small\n\nA small Toeplitz" in text
    assert "| Parameters | 48,579,264 |\n" in text
    assert "| language modeling | held-out files | bits per byte | 1.71 | gzip -9 1.93, 5-gram 1.92 |\n" in text
    assert "| classification | SST-2 | accuracy | 0 | - |\n" in text
    for result in VALUES["results"]:
        assert f"```bash\n{result['command']}\n```" in text
    assert "- It knows nothing but Python.\n- It is small.\n" in text
    with_package, without = (part.split("```")[0] for part in text.split("```python\n")[1:])
    for code in (with_package, without):
        compile(code, "card", "exec")
    assert "import hf_seqmix" in with_package and "trust_remote_code" not in with_package
    assert without.count("trust_remote_code=True") == 2 and "import hf_seqmix" not in without
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", sorted(set(VALUES) - OPTIONAL))
def test_whatever_is_missing_leaves_a_blank(name):
    values = {key: value for key, value in VALUES.items() if key != name}
    assert BLANK in str(ModelCard.from_template(card_data(), template_path=str(TEMPLATE), **values))


@pytest.mark.parametrize("name", ["task", "dataset", "metric", "value", "command"])
def test_whatever_is_missing_of_a_result_leaves_a_blank(name):
    result = {key: value for key, value in VALUES["results"][0].items() if key != name}
    values = {**VALUES, "results": [result]}
    assert BLANK in str(ModelCard.from_template(card_data(), template_path=str(TEMPLATE), **values))


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_optional_values_may_be_missing(name):
    values = {key: value for key, value in VALUES.items() if key != name}
    text = str(ModelCard.from_template(card_data(), template_path=str(TEMPLATE), **values))
    assert BLANK not in text and "\n\n\n" not in text
