"""What benchmarks found, as tables in the README and as results of a card."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

from hf_seqmix.hub.kept import render_card
from hf_seqmix.training.result_files import read_results, write_results
from hf_seqmix.training.results import group_results
from hf_seqmix.training.run import Run
from tests.ecosystem.tiny import tiny_model, tiny_tokenizer
from tests.hub.test_cards import VALUES

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
CARD = """\
model_name: FD-TNN small  # a comment
results:
- task: language modeling
  dataset: some text
  metric: bits per byte
  value: 1.4
  baselines: &beside
    xz -9e: 1.5
  command: one
- task: ListOps
  dataset: generated, seed 0; 100 test examples; reduced size
  metric: accuracy
  value: 0.1
  command: two
- task: language modeling
  dataset: other text
  metric: bits per byte
  value: 1.3
  baselines: *beside
  command: three

# about what follows
limits: [
  "It   knows little."]
"""


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("benchmarks.report")


@pytest.fixture(scope="module")
def main(script):
    run = importlib.import_module("run_benchmarks").main
    return lambda words: run(["report", *map(str, words)])


COMMAND = "python scripts/run_benchmarks.py lra --task listops --data listops=DATA/listops --output-dir runs/lra"


def lra(path, runs, task="listops", size="reduced"):
    setting = {"data": "generated, seed 0; 100 test examples"}
    results = []
    for family, seed, accuracy in runs:
        shared = {"task": task, "seed": seed, "size": size, "setting": setting, "command": COMMAND}
        results += group_results(
            {"accuracy": accuracy, "updates": 12, "train_loss": [[1, 2.0]]}, model=family, **shared
        )
        results += group_results({"accuracy": 0.17}, model="majority class", kind="baseline", **shared)
    rule = {"task": task, "size": size, "setting": setting, "kind": "baseline"}
    results += group_results({"accuracy": 0.28}, model="outermost operator", **rule)
    papers = {"task": task, "size": "full", "kind": "published"}
    for family, value, source in (("fd_tnn", 0.5521, "Moreno, Mei, Walters 2023"), ("attention", 0.3637, "Tay 2021")):
        if family in {name for name, *_ in runs}:
            results += group_results({"accuracy": value}, model=family, source=source, **papers)
    write_results(path, results)
    return str(path)


def cells(text, name):
    """Cells of the rows of a model."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() == name]


def test_tables_hold_means_baselines_and_published_figures(main, tmp_path, capsys):
    one = lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4), ("ipa", 0, 0.3)])
    two = lra(tmp_path / "b.jsonl", [("fd_tnn", 1, 0.5), ("attention", 0, 0.25)])
    image = lra(tmp_path / "c.jsonl", [("fd_tnn", 0, 0.2)], task="image", size="full")
    main([one, two, image])
    text = capsys.readouterr().out
    assert text.startswith("ListOps: generated, seed 0; 100 test examples; reduced size (command 1).\n\n| model")
    assert "Image: generated, seed 0; 100 test examples; full size" in text and f"1. `{COMMAND}`" in text
    assert cells(text, "fd_tnn")[0] == ["fd_tnn", "0.4500", "0.071", "2"] and cells(text, "fd_tnn")[1][1] == "0.2000"
    assert cells(text, "ipa") == [["ipa", "0.3000", "-", "1"]]
    assert cells(text, "(outermost operator)")[0][1] == "0.2800" and cells(text, "(majority class)")[0][1] == "0.1700"
    assert cells(text, "fd_tnn (published)")[0][1] == "0.5521"
    assert cells(text, "attention (published)")[0][1] == "0.3637"
    assert "updates" not in text


def test_seeds_of_other_runs_are_named(main, tmp_path, capsys):
    def seed(model, number, steps):
        run = Run("lm", training={"max_steps": steps}, data={"train_file": f"{number}.txt"}, seed=number)
        return group_results({"bits_per_byte": 1.5}, task="lm", model=model, seed=number, run=run)

    found = [seed("tnn", 0, 10), seed("tnn", 1, 20), seed("ipa", 0, 10), seed("ipa", 1, 10)]
    write_results(tmp_path / "a.jsonl", [result for results in found for result in results])
    main([tmp_path / "a.jsonl"])
    text = capsys.readouterr().out
    assert "The runs of tnn differ in more than the seed: max_steps (10, 20)." in text and "runs of ipa" not in text


def test_settings_tell_rows_apart(main, tmp_path, capsys):
    shared = {"task": "language modeling", "model": "tnn", "seed": 0}
    found = [
        result
        for length, bits in ((512, 1.5), (2048, 0.8))
        for result in group_results(
            {"bits_per_byte": bits}, setting={"data": "text", "context_length": length, "dtype": "float32"}, **shared
        )
    ]
    write_results(tmp_path / "a.jsonl", found)
    main([tmp_path / "a.jsonl"])
    text = capsys.readouterr().out
    assert cells(text, "model") == [["model", "context length", "bits per byte"]]
    assert cells(text, "tnn") == [["tnn", "512", "1.5000"], ["tnn", "2048", "0.8000"]]


@pytest.mark.parametrize(
    "path",
    [p for name in ("lra", "corpora", "glue") for p in sorted((SCRIPTS / "measured" / name).rglob("*.jsonl"))],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_what_was_measured_is_read_and_names_no_folder_of_a_machine(main, path, capsys):
    report = main([path])
    measured = [result for result in report.results if result.kind == "measured"]
    assert all(result.run is not None and result.command for result in measured)
    assert "| model " in capsys.readouterr().out
    assert not re.search(r"/(home|root|tmp|work)/", path.read_text(encoding="utf-8"))


def test_a_file_changes_between_its_markers_alone(script, main, tmp_path):
    results, readme = lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4)]), tmp_path / "README.md"
    before, after = "# Title\r\n\n`<!-- benchmark results: begin -->` in a line  \n\n", "\n\nEnd, no newline: é"
    readme.write_bytes(f"{before}{script.BEGIN}\nold\n{script.END}{after}".encode())
    main([results, "--into", str(readme)])
    text = readme.read_bytes().decode()
    assert text.startswith(f"{before}{script.BEGIN}\n\nListOps: ")
    assert text.endswith(f"\n\n{script.END}{after}") and "old" not in text
    main([results, "--into", str(readme)])
    assert readme.read_bytes().decode() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "a.jsonl"]


def test_a_new_file_gets_the_markers(script, main, tmp_path):
    results, readme = lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4)]), tmp_path / "REPORT.md"
    main([results, "--into", str(readme)])
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"{script.BEGIN}\n\nListOps: ") and text.endswith(f"{script.END}\n")


@pytest.mark.parametrize("text", ["no marker", "{begin}\n", "{end}\n{begin}\n", "{begin}\n{end}\n{end}\n"])
def test_a_file_without_markers_stays(script, main, tmp_path, text):
    results, readme = lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4)]), tmp_path / "README.md"
    text = text.format(begin=script.BEGIN, end=script.END)
    readme.write_text(text)
    with pytest.raises(SystemExit, match="benchmark results: "):
        main([results, "--into", str(readme)])
    assert readme.read_text() == text


def test_card_entries_take_the_place_of_their_like(main, tmp_path):
    results = [lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4), ("fd_tnn", 1, 0.5), ("ipa", 0, 0.3)])]
    results.append(lra(tmp_path / "b.jsonl", [("fd_tnn", 1, 0.25)], task="image", size="full"))
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card.yaml").write_text(CARD, encoding="utf-8")
    words = [*results, "--card", str(folder), "--models", "fd_tnn"]
    main(words)
    text = (folder / "card.yaml").read_text(encoding="utf-8")
    first, rest = CARD.index("- task: ListOps"), CARD.index("\n# about what follows")
    assert text.startswith(CARD[: CARD.index("- task")]) and text.endswith(CARD[rest:]) and first < rest
    old, new = yaml.safe_load(CARD)["results"], yaml.safe_load(text)["results"]
    assert [new[0], new[2]] == [old[0], old[2]] and [entry["task"] for entry in new[1::2]] == ["ListOps", "Image"]
    assert new[1] == {
        "task": "ListOps",
        "dataset": "generated, seed 0; 100 test examples; reduced size",
        "metric": "accuracy",
        "value": 0.45,
        "baselines": {
            "majority class": 0.17,
            "outermost operator": 0.28,
            "published, full size (Moreno, Mei, Walters 2023, fd_tnn)": 0.5521,
        },
        "note": "mean of 2 seeds (0, 1), standard deviation 0.0707",
        "command": COMMAND,
    }
    main(words)
    assert (folder / "card.yaml").read_text(encoding="utf-8") == text
    named = text.replace("  note: mean of 2 seeds", "  benchmark: {dataset: a/b, task: c}\n  note: mean of 2 seeds")
    (folder / "card.yaml").write_text(named, encoding="utf-8")
    main(words)
    kept = yaml.safe_load((folder / "card.yaml").read_text(encoding="utf-8"))["results"]
    assert kept[1] == {**new[1], "benchmark": {"dataset": "a/b", "task": "c"}} and kept[3] == new[3]
    main([*words, "--seeds", "1"])
    newest = yaml.safe_load((folder / "card.yaml").read_text(encoding="utf-8"))["results"]
    assert [(entry["value"], entry["note"]) for entry in newest[1::2]] == [(0.5, "seed 1"), (0.25, "seed 1")]


def test_the_card_is_rendered_with_them(main, tmp_path):
    folder = tmp_path / "small"
    tiny_model("fd_tnn").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "card.yaml").write_text(yaml.safe_dump(VALUES))
    main([lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4)]), "--card", str(folder)])
    text = render_card(folder)
    assert (
        "| ListOps | generated, seed 0; 100 test examples; reduced size | accuracy | 0.4 | "
        "majority class 0.17, outermost operator 0.28" in text
    )
    assert "published, full size (Moreno, Mei, Walters 2023, fd_tnn) 0.5521" in text and "accuracy (seed 0):" in text


def test_a_card_without_results_and_one_in_braces(script, tmp_path):
    found = [r for r in read_results(lra(tmp_path / "a.jsonl", [("ipa", 0, 0.3)])) if r.metric == "accuracy"]
    [entry] = script.card_entries(found)
    assert yaml.safe_load(script.with_results("model_name: X", [entry], "card.yaml")) == {
        "model_name": "X",
        "results": [entry],
    }
    with pytest.raises(ValueError, match="not in braces"):
        script.with_results('{"model_name": "X", "results": []}', [entry], "card.yaml")
    for path in (SCRIPTS.parent / "model_cards").glob("*/card.yaml"):
        text = path.read_text(encoding="utf-8")
        changed = script.with_results(text, [entry], str(path))
        values, before = yaml.safe_load(changed), yaml.safe_load(text)
        assert values.pop("results") == [*before.pop("results"), entry] and values == before


def test_what_makes_no_sense_is_refused(main, tmp_path):
    good = lra(tmp_path / "a.jsonl", [("fd_tnn", 0, 0.4), ("ipa", 0, 0.3)])
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card.yaml").write_text(CARD, encoding="utf-8")
    with pytest.raises(SystemExit, match="a card is of one model; the results are of fd_tnn, ipa"):
        main([good, "--card", str(folder)])
    assert (folder / "card.yaml").read_text(encoding="utf-8") == CARD
    with pytest.raises(SystemExit, match="--models chooses none of fd_tnn, ipa"):
        main([good, "--models", "tnn"])
    with pytest.raises(SystemExit, match="none of the seeds"):
        main([good, "--seeds", "7"])
    other = lra(tmp_path / "b.jsonl", [("fd_tnn", 0, 0.5)])
    with pytest.raises(SystemExit, match=r"repeats accuracy of fd_tnn on listops, seed 0"):
        main([good, other])
    with pytest.raises(SystemExit, match=r"there is no .*card\.yaml"):
        main([good, "--models", "ipa", "--card", str(tmp_path)])
    bad = tmp_path / "bad.jsonl"
    for content, fault in {
        '{"benchmark": "trade-off"}\n': r"bad\.jsonl, line 1 has",
        "[]\n": r"bad\.jsonl, line 1 is",
        "{\n": r"bad\.jsonl, line 1 is not JSON",
        "": "the files hold no result",
    }.items():
        bad.write_text(content)
        with pytest.raises(SystemExit, match=fault):
            main([str(bad)])


def test_points_of_curves_are_no_results(main, tmp_path, capsys):
    shared = {"task": "language modeling", "model": "tnn", "seed": 0, "command": "x", "environment": {}}
    curve = group_results({"bits_per_byte": {3.1: 5.0, 6.2: 3.0}}, over="seconds", **shared)
    write_results(tmp_path / "curve.jsonl", [*curve, *group_results({"bits_per_byte": 2.05}, **shared)])
    main([str(tmp_path / "curve.jsonl")])
    printed = capsys.readouterr().out
    assert "2.05" in printed and "5.0" not in printed


def test_a_file_with_other_ends_of_lines_is_changed_between_its_markers(script):
    text = f"one\r\n{script.BEGIN}\r\nold\r\n{script.END}\r\ntwo\r\n"
    changed = script.between_markers(text, "new", "a.md")
    assert changed == f"one\r\n{script.BEGIN}\n\nnew\n\n{script.END}\r\ntwo\r\n"
