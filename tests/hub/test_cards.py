"""Cards: what the model says of itself is filled in, what is missing is named."""

import pytest
from huggingface_hub import ModelCard

from hf_seqmix.hub import build_card, check_card, model_facts
from hf_seqmix.hub.cards import REQUIRED_VALUES

VALUES = {
    "model_name": "TNN small",
    "model_summary": "A small Toeplitz language model of Python code.",
    "model_description": "Two layers.",
    "license": "apache-2.0",
    "language": "en",
    "training_data": "Python's standard library.",
    "training_procedure": "AdamW.",
    "training_command": "python scripts/pretrain.py --recipe small.yaml",
    "training_hardware": "2 CPU cores",
    "training_time": "3 minutes",
    "results": [
        {
            "task": "language modeling",
            "dataset": "Held-out files",
            "metric": "bits per byte",
            "value": 1.71,
            "baselines": {"5-gram": 1.92},
            "command": "python scripts/run_benchmarks.py language-modeling --model someone/tnn-small",
        }
    ],
    "limits": ["It knows nothing but Python."],
}


def test_a_card_says_what_the_model_is(exported):
    _, model, tokenizer = exported["tnn"]
    card = build_card(model, tokenizer, "someone/tnn-small", VALUES)
    check_card(str(card))
    assert f"| Parameters | {model.num_parameters():,} |" in card.text
    noted = build_card(model, tokenizer, "someone/tnn-small", {**VALUES, "training_note": "Other seeds differ."})
    assert "by the command below. Other seeds differ.\n" in noted.text and "by the command below.\n" in card.text
    assert "| Weights | float32, safetensors |" in card.text and "| Context length | 16 tokens |" in card.text
    assert 'AutoModelForCausalLM.from_pretrained("someone/tnn-small")' in card.text
    assert "AutoTokenizer" in card.text and "trust_remote_code=True" in card.text
    data = ModelCard(str(card)).data
    assert data.pipeline_tag == "text-generation" and data.library_name == "transformers"
    assert data.tags == ["hf_seqmix", "tnn"] and data.model_name == "TNN small"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("bits_per_byte", 1.71, "held_out_files")


def test_a_card_of_a_model_of_images(exported):
    _, model, processor = exported["fd_tnn"]
    values = {name: value for name, value in VALUES.items() if name != "language"}
    card = build_card(model, processor, "someone/images", {**values, "context_length": 49, "tags": ["vision"]})
    assert "AutoImageProcessor" in card.text and "AutoTokenizer" not in card.text and "49 tokens" in card.text
    assert card.data.pipeline_tag == "image-classification" and card.data.tags == ["hf_seqmix", "fd_tnn", "vision"]
    bare = build_card(model, None, "someone/images", values)
    assert "Processor" not in bare.text
    for text in (card.text, bare.text):
        for code in text.split("```python\n")[1:]:
            compile(code.split("```")[0], "card", "exec")


@pytest.mark.parametrize("name", REQUIRED_VALUES)
@pytest.mark.parametrize("blank", [None, "", "  ", [], "[More Information Needed]"], ids=str)
def test_what_is_missing_is_named(exported, name, blank):
    _, model, tokenizer = exported["tnn"]
    values = {**VALUES, name: blank}
    if isinstance(blank, str) and name == "results" and blank.strip():
        return  # no list: refused as such, below
    with pytest.raises(ValueError, match=rf"(the card lacks|must be a list).*{name}|{name}.*must be a list"):
        build_card(model, tokenizer, "someone/x", values)


def test_several_at_once_and_parts_of_results_are_named(exported):
    _, model, tokenizer = exported["tnn"]
    results = [{**VALUES["results"][0], "command": ""}, {"task": "x", "dataset": "y", "metric": "z", "command": "c"}]
    values = {**VALUES, "training_data": None, "results": results}
    with pytest.raises(ValueError, match=r"lacks training_data, results\[0\]\.command, results\[1\]\.value: a card"):
        build_card(model, tokenizer, "someone/x", values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_sumary": "x"}, "has no place for model_sumary"),
        ({"results": "good"}, "results of a card is 'good'; it must be a list"),
        ({"results": [{**VALUES["results"][0], "score": 1}]}, r"results\[0\] of the card has no place for score"),
        (
            {"results": [{**VALUES["results"][0], "value": "1.7"}]},
            r"results\[0\]\.value of the card is '1.7'; it must be",
        ),
        ({"limits": "none"}, "limits of a card is 'none'; it must be a list of sentences"),
        ({"model_description": "TODO: say more"}, "the card has blanks"),
        ({1: "x"}, "has no place for 1; known are"),
        ({"tags": 5}, "tags of a card is 5; it must be text or a list of texts"),
        ({"tags": ["x", True]}, r"tags of a card is \['x', True\]; it must be"),
        ({"language": False}, "language of a card is False; it must be text or a list of texts, in YAML in quotes"),
        ({"language": ["en", False]}, r"language of a card is .*; it must be text"),
        ({"license": False}, "license of the card is False; it must be text"),
        ({"model_name": 5}, "model_name of the card is 5; it must be text"),
        ({"limits": [{"x": "y"}]}, r"limits of a card is .*; it must be a list of sentences"),
        ({"results": [{**VALUES["results"][0], 1: 1}]}, r"results\[0\] of the card has no place for 1"),
        (
            {"results": [{**VALUES["results"][0], "value": float("nan")}]},
            "value of the card is nan; it must be a number",
        ),
        (
            {"results": [{**VALUES["results"][0], "value": float("inf")}]},
            "value of the card is inf; it must be a number",
        ),
        ({"results": [{**VALUES["results"][0], "dataset": 5}]}, "dataset of the card is 5; it must be text"),
        ({"results": [{**VALUES["results"][0], "baselines": [1]}]}, r"baselines of the card is \[1\]; it must map"),
        (
            {"results": [{**VALUES["results"][0], "baselines": {"a": None}}]},
            "baselines.a of the card is None; it must be",
        ),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_values_that_do_not_fit_are_refused(exported, values, message):
    _, model, tokenizer = exported["tnn"]
    with pytest.raises(ValueError, match=message):
        build_card(model, tokenizer, "someone/x", {**VALUES, **values})


def test_text_of_a_table_stays_in_its_cell(exported):
    _, model, tokenizer = exported["tnn"]
    result = {**VALUES["results"][0], "metric": "acc | norm", "baselines": {"gzip | -9": 1.5}}
    text = str(
        build_card(model, tokenizer, "someone/x", {**VALUES, "results": [result], "paper": "A title\nand a link\n"})
    )
    [row] = [line for line in text.splitlines() if line.startswith("|") and "norm" in line]
    assert row.replace("\\|", "").count("|") == 6 and "gzip \\| -9 1.5" in row
    assert "| Paper | A title and a link |" in text


def test_blanks_of_a_finished_card_are_named_by_their_section():
    with pytest.raises(ValueError, match="no metadata"):
        check_card("# X\n")
    with pytest.raises(ValueError, match=r"'Limits': \[More Information Needed\]\n  'Results': TBD"):
        check_card("---\nlicense: mit\n---\n# X\n## Limits\n[More Information Needed]\n## Results\nTBD\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\na: [\n---\n# X\n", "is not YAML"),
        ("---\n- a\n---\n# X\n", "is a list; it must map"),
        ("---\n" + "[" * 3000 + "\n---\n# X\n", "is not YAML"),
        ("---\nlicense: TODO\n---\n# X\n", "the metadata: license: TODO"),
        ("---\nlicense: mit\n---\n# X\n| License | TBD |\n", "'X': . License . TBD"),
        ("---\nlicense: mit\n---\n# X\n- TODO: say more\n", "'X': - TODO"),
        ("---\nlicense: mit\n---\n# X\n```\n[More Information Needed]\n```\n", "'X': .More"),
        ("---\nlicense: mit\n---\n## TODO\n", "'TODO'"),
        ("---\nlicense: mit\n---\n## Uses\n\nMore information needed\n", "'Uses': More information needed"),
        ("---\nlicense: mit\n---\n# X\n| Data | [more information needed]. |\n", "'X': . Data"),
        ("---\nlicense: More Information Needed\n---\n# X\n", "the metadata: license"),
    ],
)
def test_finished_cards_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        check_card(text)


def test_a_word_of_the_data_is_no_blank():
    check_card("---\nlicense: mit\n---\n# X\nIt finds comments that begin with TODO.\n```python\n# TODO\n```\n")
    check_card("---\nlicense: mit\n---\n# X\nThere is no more information needed.\n")


def test_lines_may_end_as_on_windows():
    check_card("---\r\nlicense: mit\r\n---\r\n# X\r\nText.\r\n")
    with pytest.raises(ValueError, match="'X': TBD"):
        check_card("---\r\nlicense: mit\r\n---\r\n# X\r\nTBD\r\n")


def test_one_tag_is_a_tag(exported):
    _, model, tokenizer = exported["tnn"]
    card = build_card(model, tokenizer, "someone/x", {**VALUES, "tags": "vision", "language": "no"})
    assert card.data.tags == ["hf_seqmix", "tnn", "vision"] and ModelCard(str(card)).data.language == "no"


def test_facts_of_every_kind(exported):
    for name, (_, model, processor) in exported.items():
        facts = model_facts(model, processor)
        model_type = "seqmix_hybrid" if name in ("attention", "images") else name
        assert facts["model_type"] == model_type and facts["num_parameters"] > 0
        assert (facts["processor_class"] is None) == (processor is None)
