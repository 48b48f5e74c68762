"""The benchmark of corpora: trained, scored at several lengths, resumed, and refused where it makes no sense."""

import argparse
import importlib
import json
import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, ByT5Tokenizer

from hf_seqmix import FDTNNConfig, FDTNNForCausalLM, FDTNNForMaskedLM
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.masked_modeling import evaluate_masked_model, mask_documents, ngram_bits_per_byte
from hf_seqmix.analysis.report import ResultLog
from hf_seqmix.data import ByteNGram

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
NOTICE = (
    "Licence\n*** START OF THE PROJECT GUTENBERG EBOOK A ***\n{}\n*** END OF THE PROJECT GUTENBERG EBOOK A ***\nEnd"
)


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("run_benchmarks")


@pytest.fixture(scope="module")
def novels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("novels")
    rng = random.Random(0)
    for name, length in (("a", 4000), ("b", 700), ("c", 400)):
        words = " ".join(rng.choices(["call", "me", "Ishmael", "caf\u00e9"], k=length))[:length]
        (folder / f"{name}.txt").write_text(NOTICE.format(words), encoding="utf-8")
    return folder


def command(novels, output, *more):
    tiny = "--config-overrides hidden_size=8 rpe_hidden_size=4 num_hidden_layers=1 --use-cpu --disable-tqdm true"
    return [
        *("corpora", "--fast", "--corpus", "gutenberg", "--data-dir", str(novels), "--families", "tnn"),
        *(
            "--tokenizer",
            "byte",
            "--context-length",
            "16",
            "--max-steps",
            "2",
            "--inference-lengths",
            "16",
            "32",
            "1024",
        ),
        *("--ngram", "2", "--device", "cpu", f"--training-arguments={tiny}", "--output-dir", str(output), *more),
    ]


@pytest.fixture(scope="module")
def finished(script, novels, tmp_path_factory):
    """One tiny run: in a process of its own, as users' are."""
    output = tmp_path_factory.mktemp("corpora") / "out"
    return output, script.main(command(novels, output))


def test_trained_and_scored_at_each_length(script, novels, finished, tmp_path, capsys):
    output, report = finished
    test = (novels / "c.txt").read_text(encoding="utf-8").split("***")[2].strip()
    assert report["text"]["bytes"] == len(test.encode()) and report["text"]["documents"] == 1
    assert (output / "data").is_dir() and "EBOOK" not in next(output.glob("data/*/train.jsonl")).read_text()

    [run] = report["training"]
    assert run["updates"] == 2 and run["num_train_tokens"] == 2 * 4 * 16 and run["family"] == "tnn"
    [folder] = output.glob("runs/gutenberg-*/causal/tnn/seed-0-*")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.hidden_size == 8 and model.config.max_position_embeddings == 16
    expected = evaluate_language_model(model, ByT5Tokenizer(), [test], context_lengths=[16, 32], progress=False)
    assert [row["context_length"] for row in report["results"]] == [16, 32]
    for row, score in zip(report["results"], expected, strict=True):
        assert row["bits_per_byte"] == pytest.approx(score.bits_per_byte, rel=1e-5)
        assert row["perplexity"] == pytest.approx(math.exp(row["nll"] / len(test.encode())), rel=1e-6)

    [missing] = report["impossible"]
    assert missing["context_length"] == 1024 and "no document" in missing["reason"]
    table = (output / "results.md").read_text(encoding="utf-8")
    assert "Not possible: tnn, seed 0, 1,024 tokens" in table and "(xz -9)" in table and "(byte 2-gram)" in table
    assert "published)" not in table and "1 seed" in table
    assert (output / "perplexity-against-length.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((output / "results.json").read_text())["results"] == report["results"]


def test_nothing_is_computed_twice(script, novels, finished, tmp_path, monkeypatch):
    output, report = finished
    copy = tmp_path / "out"
    shutil.copytree(output, copy)

    def refuse(*arguments, **options):
        raise AssertionError("trained or scored again")

    monkeypatch.setattr(subprocess, "run", refuse)
    scoring = importlib.import_module("benchmarks.corpora_scoring")
    lengths = []
    original = scoring.benchmark_language.score_model
    monkeypatch.setattr(scoring.benchmark_language, "score_model", refuse)
    assert script.main(command(novels, output))["results"] == report["results"]

    def counted(arguments, folder, name, texts, keys, log):
        lengths.extend(keys)
        original(arguments, folder, name, texts, keys, log)

    # One more length is all that a second command adds; the text cut shorter is another text.
    monkeypatch.setattr(scoring.benchmark_language, "score_model", counted)
    script.main(command(novels, output, "--inference-lengths", "16", "64"))
    assert lengths == [64]
    script.main(command(novels, output, "--inference-lengths", "16", "--max-bytes", "100"))
    assert lengths == [64, 16]


@pytest.fixture
def fd_models(script, tmp_path):
    """A causal and a masked FD-TNN with a grid of 8 tokens, saved, and how they are scored."""
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 8}
    tokenizer = ByT5Tokenizer(mask_token="<extra_id_0>")
    for kind, model_class in (("causal", FDTNNForCausalLM), ("masked", FDTNNForMaskedLM)):
        torch.manual_seed(0)
        config = FDTNNConfig(**sizes, is_causal=kind == "causal", initializer_range=0.5)
        model_class(config).save_pretrained(tmp_path / kind)
        tokenizer.save_pretrained(tmp_path / kind)

    def score(objective, texts, log, **more):
        settings = {"context_length": 8, "inference_lengths": [8, 32], "keep_grid": False, "ngram": 2, **more}
        options = {"benchmark": "corpora", "batch_size": None, "device": "cpu", "dtype": "float32", "overwrite": False}
        arguments = argparse.Namespace(**options, **settings, objective=objective)
        scoring = sys.modules["corpora_scoring"]
        models = [scoring.TrainedModel("fd_tnn", 0, tmp_path / objective)]
        rows, impossible = scoring.score_lengths(arguments, models, texts, log)
        assert impossible == []
        return rows, scoring.references(arguments, models, ["to be or not"], texts, log)

    return tmp_path, tokenizer, score


TEXT = "To be, or not to be: that is the question.\n" * 3


def test_frequency_kernels_follow_the_inference_length_unless_kept(fd_models, tmp_path):
    folder, tokenizer, score = fd_models
    log = ResultLog(tmp_path / "log.jsonl")
    rows, references = score("causal", [TEXT], log)
    kept, _ = score("causal", [TEXT], log, keep_grid=True)
    model = AutoModelForCausalLM.from_pretrained(folder / "causal")
    options = {"context_lengths": [8, 32], "progress": False}
    short, zeros = evaluate_language_model(model, tokenizer, [TEXT], **options)
    model.set_context_length(32)
    _, finer = evaluate_language_model(model, tokenizer, [TEXT], **options)
    assert [row["nll"] for row in rows] == pytest.approx([short.nll, finer.nll], rel=1e-6)
    assert [row["nll"] for row in kept] == pytest.approx([short.nll, zeros.nll], rel=1e-6)
    assert abs(finer.nll - zeros.nll) > 1e-3
    assert references["byte 2-gram"] == pytest.approx(ByteNGram(2).fit(["to be or not"]).bits_per_byte([TEXT]))


def test_masked_models_fill_the_same_gaps_at_every_length(fd_models, tmp_path):
    folder, tokenizer, score = fd_models
    log = ResultLog(tmp_path / "log.jsonl")
    rows, references = score("masked", [TEXT], log)
    again, same = score("masked", [TEXT], log)
    assert (again, same) == (rows, references)
    assert rows[0]["num_masked"] == rows[1]["num_masked"] and rows[0]["nll"] != rows[1]["nll"]
    blocks = mask_documents(tokenizer, [TEXT], context_length=32)
    model = AutoModelForMaskedLM.from_pretrained(folder / "masked")
    model.set_context_length(32)
    expected = evaluate_masked_model(model, tokenizer, blocks, context_length=32, progress=False)
    assert rows[1]["nll"] == pytest.approx(expected.nll, rel=1e-6)
    assert rows[1]["perplexity"] == pytest.approx(math.exp(expected.token_loss), rel=1e-6)
    ngram = ByteNGram(2).fit(["to be or not"])
    assert references == {"byte 2-gram, bytes before": pytest.approx(ngram_bits_per_byte(ngram, [TEXT], blocks))}
    drawn = sys.modules["corpora_report"].as_score(rows[1])
    assert (drawn.perplexity, drawn.bits_per_byte) == pytest.approx((rows[1]["perplexity"], rows[1]["bits_per_byte"]))


def test_a_length_that_memory_refuses_is_said(script, novels, finished, monkeypatch):
    output, _ = finished
    scoring = importlib.import_module("benchmarks.corpora_scoring")

    def full(arguments, folder, name, texts, keys, log):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(scoring.benchmark_language, "score_model", full)
    report = script.main(command(novels, output, "--inference-lengths", "16", "128"))
    assert [row["context_length"] for row in report["results"]] == [16]
    [missing] = report["impossible"]
    assert missing["context_length"] == 128 and "can't allocate memory" in missing["reason"]


@pytest.mark.parametrize(
    "more, message",
    [
        (["--families", "ski_tnn"], "no causal form"),
        (["--families", "tnn", "tnn"], "--families has one twice"),
        (["--families", "lstm"], "no causal model of lstm"),
        (["--inference-lengths", "1"], "--inference-lengths is 1"),
        (["--max-bytes", "0"], "--max-bytes is 0"),
        (["--ngram", "9"], "--ngram is 9"),
        (["--data-dir", "nowhere"], "nowhere of --data-dir does not exist"),
        (["--corpus", "python-stdlib"], "leave --data-dir out"),
        (["--corpus", "enwik8-head"], "there is no file"),
        (["--corpus", "wikitext-103-head"], r"has 0 files wiki\.train"),
    ],
)
def test_what_makes_no_sense_is_refused(script, novels, tmp_path, more, message):
    with pytest.raises(SystemExit, match=message):
        script.main(command(novels, tmp_path / "out", *more))


def test_corpora_of_files_need_a_folder(script, tmp_path):
    with pytest.raises(SystemExit, match=r"give --data-dir, a folder with enwik8\.head"):
        script.main(["corpora", "--corpus", "enwik8-head", "--output-dir", str(tmp_path / "out")])


def parsed(script, *more):
    arguments = script.build_parser().parse_args(["corpora", "--corpus", "wikitext-103", "--output-dir", "out", *more])
    sys.modules["benchmark_corpora"].check(arguments)
    return arguments


def test_the_full_size_is_the_published_one(script):
    corpora = sys.modules["benchmark_corpora"]
    texts = {"train": ["x" * 1_000_000], "validation": ["x"], "test": ["x"]}
    data = sys.modules["corpora_data"].CorpusData(texts, "", "bpe:4096", "wikitext-103-0", ("--train-file", "t"))
    run = corpora.make_run(parsed(script, "--full"), "fd_tnn", 3, data)
    words = run.arguments
    assert run.labels["published_settings"] and run.updates == 50_000
    assert {"--tokenizer=gpt2", "vocab_size=50264", "--learning_rate=0.001", "--max_steps=50000"} <= set(words)
    assert "--dataset=Salesforce/wikitext:wikitext-103-raw-v1" not in words and words[-2:] == ("--seed", "3")
    # Not published: another family at that size, another length of the run, another corpus, which gets 20 passes.
    assert not corpora.make_run(parsed(script, "--full"), "ipa", 0, data).labels["published_settings"]
    short = corpora.make_run(parsed(script, "--full", "--max-steps", "100"), "tnn", 0, data)
    assert not short.labels["published_settings"] and short.updates == 100
    head = parsed(script, "--full", "--corpus", "wikitext-103-head")
    assert corpora.make_run(head, "tnn", 0, data).updates == math.ceil(20 * 250_000 / 65_536)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_families_have_equal_budgets_and_sizes(script, objective):
    corpora = sys.modules["benchmark_corpora"]
    pretrain = importlib.import_module("pretrain")
    tokenizer = ByT5Tokenizer(mask_token="<extra_id_0>")
    sizes, budgets = [], set()
    for family in corpora.FAMILIES[objective]:
        arguments = parsed(script, "--objective", objective, "--corpus", "wikitext-103-head")
        data = sys.modules["corpora_data"].CorpusData({}, "", "byte", "head", ("--train-file", "t"))
        words = [*corpora.make_run(arguments, family, 0, data).arguments, "--output-dir", "out", "--use-cpu"]
        settings = pretrain.parse_arguments(words)
        pretrain.set_length(settings)
        budgets.add((settings.training.max_steps, pretrain.tokens_per_update(settings)))
        sizes.append(pretrain.build_model(settings, pretrain.build_config(settings, tokenizer)).num_parameters())
    assert budgets == {(1000, 2048)}
    assert max(sizes) < 1.05 * min(sizes)


def test_published_figures_stand_beside_the_whole_corpus_alone(script):
    report = sys.modules["corpora_report"]
    rows = report.published_rows({"corpus": "wikitext-103", "objective": "causal"})
    assert {row["family"]: row["test"] for row in rows}["FD-TNN (published)"] == 24.56
    assert report.published_rows({"corpus": "wikitext-103-head", "objective": "causal"}) == []
    assert report.published_rows({"corpus": "wikitext-103", "objective": "masked"}) == []


def test_a_seed_without_a_score_is_in_no_mean(script):
    training = [
        {"family": "tnn", "seed": seed, "validation_perplexity": 10.0 * (seed + 1), "steps_per_second": 1.0}
        | {"num_parameters": 7, "updates": 3, "num_train_tokens": 9}
        for seed in (0, 1, 2)
    ]
    scores = [
        {"family": "tnn", "seed": seed, "context_length": 8, "perplexity": 5.0, "bits_per_byte": 2.0 + seed}
        for seed in (0, 1)
    ]
    report = {"context_length": 8, "training": training, "results": scores}
    [row] = sys.modules["corpora_report"].summarise(report)
    assert (row["num_seeds"], row["validation"], row["bits_per_byte"]) == (2, 15.0, 2.5)
    [row] = sys.modules["corpora_report"].summarise({**report, "results": []})
    assert (row["num_seeds"], row["validation"], row["bits_per_byte"]) == (3, 20.0, None)
