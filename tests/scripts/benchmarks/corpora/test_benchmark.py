"""The benchmark of corpora: trained, scored at several lengths, resumed, and refused where it makes no sense."""

import argparse
import importlib
import itertools
import json
import math
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, ByT5Tokenizer

from hf_seqmix import FDTNNConfig, FDTNNForCausalLM, FDTNNForMaskedLM
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.text.masked_modeling import evaluate_masked_model, mask_documents, ngram_bits_per_byte
from hf_seqmix.data import ByteNGram
from hf_seqmix.training.result_files import ResultFile, read_results
from hf_seqmix.training.results import group_results
from hf_seqmix.training.run import Run
from hf_seqmix.training.tables import results_table

pytestmark = pytest.mark.xdist_group("corpora")  # one run serves several tests
SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"
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
    return [
        *("corpora", "--fast", "--corpus", "gutenberg", "--data-dir", str(novels), "--families", "tnn"),
        *("--tokenizer", "byte", "--context-length", "16", "--max-steps", "2"),
        *("--inference-lengths", "16", "32", "1024", "--ngram", "2", "--device", "cpu"),
        *("--config-overrides", "hidden_size=8", "rpe_hidden_size=4", "num_hidden_layers=1"),
        *("--training", "use_cpu=true", "disable_tqdm=true", "--output-dir", str(output), *more),
    ]


def values(results, metric, **wanted):
    """Values of a metric that are no part of a curve, by what is scored at."""
    chosen = [r for r in results if r.metric == metric and r.get("position") is None and r.get("step") is None]
    chosen = [r for r in chosen if all(r.get(name) == value for name, value in {"kind": "measured", **wanted}.items())]
    return {r.get("context_length"): r.value for r in chosen}


@pytest.fixture(scope="module")
def finished(script, novels, tmp_path_factory):
    """One tiny run, in this process: starting another takes longer than its training."""
    output, pretrain = tmp_path_factory.mktemp("corpora") / "out", importlib.import_module("pretrain")

    def here(words, **_):
        pretrain.main(words[2:])
        return subprocess.CompletedProcess(words, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", here)
        return output, script.main(command(novels, output))


def test_trained_and_scored_at_each_length(script, novels, finished, tmp_path, capsys):
    output, report = finished
    test = (novels / "c.txt").read_text(encoding="utf-8").split("***")[2].strip()
    data = report.results[0].get("data")
    assert data.startswith("gutenberg: novels") and f"{len(test.encode())} of {len(test.encode())} test bytes" in data
    assert (output / "data").is_dir() and "EBOOK" not in next(output.glob("data/*/train.jsonl")).read_text()

    assert values(report.results, "updates") == {None: 2}
    assert values(report.results, "num_train_tokens", model="tnn") == {None: 2 * 4 * 16}
    [folder] = output.glob("runs/gutenberg-*/causal/tnn/seed-0-*")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.hidden_size == 8 and model.config.max_position_embeddings == 16
    expected = evaluate_language_model(model, ByT5Tokenizer(), [test], context_lengths=[16, 32], progress=False)
    bits, perplexity, nll = (values(report.results, metric) for metric in ("bits_per_byte", "perplexity", "nll"))
    assert bits == {score.context_length: pytest.approx(score.bits_per_byte, rel=1e-5) for score in expected}
    for length, value in perplexity.items():
        assert value == pytest.approx(math.exp(nll[length] / len(test.encode())), rel=1e-6)

    table = (output / "results.md").read_text(encoding="utf-8")
    assert "Not possible: tnn, seed 0, 1,024 tokens: no document" in table
    assert re.search(r"Trained in (float32|bfloat16)\.", table)
    assert "(xz -9e)" in table and "(byte 2-gram)" in table and "published" not in table
    assert (output / "perplexity-against-length.png").read_bytes().startswith(b"\x89PNG")
    assert read_results(output / "results.jsonl") == report.results
    run = report.results[0].run
    assert run.training["max_steps"] == 2 and run.model["config_overrides"]["hidden_size"] == 8
    assert run.data["train_file"][0].startswith("OUTPUT/data/gutenberg")
    assert all(found.run.training == run.training for found in report.results if found.kind == "measured")


def test_nothing_is_computed_twice(script, novels, finished, tmp_path, monkeypatch):
    output, report = finished
    copy = tmp_path / "out"
    shutil.copytree(output, copy)

    def refuse(*arguments, **options):
        raise AssertionError("trained or scored again")

    monkeypatch.setattr(subprocess, "run", refuse)
    scoring = importlib.import_module("benchmarks.corpora.scoring")
    lengths = []
    original = scoring.causal_scoring.score_model
    monkeypatch.setattr(scoring.causal_scoring, "score_model", refuse)
    assert script.main(command(novels, output)).results == report.results

    def counted(arguments, folder, texts, keys, log, shared):
        lengths.extend(keys)
        original(arguments, folder, texts, keys, log, shared)

    # One more length is all that a second command adds; the text cut shorter is another text.
    monkeypatch.setattr(scoring.causal_scoring, "score_model", counted)
    script.main(command(novels, output, "--inference-lengths", "16", "64"))
    assert lengths == [64]
    script.main(command(novels, output, "--inference-lengths", "16", "--max-bytes", "100"))
    assert lengths == [64, 16]


def test_all_that_is_reported_has_the_title_of_this_command(script, novels, finished, tmp_path):
    output, _ = finished
    copy = tmp_path / "out"
    shutil.copytree(output, copy)
    first = script.main(command(novels, copy)).results
    [title] = {result.setting["data"] for result in first}
    # As of an earlier command: the n-gram is the same at every length of training.
    log = (copy / "runs.jsonl").read_text(encoding="utf-8")
    (copy / "runs.jsonl").write_text(log.replace(title, "an earlier title"), encoding="utf-8")
    assert script.main(command(novels, copy)).results == first


def test_an_ngram_is_counted_anew_where_asked_for_and_by_another_version(tmp_path, monkeypatch):
    scoring = importlib.import_module("benchmarks.corpora.scoring")
    counted = []

    class Counting(scoring.ByteNGram):
        def fit(self, texts):
            counted.append(len(texts))
            return super().fit(texts)

    monkeypatch.setattr(scoring, "ByteNGram", Counting)
    log = scoring.ResultFile(tmp_path / "log.jsonl")

    def references(overwrite=False):
        settings = argparse.Namespace(benchmark="corpora", objective="causal", ngram=2, overwrite=overwrite)
        return scoring.references(settings, [], ["a text"], ["a text"], log, {"task": "corpora"})

    first = references()
    assert references() == first and len(counted) == 1
    assert references(overwrite=True) == first and len(counted) == 2
    monkeypatch.setattr(scoring, "__version__", "0.0")
    assert references() == first and len(counted) == 3


def test_another_tokenizer_of_the_same_name_is_another_run(script, tmp_path):
    corpora = importlib.import_module("benchmarks.corpora.benchmark")
    folder = tmp_path / "tokenizer"
    keys = []
    for token in ("<extra_id_0>", "<extra_id_1>", "<extra_id_1>"):
        ByT5Tokenizer(mask_token=token).save_pretrained(folder)
        arguments = parsed(script, "--corpus", "wikitext-103-head", "--tokenizer", str(folder))
        data = importlib.import_module("benchmarks.corpora.data").CorpusData({}, "", "bpe:4096", "head", {})
        job = corpora.make_job(arguments, "tnn", 0, data, SHARED)
        keys.append((job.key("corpora", tmp_path), job.folder(tmp_path)))
    assert keys[0] != keys[1] == keys[2]


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
        scoring = importlib.import_module("benchmarks.corpora.scoring")
        run = Run("language modeling", {"model_type": "fd_tnn"}, {}, {}, 0)
        models = [scoring.TrainedModel("fd_tnn", 0, tmp_path / objective, run)]
        shared = {"task": "language modeling", "size": "fast", "setting": {"data": "text"}, "environment": {}}
        report = scoring.score_lengths(arguments, models, texts, log, shared)
        assert report.failures == {}
        references = scoring.references(arguments, models, ["to be or not"], texts, log, shared)
        return report.results, {result.model: result.value for result in references}

    return tmp_path, tokenizer, score


TEXT = "To be, or not to be: that is the question.\n" * 3


def test_frequency_kernels_follow_the_inference_length_unless_kept(fd_models, tmp_path):
    folder, tokenizer, score = fd_models
    log = ResultFile(tmp_path / "log.jsonl")
    rows, references = score("causal", [TEXT], log)
    kept, _ = score("causal", [TEXT], log, keep_grid=True)
    model = AutoModelForCausalLM.from_pretrained(folder / "causal")
    options = {"context_lengths": [8, 32], "progress": False}
    short, zeros = evaluate_language_model(model, tokenizer, [TEXT], **options)
    model.set_context_length(32)
    _, finer = evaluate_language_model(model, tokenizer, [TEXT], **options)
    assert values(rows, "nll") == pytest.approx({8: short.nll, 32: finer.nll}, rel=1e-6)
    assert values(kept, "nll") == pytest.approx({8: short.nll, 32: zeros.nll}, rel=1e-6)
    assert abs(finer.nll - zeros.nll) > 1e-3
    assert references["byte 2-gram"] == pytest.approx(ByteNGram(2).fit(["to be or not"]).bits_per_byte([TEXT]))


def test_masked_models_fill_the_same_gaps_at_every_length(fd_models, tmp_path):
    folder, tokenizer, score = fd_models
    log = ResultFile(tmp_path / "log.jsonl")
    rows, references = score("masked", [TEXT], log)
    again, same = score("masked", [TEXT], log)
    assert (again, same) == (rows, references)
    masked, nll = values(rows, "num_masked"), values(rows, "nll")
    assert masked[8] == masked[32] and nll[8] != nll[32]
    blocks = mask_documents(tokenizer, [TEXT], context_length=32)
    model = AutoModelForMaskedLM.from_pretrained(folder / "masked")
    model.set_context_length(32)
    expected = evaluate_masked_model(model, tokenizer, blocks, context_length=32, progress=False)
    assert nll[32] == pytest.approx(expected.nll, rel=1e-6)
    assert values(rows, "perplexity")[32] == pytest.approx(math.exp(expected.token_loss), rel=1e-6)
    ngram = ByteNGram(2).fit(["to be or not"])
    assert references == {"byte 2-gram, bytes before": pytest.approx(ngram_bits_per_byte(ngram, [TEXT], blocks))}


def test_a_length_that_memory_refuses_is_said(script, novels, finished, monkeypatch):
    output, _ = finished
    scoring = importlib.import_module("benchmarks.corpora.scoring")

    def full(arguments, folder, texts, keys, log, shared):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(scoring.causal_scoring, "score_model", full)
    report = script.main(command(novels, output, "--inference-lengths", "16", "128"))
    assert list(values(report.results, "nll")) == [16]
    table = (output / "results.md").read_text(encoding="utf-8")
    assert re.search("Not possible: tnn, seed 0, 128 tokens: .*can't allocate memory", table)


@pytest.mark.parametrize(
    "more, message",
    [
        (["--families", "ski_tnn"], "no causal form"),
        (["--families", "tnn", "tnn"], "--families names tnn twice"),
        (["--families", "lstm"], "no causal model of lstm"),
        (["--inference-lengths", "1"], "--inference-lengths is 1"),
        (["--max-bytes", "0"], "--max-bytes is 0"),
        (["--ngram", "9"], "--ngram is 9"),
        (["--keep-grid"], "--keep-grid has no effect without fd_tnn among --families: leave it out"),
        (["--data-dir", "nowhere"], "nowhere of --data-dir does not exist"),
        (["--corpus", "python-stdlib"], "leave --data-dir out"),
        (["--corpus", "enwik8-head"], "there is no file"),
        (["--corpus", "wikitext-103-head"], r"has 0 files wiki\.train"),
        (["--training", "rate=1"], "causal/tnn/seed-0: .*rate"),
    ],
)
def test_what_makes_no_sense_is_refused(script, novels, tmp_path, more, message):
    with pytest.raises(SystemExit, match=message):
        script.main(command(novels, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_corpora_of_files_need_a_folder(script, tmp_path):
    with pytest.raises(SystemExit, match=r"give --data-dir, a folder with enwik8\.head"):
        script.main(["corpora", "--corpus", "enwik8-head", "--output-dir", str(tmp_path / "out")])


def parsed(script, *more):
    arguments = script.build_parser().parse_args(["corpora", "--corpus", "wikitext-103", "--output-dir", "out", *more])
    importlib.import_module("benchmarks.corpora.benchmark").check(arguments)
    return arguments


SHARED = {"task": "language modeling", "size": "full", "setting": {"data": "text"}}


def test_the_full_size_is_the_published_one(script):
    corpora = importlib.import_module("benchmarks.corpora.benchmark")
    texts = {"train": ["x" * 1_000_000], "validation": ["x"], "test": ["x"]}
    corpus_data = importlib.import_module("benchmarks.corpora.data").CorpusData
    data = corpus_data(texts, "", "bpe:4096", "wikitext-103-0", {"train_file": ["t"]})
    job = corpora.make_job(parsed(script, "--full"), "fd_tnn", 3, data, SHARED)
    run, setting = job.run, job.labels["setting"]
    assert setting["published_settings"] and job.updates == 50_000 and run.seed == 3
    assert (run.data["tokenizer"], run.model["config_overrides"]["vocab_size"]) == ("gpt2", 50264)
    assert (run.training["learning_rate"], run.training["max_steps"]) == (0.001, 50_000)
    assert "dataset" not in run.data and run.data["train_file"] == ["t"]
    # Not published: another family at that size, another length of the run, another corpus, which gets 20 passes.
    other = corpora.make_job(parsed(script, "--full"), "ipa", 0, data, SHARED)
    assert not other.labels["setting"]["published_settings"]
    short = corpora.make_job(parsed(script, "--full", "--max-steps", "100"), "tnn", 0, data, SHARED)
    assert not short.labels["setting"]["published_settings"] and short.updates == 100
    for changed in (
        ["--tokenizer", "byte"],
        ["--context-length", "64"],
        ["--config-overrides", "hidden_size=64"],
        ["--training", "learning_rate=1"],
    ):
        other = corpora.make_job(parsed(script, "--full", *changed), "tnn", 0, data, SHARED)
        assert not other.labels["setting"]["published_settings"], changed
    free = corpora.make_job(parsed(script, "--full", "--training", "use_cpu=true"), "tnn", 0, data, SHARED)
    assert free.labels["setting"]["published_settings"]
    fast = corpora.make_job(parsed(script, "--fast", "--max-seconds", "5"), "tnn", 0, data, SHARED).run.training
    assert fast["max_seconds"] == 5 and "max_steps" not in fast
    timed = corpora.make_job(parsed(script, "--full", "--max-seconds", "60"), "tnn", 0, data, SHARED)
    assert not timed.labels["setting"]["published_settings"] and timed.updates is None
    assert timed.run.training["max_seconds"] == 60 and "max_steps" not in timed.run.training
    head = parsed(script, "--full", "--corpus", "wikitext-103-head")
    assert corpora.make_job(head, "tnn", 0, data, SHARED).updates == math.ceil(20 * 250_000 / 65_536)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_every_family_of_the_full_size_has_a_recipe(script, objective):
    corpora = importlib.import_module("benchmarks.corpora.benchmark")
    arguments = parsed(script, "--full", "--objective", objective)
    data = importlib.import_module("benchmarks.corpora.data").CorpusData({}, "", "bpe:9", "w", {"train_file": ["t"]})
    jobs = [corpora.make_job(arguments, family, 0, data, SHARED) for family in arguments.families]
    assert len(jobs) >= 5 and {job.updates for job in jobs} == {50_000}
    with pytest.raises(ValueError, match="no causal model of llama at the published size"):
        parsed(script, "--full", "--families", "llama")


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_families_have_equal_budgets_and_sizes(script, objective, tmp_path):
    corpora = importlib.import_module("benchmarks.corpora.benchmark")
    pretrain = importlib.import_module("pretrain")
    tokenizer = ByT5Tokenizer(mask_token="<extra_id_0>")
    corpus_data = importlib.import_module("benchmarks.corpora.data").CorpusData
    sizes, budgets = [], set()
    for family in corpora.FAMILIES[objective]:
        arguments = parsed(script, "--objective", objective, "--corpus", "wikitext-103-head")
        data = corpus_data({}, "", "byte", "head", {"train_file": ["t"]})
        run = corpora.make_job(arguments, family, 0, data, SHARED).run
        (tmp_path / "run.json").write_text(json.dumps(run.to_json()))
        words = ["--recipe", str(tmp_path / "run.json"), "--output-dir", "out", "--use-cpu"]
        settings = pretrain.parse_arguments(words)
        pretrain.set_length(settings)
        budgets.add((settings.run.max_seconds, settings.training.max_steps, pretrain.tokens_per_update(settings)))
        sizes.append(pretrain.build_model(settings, pretrain.build_config(settings, tokenizer)).num_parameters())
    assert budgets == {(1200, -1, 2048)}
    assert max(sizes) < 1.05 * min(sizes)


@pytest.mark.parametrize("size", [["--fast"], [], ["--full"]])
def test_every_model_has_a_valid_configuration(script, size):
    corpora = importlib.import_module("benchmarks.corpora.benchmark")
    texts = {"train": ["x" * 1_000_000], "validation": ["x"], "test": ["x"]}
    for corpus, objective in itertools.product(("enwik8", "wikitext-103"), ("causal", "masked")):
        arguments = parsed(script, *size, "--corpus", corpus, "--objective", objective)
        data = importlib.import_module("benchmarks.corpora.data").CorpusData(texts, "", "byte", "t", {})
        for family in arguments.families:
            model = corpora.make_job(arguments, family, 0, data, SHARED).run.model
            config = AutoConfig.for_model(model["model_type"], **model["config_overrides"])
            mixers = getattr(config, "mixer_types", [])
            assert set(mixers) == set(model["config_overrides"].get("mixer_types", mixers))


def test_published_figures_stand_beside_the_whole_corpus_alone(script):
    report = importlib.import_module("benchmarks.corpora.report")
    found = {(r.model, r.metric): r for r in report.published("wikitext-103", "causal")}
    assert found["FD-TNN", "perplexity"].value == 24.56 and found["FD-TNN", "perplexity"].kind == "published"
    assert "| FD-TNN (published)" in results_table(found.values(), columns=report.SUMMARY)
    assert report.published("wikitext-103-head", "causal") == report.published("wikitext-103", "masked") == []


def test_a_seed_without_a_score_is_in_no_mean(script):
    report = importlib.import_module("benchmarks.corpora.report")
    training, scores = [], []
    for seed in (0, 1, 2):
        shared = {"task": "language modeling", "model": "tnn", "seed": seed}
        training += group_results({"validation_perplexity": 10.0 * (seed + 1)}, **shared)
        scores += group_results({"bits_per_byte": 2.0 + seed}, setting={"context_length": 8}, **shared)
    table = results_table(report.summary([*training, *scores[:2]], 8), report.FAMILY, report.SUMMARY)
    cells = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
    assert "15" in cells and "2.5000" in cells and cells[-1] == "2"
    table = results_table(report.summary(training, 8), report.FAMILY, report.SUMMARY)
    cells = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
    assert "20" in cells and "-" in cells and cells[-1] == "3"
