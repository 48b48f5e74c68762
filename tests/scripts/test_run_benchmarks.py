import importlib
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    ByT5Tokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaModel,
)

from hf_seqmix import TNNConfig, TNNForCausalLM, TNNForMaskedLM
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.text.masked_modeling import evaluate_masked_model, mask_documents
from hf_seqmix.data import ByteNGram
from hf_seqmix.training.command import interruptible
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.run import Run

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "run_benchmarks.py"
TEXT = "To be, or not to be: that is the question.\n" * 10


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("run_benchmarks")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed, name in enumerate(("a/last", "b/last")):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=384, n_positions=32, n_embd=16, n_layer=1, n_head=2, initializer_range=0.2)
        GPT2LMHeadModel(config).save_pretrained(folder / name)
        ByT5Tokenizer().save_pretrained(folder / name)
    sizes = {"vocab_size": 384, "hidden_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 16}
    TNNForCausalLM(TNNConfig(**sizes)).save_pretrained(folder / "tnn")
    TNNForMaskedLM(TNNConfig(**sizes, is_causal=False)).save_pretrained(folder / "masked-tnn")
    for name in ("tnn", "masked-tnn"):
        ByT5Tokenizer().save_pretrained(folder / name)
    return folder


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "held-out.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def arguments(checkpoints, text_file, output, *more, models=("a/last",)):
    named = [item for model in models for item in ("--model", str(checkpoints / model))]
    return ["language-modeling", *named, "--text-file", str(text_file), "--output-dir", str(output), *more]


def values(report, metric, **wanted):
    """Values of a metric that are no part of a curve, by model and context length."""
    found = [r for r in report.results if r.metric == metric and r.get("position") is None]
    found = [r for r in found if all(r.get(name) == value for name, value in wanted.items())]
    return {(r.model, r.get("context_length")): r.value for r in found}


@pytest.mark.usefixtures("pictures")
def test_scores_table_and_plots(script, checkpoints, text_file, tmp_path, capsys, monkeypatch):
    output = tmp_path / "out"
    command = arguments(
        checkpoints,
        text_file,
        output,
        "--context-lengths",
        "16",
        "8",
        "--compressors",
        models=("a/last", "b/last"),
    )
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *command])  # what results say they were made by
    report = script.main(command)

    bits = values(report, "bits_per_byte", kind="measured")
    assert list(bits) == [("a/last", 8), ("a/last", 16), ("b/last", 8), ("b/last", 16)]
    model = GPT2LMHeadModel.from_pretrained(checkpoints / "b/last")
    [expected] = evaluate_language_model(model, ByT5Tokenizer(), [TEXT], context_lengths=[8], progress=False)
    assert bits["b/last", 8] == pytest.approx(expected.bits_per_byte, rel=1e-5)
    assert values(report, "bits_per_byte", kind="baseline")["xz -9e", None] < 8
    curve = [
        r for r in report.results if (r.metric, r.model, r.get("context_length")) == ("position_nll", "b/last", 8)
    ]
    assert [r.get("position") for r in curve] == list(expected.position_start)
    assert [r.value for r in curve] == pytest.approx(expected.position_nll, rel=1e-5)

    assert read_results(output / "results.jsonl") == report.results
    first = report.results[0]
    assert f"{len(TEXT)} bytes" in first.get("data") and first.command.startswith("python scripts/run_benchmarks.py")
    assert first.environment["versions"]["torch"] and first.environment["device"] == "cpu" and first.seed == 0
    table = capsys.readouterr().out
    assert "| b/last    |      16 |" in table and "| (gzip -9) |       - |" in table
    assert (output / "results.md").read_text(encoding="utf-8").strip() == table.strip()
    for name in ("context-lengths.png", "positions.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")


def test_continues_where_it_stopped(script, checkpoints, text_file, tmp_path, monkeypatch):
    scored = []
    benchmark = importlib.import_module("benchmarks.causal_scoring")
    original = benchmark.iter_language_model_scores

    def counting(*args, **kwargs):
        scored.append(kwargs["context_lengths"])
        return original(*args, **kwargs)

    monkeypatch.setattr(benchmark, "iter_language_model_scores", counting)
    output = tmp_path / "out"
    first = script.main(arguments(checkpoints, text_file, output, "--context-lengths", "4"))
    both = script.main(arguments(checkpoints, text_file, output, "--context-lengths", "4", "8"))
    assert scored == [[4], [8]]
    assert both.results[0] == first.results[0]

    script.main(arguments(checkpoints, text_file, output, "--context-lengths", "4", "--overwrite"))
    script.main(arguments(checkpoints, text_file, output, "--context-lengths", "4", "--stride", "2"))
    assert scored[2:] == [[4], [4]]
    text_file.write_text(TEXT + "more")
    script.main(arguments(checkpoints, text_file, output, "--context-lengths", "4"))
    assert len(scored) == 5
    later = time.time() + 10
    os.utime(checkpoints / "a/last" / "model.safetensors", (later, later))  # as if it had been trained again
    script.main(arguments(checkpoints, text_file, output, "--context-lengths", "4"))
    assert len(scored) == 6


@pytest.fixture
def split_folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.txt").write_text("to be or not\n" * 20)
    (folder / "test.txt").write_text(TEXT, encoding="utf-8")
    return folder


def test_ngram_of_the_training_split_beside_the_models(script, checkpoints, split_folder, tmp_path):
    command = ["language-modeling", "--model", str(checkpoints / "a/last"), "--context-lengths", "8", "--ngram", "3"]
    report = script.main([*command, "--dataset", str(split_folder), "--output-dir", str(tmp_path / "out")])
    expected = ByteNGram(3).fit(["to be or not\n" * 20]).bits_per_byte([TEXT])
    assert values(report, "bits_per_byte", kind="baseline") == {("byte 3-gram", None): pytest.approx(expected)}
    assert "byte 3-gram" in (tmp_path / "out" / "results.md").read_text()
    held_out = ["--text-file", str(split_folder / "test.txt"), "--output-dir", str(tmp_path / "other")]
    with pytest.raises(SystemExit, match="needs training text"):
        script.main([*command, *held_out])
    with pytest.raises(SystemExit, match="order of 1 to 7"):
        script.main([*command, "--ngram", "9", *held_out])


def test_masked_models_and_what_they_have_to_beat(script, checkpoints, split_folder, tmp_path, capsys):
    command = ["masked-language-modeling", "--model", str(checkpoints / "masked-tnn"), "--dataset", str(split_folder)]
    command += ["--context-length", "16", "--output-dir", str(tmp_path / "out")]
    tokenizer = ByT5Tokenizer(mask_token="<extra_id_0>")
    tokenizer.save_pretrained(checkpoints / "masked-tnn")
    report = script.main([*command, "--ngram", "2", "--dtype", "float32"])

    blocks = mask_documents(tokenizer, [TEXT], context_length=16)
    model = TNNForMaskedLM.from_pretrained(checkpoints / "masked-tnn")
    expected = evaluate_masked_model(model, tokenizer, blocks, context_length=16, progress=False)
    assert values(report, "nll") == {("masked-tnn", 16): pytest.approx(expected.nll, rel=1e-5)}
    assert {r.get("gaps") for r in report.results} == {expected.num_masked}
    baselines = dict.fromkeys(r.model for r in report.results if r.kind == "baseline")
    assert list(baselines) == ["byte 2-gram, bytes before", "always 'o'"]
    assert "always 'o'" in capsys.readouterr().out

    again = script.main([*command, "--ngram", "2", "--dtype", "float32"])
    assert again.results == report.results  # the time it took included: nothing was scored again
    with pytest.raises(SystemExit, match="must be between 0 and 1"):
        script.main([*command, "--share", "1.5"])


def test_causal_model_is_no_masked_model(script, checkpoints, split_folder, tmp_path):
    command = ["masked-language-modeling", "--model", str(checkpoints / "tnn"), "--dataset", str(split_folder)]
    with pytest.raises(SystemExit, match="not evaluated completely"):
        script.main([*command, "--output-dir", str(tmp_path / "out")])
    assert re.search("Not evaluated: tnn: .*is_causal", (tmp_path / "out" / "results.md").read_text())


def test_length_that_a_model_cannot_take_does_not_lose_the_others(script, checkpoints, text_file, tmp_path):
    output = tmp_path / "out"
    command = arguments(checkpoints, text_file, output, "--context-lengths", "64", "8", models=("a/last", "b/last"))
    with pytest.raises(SystemExit, match="not evaluated completely: a/last, b/last"):
        script.main(command)
    saved = script.Report(read_results(output / "results.jsonl"))
    assert list(values(saved, "nll")) == [("a/last", 8), ("b/last", 8)]
    assert re.search("Not evaluated: a/last: .*max_position_embeddings = 32", (output / "results.md").read_text())


def test_masked_model_without_so_many_positions_does_not_lose_the_others(script, checkpoints, split_folder, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=384, max_position_embeddings=16, **sizes)).save_pretrained(tmp_path / "bert")
    ByT5Tokenizer(mask_token="<extra_id_0>").save_pretrained(tmp_path / "bert")
    command = ["masked-language-modeling", "--model", str(tmp_path / "bert"), "--dataset", str(split_folder)]
    with pytest.raises(SystemExit, match="not evaluated completely: bert"):
        script.main([*command, "--context-length", "32", "--output-dir", str(tmp_path / "out")])
    assert re.search("bert: .*max_position_embeddings = 16", (tmp_path / "out" / "results.md").read_text())


def test_heads_without_weights_are_not_scored(script, checkpoints, text_file, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaModel(LlamaConfig(vocab_size=384, **sizes)).save_pretrained(tmp_path / "headless")
    ByT5Tokenizer().save_pretrained(tmp_path / "headless")
    with pytest.raises(SystemExit, match="not evaluated completely: headless"):
        script.main(arguments(tmp_path, text_file, tmp_path / "out", models=("headless",)))
    report = (tmp_path / "out" / "results.md").read_text()
    assert re.search("headless has no weights of lm_head.weight, which would be random numbers", report)


def test_perplexities_beyond_all_numbers_leave_a_table(script, checkpoints, text_file, tmp_path):
    model = GPT2LMHeadModel.from_pretrained(checkpoints / "a" / "last")
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(1e5)
    model.save_pretrained(tmp_path / "wild")
    ByT5Tokenizer().save_pretrained(tmp_path / "wild")
    script.main(arguments(tmp_path, text_file, tmp_path / "out", "--context-lengths", "8", models=("wild",)))
    assert "wild" in (tmp_path / "out" / "results.md").read_text()


def test_toeplitz_model_beyond_its_configured_length(script, checkpoints, text_file, tmp_path):
    command = arguments(checkpoints, text_file, tmp_path / "out", "--context-lengths", "8", "64", models=("tnn",))
    report = script.main(command)
    assert list(values(report, "nll")) == [("tnn", 8), ("tnn", 64)]
    assert max(r.get("position") for r in report.results if r.metric == "position_nll") == 32


def test_masked_toeplitz_model_is_refused(script, checkpoints, text_file, tmp_path):
    with pytest.raises(SystemExit, match="not evaluated completely"):
        script.main(arguments(checkpoints, text_file, tmp_path / "out", models=("masked-tnn",)))
    assert re.search("Not evaluated: masked-tnn: .*is_causal", (tmp_path / "out" / "results.md").read_text())


def test_masked_model_is_refused(script, checkpoints, text_file, tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=384,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.5,
    )
    BertLMHeadModel(config).save_pretrained(tmp_path / "bert")
    ByT5Tokenizer().save_pretrained(tmp_path / "bert")
    with pytest.raises(SystemExit, match="not evaluated completely"):
        script.main(arguments(tmp_path, text_file, tmp_path / "out", "--context-lengths", "8", models=("bert",)))
    assert read_results(tmp_path / "out" / "results.jsonl") == []
    assert "not a causal language model" in (tmp_path / "out" / "results.md").read_text()


def test_context_length_reaches_models_that_have_it(script, checkpoints, text_file, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(GPT2LMHeadModel, "set_context_length", lambda self, n: asked.append(n), raising=False)
    command = arguments(checkpoints, text_file, tmp_path / "out", "--context-lengths", "8", "--context-length", "24")
    script.main(command)
    assert asked == [24]


def test_data_set_folder_split_and_joined_lines(script, checkpoints, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.txt").write_text("never scored\n")
    (folder / "test.txt").write_text("one é\n\ntwo\n", encoding="utf-8")
    options = ["--context-lengths", "8", "--sample-by", "line"]
    model = ["--model", str(checkpoints / "a/last")]
    source = ["language-modeling", *model, "--dataset", str(folder), *options]
    apart = script.main([*source, "--output-dir", str(tmp_path / "apart")])
    assert apart.results[0].get("data") == "DATA/data: 9 bytes in 2 documents"  # without this machine's folders
    joined = script.main([*source, "--join-with", "\\n", "--output-dir", str(tmp_path / "joined")])
    assert joined.results[0].get("data").endswith(": 10 bytes in 1 document")
    cut = script.main([*source, "--max-bytes", "5", "--output-dir", str(tmp_path / "cut")])
    assert cut.results[0].get("data").endswith(": 4 bytes in 1 document")  # half a character is left out


@pytest.mark.parametrize(
    "content, message",
    [(b"", "empty"), (b"\xff\xfe\xff", "UTF-8"), (None, "held-out.txt")],
    ids=["empty", "not UTF-8", "missing"],
)
def test_bad_text_file(script, checkpoints, text_file, tmp_path, content, message):
    text_file.unlink()
    if content is not None:
        text_file.write_bytes(content)
    with pytest.raises(SystemExit, match=message):
        script.main(arguments(checkpoints, text_file, tmp_path / "out"))


@pytest.mark.parametrize("model", ["a/last", "tnn"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer_config.json"])
def test_a_file_cut_short_is_named(script, checkpoints, text_file, tmp_path, model, name):
    shutil.copytree(checkpoints / model, tmp_path / "cut")
    os.truncate(tmp_path / "cut" / name, 100)
    with pytest.raises(SystemExit, match="not evaluated completely"):
        script.main(arguments(tmp_path, text_file, tmp_path / "out", models=("cut",)))
    assert re.search(f"Not evaluated: cut: .*{name}", (tmp_path / "out" / "results.md").read_text())


def test_bad_arguments(script, checkpoints, text_file, tmp_path, capsys):
    with pytest.raises(SystemExit, match="given twice"):
        script.main(arguments(checkpoints, text_file, tmp_path / "out", models=("a/last", "a/last")))
    with pytest.raises(SystemExit, match="must be positive; given 0"):
        script.main(arguments(checkpoints, text_file, tmp_path / "out", "--context-lengths", "0", "4"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="is a file"):
        script.main(arguments(checkpoints, text_file, text_file))
    with pytest.raises(SystemExit, match="not evaluated completely"):
        script.main(arguments(checkpoints, text_file, tmp_path / "out", models=("missing",)))
    with pytest.raises(SystemExit):
        script.main(["language-modeling", "--output-dir", str(tmp_path / "out")])
    assert "--model" in capsys.readouterr().err
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.txt").write_text("only training text")
    command = ["language-modeling", "--model", str(checkpoints / "a/last"), "--dataset", str(folder)]
    with pytest.raises(SystemExit, match="neither test nor validation"):
        script.main([*command, "--output-dir", str(tmp_path / "out")])


def test_sigterm_ends_the_training_process_too(script, tmp_path):
    jobs = importlib.import_module("benchmarks.jobs")
    child = tmp_path / "child.py"
    child.write_text(
        "import os, pathlib, signal, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="130"), interruptible("stopped"):
        jobs.train(jobs.Job("run", str(child), Run("any")), tmp_path / "run")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupted_benchmark_says_so_in_one_line(
    script, checkpoints, text_file, tmp_path, monkeypatch, caplog, capsys
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("benchmarks.language_modeling.causal_lm"), "score_model", interrupted)
    with pytest.raises(SystemExit) as error:
        script.main(arguments(checkpoints, text_file, tmp_path / "out", "--context-lengths", "16"))
    assert error.value.code == 130
    assert "the same command continues" in caplog.messages[-1] and "Traceback" not in capsys.readouterr().err
