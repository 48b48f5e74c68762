"""Results in `.eval_results`, read back by the parser of huggingface_hub."""

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from hf_seqmix.hub import build_card
from hf_seqmix.hub.eval_results import EVAL_RESULTS, eval_results, read_eval_results, write_eval_results
from tests.ecosystem.tiny import tiny_model, tiny_tokenizer
from tests.hub.test_cards import VALUES

LOCAL = VALUES["results"][0]
BENCHMARK = {"dataset": "openai/gsm8k", "task": "gsm8k", "revision": "5" * 40, "date": "2026-11-22"}
HUB = {**LOCAL, "dataset": "GSM8K", "metric": "accuracy", "value": 0.02, "note": "no tools", "benchmark": BENCHMARK}
OTHER = {**HUB, "value": 7, "note": "", "benchmark": {"dataset": "cais/HLE_2.b", "task": "hle"}}


def test_results_on_benchmarks_come_back_and_others_are_left_out(tmp_path):
    date = yaml.safe_load("2026-11-22")
    again = {**HUB, "value": 0.03, "benchmark": {**BENCHMARK, "date": date, "task": "hard"}}
    entries = eval_results([LOCAL, HUB, OTHER, again])
    shared = {"dataset_id": "openai/gsm8k", "dataset_revision": "5" * 40, "date": "2026-11-22", "notes": "no tools"}
    first = EvalResultEntry(task_id="gsm8k", value=0.02, **shared)
    second = EvalResultEntry(task_id="hard", value=0.03, **shared)
    other = EvalResultEntry(dataset_id="cais/HLE_2.b", task_id="hle", value=7)
    assert entries == [first, other, second]
    files = write_eval_results(tmp_path, entries)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == [
        ".eval_results/openai-gsm8k.yaml",
        ".eval_results/cais-hle-2-b.yaml",
    ]
    content = yaml.safe_load(files[0].read_text(encoding="utf-8"))
    assert content[0]["dataset"] == {"id": "openai/gsm8k", "task_id": "gsm8k", "revision": "5" * 40}
    assert parse_eval_result_entries(content) == [first, second]
    assert read_eval_results(tmp_path) == [other, first, second]
    write_eval_results(tmp_path, [other])
    assert read_eval_results(tmp_path) == [other]
    assert write_eval_results(tmp_path, []) == [] == read_eval_results(tmp_path)
    assert not (tmp_path / EVAL_RESULTS).exists()


def test_datasets_of_like_names_share_a_file(tmp_path):
    names = ["org/gsm-8k", "org/gsm_8k", "Org/GSM.8k"]
    results = [{**HUB, "value": value, "benchmark": {"dataset": n, "task": "x"}} for value, n in enumerate(names)]
    entries = eval_results(results)
    [path] = write_eval_results(tmp_path, entries)
    assert path.name == "org-gsm-8k.yaml"
    assert read_eval_results(tmp_path) == entries


@pytest.mark.parametrize(
    ("benchmark", "message"),
    [
        ("openai/gsm8k", "must map dataset, task, revision, date"),
        ({**BENCHMARK, "split": "test"}, "must map dataset, task, revision, date"),
        ({"dataset": "openai/gsm8k"}, r"benchmark\.task of the card is None; it must be text"),
        ({**BENCHMARK, "dataset": "held-out files"}, r"results\[1\]\.benchmark of the card: .*held-out files"),
        ({**BENCHMARK, "dataset": "gsm8k"}, "must be 'owner/name' on the Hub"),
        ({**BENCHMARK, "revision": 5}, r"benchmark\.revision of the card is 5; it must be text"),
        ({**BENCHMARK, "date": "yesterday"}, "isoformat string: 'yesterday'"),
    ],
)
def test_names_that_the_hub_does_not_take_are_refused(benchmark, message):
    values = {**VALUES, "results": [LOCAL, {**LOCAL, "benchmark": benchmark}]}
    with pytest.raises(ValueError, match=message):
        build_card(tiny_model("tnn"), tiny_tokenizer(), "someone/x", values)


def test_the_index_of_a_card_names_the_dataset():
    values = {**VALUES, "results": [LOCAL, HUB, {**HUB, "dataset_type": "gsm8k"}]}
    card = build_card(tiny_model("tnn"), tiny_tokenizer(), "someone/x", values)
    named = [result.dataset_type for result in card.data.eval_results]
    assert named == ["held_out_files", "openai/gsm8k", "gsm8k"]


@pytest.mark.parametrize("text", ["- dataset: {id: a/b}\n  value: 1\n", "a: 1\n", "7\n", "[", "- value: 1\n"])
def test_a_file_with_something_else_is_named(tmp_path, text):
    (tmp_path / EVAL_RESULTS).mkdir()
    (tmp_path / EVAL_RESULTS / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"x\.yaml holds no evaluation results"):
        read_eval_results(tmp_path)
