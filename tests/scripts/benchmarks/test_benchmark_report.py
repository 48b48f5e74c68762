"""What benchmarks found, as tables in the README and as results of a card."""

import importlib
import json
from pathlib import Path

import pytest
import yaml

from hf_seqmix.hub.kept import render_card
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
    xz -9: 1.5
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
        yield importlib.import_module("benchmarks.benchmark_report")


def environment(words):
    return {"command": f"python /home/someone/scripts/run_benchmarks.py {words}"}


def lra(path, runs, task="listops", size="reduced"):
    rows = [
        {"task": task, "data": "generated, seed 0", "size": size, "family": family, "seed": seed, "accuracy": accuracy}
        | {"test_examples": 100, "baselines": {"majority class": 0.17}}
        for family, seed, accuracy in runs
    ]
    families = dict.fromkeys(family for family, *_ in runs)
    published = {"fd_tnn": 0.5521, "attention": 0.3637}
    report = {
        "benchmark": "lra",
        "data": {task: {"source": "generated, seed 0", "baselines": {"outermost operator": 0.28}}},
        "results": rows,
        "summary": [{"task": task, "family": f, "published": published.get(f)} for f in families],
        "environment": environment(f"lra --task {task} --data {task}=/data/of/{task} --output-dir /home/someone/out"),
    }
    path.write_text(json.dumps(report), encoding="utf-8")
    return str(path)


def glue(path):
    def row(seed, f1, accuracy):
        return {
            "task": "mrpc",
            "entry": "masked",
            "seed": seed,
            "size": "full",
            "scores": {"test": {"f1": f1, "accuracy": accuracy, "loss": 1.0}},
            "baselines": {"test": {"bag of words": {"f1": 0.8 + seed / 100, "accuracy": 0.7}}},
            "train_examples": 3000,
            "test_examples": 408,
        }

    report = {"benchmark": "glue", "results": [row(0, 0.81, 0.70), row(1, 0.83, None)]}
    report["environment"] = environment("glue --model /home/someone/masked --data-dir ../glue --output-dir=out")
    path.write_text(json.dumps(report), encoding="utf-8")
    return str(path)


def corpora(path, corpus="wikitext-103"):
    rows = [
        {"family": "tnn", "seed": seed, "context_length": length, "bits_per_byte": bits, "perplexity": 30.0 + seed}
        for seed in (0, 1)
        for length, bits in ((512, 1.0 + seed), (1024, 0.9), (2048, 0.8))
    ]
    report = {
        "benchmark": "corpora",
        "corpus": corpus,
        "size": "full",
        "objective": "causal",
        "context_length": 512,
        "text": {"source": "from the Hub", "bytes": 1000, "all_test_bytes": 2000},
        "references": {"xz -9": 2.25},
        "results": rows,
        "environment": environment(f"corpora --corpus {corpus} --full --output-dir out"),
    }
    path.write_text(json.dumps(report), encoding="utf-8")
    return str(path)


def cells(text, model):
    lines = [line for line in text.splitlines() if f"| {model} " in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_one_table_a_benchmark(script, tmp_path, capsys):
    one = lra(tmp_path / "a.json", [("fd_tnn", 0, 0.4), ("fd_tnn", 1, 0.5), ("ipa", 0, 0.3)])
    two = lra(tmp_path / "b.json", [("fd_tnn", 2, 0.6)])
    script.main([one, glue(tmp_path / "g.json"), two, corpora(tmp_path / "c.json")])
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "### Long Range Arena",
        "### GLUE",
        "### Corpora",
    ]
    assert "\nListOps: generated, seed 0; 100 test examples; reduced size (command 1).\n" in text
    published = "Moreno, Mei, Walters 2023 0.5521"
    assert cells(text, "fd_tnn") == [["fd_tnn", "accuracy", "0.5000", "0.1000", "3: 0, 1, 2", published]]
    assert cells(text, "ipa") == [["ipa", "accuracy", "0.3000", "-", "0", "-"]]
    # what the models of a table have to beat stands below them, once
    assert cells(text, "(outermost operator)") == [["(outermost operator)", "accuracy", "0.2800", "-", "-", "-"]]
    command = "python scripts/run_benchmarks.py lra --task listops --data listops=DATA/listops --output-dir runs/lra"
    assert f"1. `{command}`" in text

    f1, accuracy = cells(text, "masked")
    assert f1[1:5] == ["F1", "0.8200", "0.0141", "2: 0, 1"] and "TNN, 126.4 M 0.8296" in f1[5]
    assert accuracy[1:5] == ["accuracy", "0.7000", "-", "0"]
    assert ["(bag of words)", "F1", "0.8050"] in [row[:3] for row in cells(text, "(bag of words)")]
    assert "--model DATA/masked --data-dir DATA/glue --output-dir=runs/glue`" in text

    bits, longest, perplexity = cells(text, "tnn")
    assert bits[1:3] == ["bits per byte (context 512, trained at 512)", "1.5000"] and "1,000 of 2,000" in text
    assert longest[1:3] == ["bits per byte (context 2048, trained at 512)", "0.8000"]
    assert perplexity[2] == "30.50" and "FD-TNN 24.56" in perplexity[5] and bits[5] == "-"
    assert {row[2] for row in cells(text, "(xz -9)")} == {"2.2500"}
    assert "/home" not in text


def test_commands_name_files_of_the_repository_from_there(script):
    readers = importlib.import_module("benchmarks.report_readers")
    command = f"python {SCRIPTS}/x/run_benchmarks.py glue --model {SCRIPTS.parent}/model_cards/a --x=1 --output-dir /x"
    assert readers.portable_command(command, "glue") == (
        "python scripts/run_benchmarks.py glue --model model_cards/a --x=1 --output-dir runs/glue"
    )


def test_readme_changes_between_its_markers_alone(script, tmp_path):
    results, readme = lra(tmp_path / "a.json", [("fd_tnn", 0, 0.4)]), tmp_path / "README.md"
    before, after = "# Title\r\n\n`<!-- benchmark results: begin -->` in a line  \n\n", "\n\nEnd, no newline: é"
    readme.write_bytes(f"{before}{script.BEGIN}\nold\n{script.END}{after}".encode())
    script.main([results, "--readme", str(readme)])
    text = readme.read_bytes().decode()
    assert text.startswith(f"{before}{script.BEGIN}\n\n### Long Range Arena\n\nListOps: ")
    assert text.endswith(f"\n\n{script.END}{after}") and "old" not in text
    script.main([results, "--readme", str(readme)])
    assert readme.read_bytes().decode() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "a.json"]


@pytest.mark.parametrize("text", ["no marker", "{begin}\n", "{end}\n{begin}\n", "{begin}\n{end}\n{end}\n"])
def test_readme_without_markers_stays(script, tmp_path, text):
    results, readme = lra(tmp_path / "a.json", [("fd_tnn", 0, 0.4)]), tmp_path / "README.md"
    text = text.format(begin=script.BEGIN, end=script.END)
    readme.write_text(text)
    with pytest.raises(SystemExit, match="benchmark results: "):
        script.main([results, "--readme", str(readme)])
    assert readme.read_text() == text


def test_card_entries_take_the_place_of_their_like(script, tmp_path):
    results = [lra(tmp_path / "a.json", [("fd_tnn", 0, 0.4), ("fd_tnn", 1, 0.5), ("ipa", 0, 0.3)])]
    results.append(lra(tmp_path / "b.json", [("fd_tnn", 1, 0.25)], task="image", size="full"))
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card.yaml").write_text(CARD, encoding="utf-8")
    words = [*results, "--card", str(folder), "--models", "fd_tnn"]
    script.main(words)
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
            "outermost operator": 0.28,
            "majority class": 0.17,
            "published, full size (Moreno, Mei, Walters 2023)": 0.5521,
        },
        "note": "mean of 2 seeds (0, 1), standard deviation 0.0707",
        "command": "python scripts/run_benchmarks.py lra --task listops --data listops=DATA/listops --output-dir runs/lra",
    }
    script.main(words)
    assert (folder / "card.yaml").read_text(encoding="utf-8") == text
    script.main([*words, "--seeds", "1"])
    newest = yaml.safe_load((folder / "card.yaml").read_text(encoding="utf-8"))["results"]
    assert [(entry["value"], entry["note"]) for entry in newest[1::2]] == [(0.5, "seed 1"), (0.25, "seed 1")]


def test_the_card_is_rendered_with_them(script, tmp_path):
    folder = tmp_path / "small"
    tiny_model("fd_tnn").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "card.yaml").write_text(yaml.safe_dump(VALUES))
    script.main([lra(tmp_path / "a.json", [("fd_tnn", 0, 0.4)]), "--card", str(folder)])
    text = render_card(folder)
    assert (
        "| ListOps | generated, seed 0; 100 test examples; reduced size | accuracy | 0.4 | outermost operator 0.28"
        in text
    )
    assert "published, full size (Moreno, Mei, Walters 2023) 0.5521" in text and "accuracy (seed 0):" in text


def test_a_card_without_results_and_one_in_braces(script, tmp_path):
    [entry] = script.card_entries(script.read_results([Path(lra(tmp_path / "a.json", [("ipa", 0, 0.3)]))]))
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


def test_what_makes_no_sense_is_refused(script, tmp_path):
    good = lra(tmp_path / "a.json", [("fd_tnn", 0, 0.4), ("ipa", 0, 0.3)])
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card.yaml").write_text(CARD, encoding="utf-8")
    with pytest.raises(SystemExit, match="A card is of one model; the results are of fd_tnn, ipa"):
        script.main([good, "--card", str(folder)])
    assert (folder / "card.yaml").read_text(encoding="utf-8") == CARD
    with pytest.raises(SystemExit, match="--models chooses none of fd_tnn, ipa"):
        script.main([good, "--models", "tnn"])
    with pytest.raises(SystemExit, match="none of the seeds"):
        script.main([good, "--seeds", "7"])
    with pytest.raises(SystemExit, match=r"repeats seed 0 of fd_tnn on ListOps"):
        script.main([good, good])
    with pytest.raises(SystemExit, match=r"there is no .*card\.yaml"):
        script.main([good, "--models", "ipa", "--card", str(tmp_path)])
    bad = tmp_path / "bad.json"
    for content, fault in {
        '{"benchmark": "trade-off"}': "is of the benchmark 'trade-off'; known are lra, glue, corpora",
        '{"benchmark": "glue"}': "is not as this version of the benchmark glue writes it",
        "[]": "cannot be read as results.json of a benchmark",
        "{": "cannot be read as results.json of a benchmark",
    }.items():
        bad.write_text(content)
        with pytest.raises(SystemExit, match=fault):
            script.main([str(bad)])
