"""Runs of pretrain.py: what they write, their lengths, optimizers, precision and models."""

import json
import math
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers.normalizers import Lowercase
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hf_seqmix.analysis.text.language_modeling import refuse_future
from hf_seqmix.data import build_tokenizer
from tests.scripts.pretraining.inputs import QUIET, SHORT, TINY, command, losses


def test_bf16_auto_is_settled_once_a_run(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A resumed run keeps the choice in its folder, whatever is faster then; a new run decides anew."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("training: {bf16: auto, max_steps: 2, save_steps: 1}", encoding="utf-8")
    folder = tmp_path / "run"
    begun = pretrain.main(command(text, folder, "--recipe", str(recipe)))
    written = json.loads((folder / "precision.json").read_text(encoding="utf-8"))
    assert written == begun["precision"] and written["speedup"] > 0
    assert begun["arguments"]["training"]["bf16"] is (written["dtype"] == "bfloat16")
    assert [line for line in caplog.messages if written["reason"] in line] == [
        f"--bf16 auto: {written['dtype']} ({written['reason']})"
    ]
    other = {"float32": "bfloat16", "bfloat16": "float32"}[written["dtype"]]
    (folder / "precision.json").write_text(json.dumps({**written, "dtype": other}), encoding="utf-8")
    resumed = pretrain.main(command(text, folder, "--recipe", str(recipe), "--max-steps", "3", "--resume"))
    assert resumed["precision"]["dtype"] == other
    assert resumed["arguments"]["training"]["bf16"] is (other == "bfloat16")
    assert f"--bf16 auto: {other} (kept from the beginning of the run)" in caplog.messages
    given = pretrain.main(command(text, folder, "--bf16", "--max-steps", "1", "--overwrite-output-dir"))
    assert given["precision"] is None and given["arguments"]["training"]["bf16"] is True
    assert not (folder / "precision.json").exists()


def test_the_rate_for_fine_tuning_is_named_where_weights_are_random(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = command(text, tmp_path / "run", "--max-steps", "1")
    pretrain.main(begun)
    assert "fine-tuning" not in caplog.text
    at = begun.index("--learning-rate")
    without_rate = begun[:at] + begun[at + 2 :]
    further = [*without_rate[len(TINY) :], "--model", str(tmp_path / "run"), "--output-dir", str(tmp_path / "further")]
    further = [word for word in further if word not in ("--tokenizer", "byte")]
    pretrain.main(further)
    assert "fine-tuning" not in caplog.text
    pretrain.main([*without_rate, "--overwrite-output-dir"])
    assert [line for line in caplog.messages if "fine-tuning" in line] == [
        "--learning-rate is 5e-05, the default, which is for fine-tuning: random weights hardly learn by "
        "it. Give --optim muon --learning-rate 4e-3, as the recipes do."
    ]


def test_networks_of_kernels_that_have_died_are_named(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead layer of ReLUs stays dead; the model that lives is not warned of."""
    begun = command(text, tmp_path / "run", "--max-steps", "1")
    pretrain.main(begun)
    assert "no longer depend on the lag" not in caplog.text
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    encoder = model.model.layers[0].mixer.operator.kernel.encoder
    with torch.no_grad():
        encoder.layers[0].bias.fill_(-100.0)
    model.save_pretrained(tmp_path / "run")
    further = [*begun[len(TINY) :], "--model", str(tmp_path / "run"), "--output-dir", str(tmp_path / "further")]
    pretrain.main([word for word in further if word not in ("--tokenizer", "byte")])
    assert [line for line in caplog.messages if "no longer depend on the lag" in line] == [
        "Networks of kernels no longer depend on the lag: model.layers.0.mixer.operator.kernel.encoder. These layers "
        "mix by their decay alone. Train with rpe_activation=silu, or with a lower --kernel-learning-rate."
    ]


def test_a_run_that_diverges_stops_or_goes_back(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """A rate of 1e30: the good model of an earlier run stays, unless the rate comes down."""
    folder = tmp_path / "run"
    pretrain.main(command(text, folder, "--max-steps", "2"))
    good = (folder / "model.safetensors").read_bytes()
    again = command(text, folder, "--max-steps", "4", "--optim", "sgd", "--overwrite-output-dir")
    again += ["--learning-rate", "1e30", "--lr-scheduler-type", "constant"]
    with pytest.raises(SystemExit) as stopped:
        pretrain.main(again)
    assert str(stopped.value).startswith(
        "pretrain.py: the run diverged at update 2: the training loss is nan (loss nan"
    )
    assert (folder / "model.safetensors").read_bytes() == good and not (folder / "results.json").exists()
    with pytest.raises(SystemExit, match=r"--back-off-factor is 2\.0; it must lie between 0 and 1"):
        pretrain.main([*again, "--back-off-factor", "2"])
    results = pretrain.main([*again, "--on-divergence", "back-off", "--back-off-factor", "1e-32"])
    assert [(entry["step"], entry["back_to"], entry["loss"]) for entry in results["back_offs"]] == [(2, 0, None)]
    assert len(losses(results)) == 4 and all(map(math.isfinite, losses(results)))
    assert (folder / "model.safetensors").read_bytes() != good


@pytest.mark.usefixtures("pictures")
def test_a_causal_run_writes_all_it_promises(
    pretrain: ModuleType, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    results = pretrain.main(command(text, folder, "--max-steps", "4", "--tokenizer", "bpe:270"))
    written = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert written["train_loss_curve"] == results["train_loss_curve"]
    assert [step for step, _ in written["train_loss_curve"]] == [1, 2, 3, 4]
    assert losses(written)[-1] < losses(written)[0]
    assert written["num_train_tokens"] == 4 * 2 * 16
    assert written["tokens_per_second"] > 0
    assert written["seed"] == 42
    assert {"torch", "transformers", "hf-seqmix"} <= written["environment"]["versions"].keys()
    assert written["arguments"]["data"]["tokenizer"] == "bpe:270"
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    names = ("token_loss", "perplexity", "bits_per_byte")
    said = ", ".join(f"{name} {written['evaluation'][name]:.4f}" for name in names)
    assert f"{said}; model, results.json and loss.png are in {folder}\n" in capsys.readouterr().out

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "TNNForCausalLM"
    assert model.num_parameters() == written["num_parameters"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == 16
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_bits_per_byte_of_the_saved_model(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    evaluations = ["--validation-file", str(text), "--eval-strategy", "steps", "--eval-steps", "1"]
    results = pretrain.main(command(text, tmp_path / "run", "--max-steps", "2", *evaluations))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    texts = [json.loads(line)["text"] for line in text.read_text(encoding="utf-8").splitlines()]
    stream = [token for line in texts for token in (1, *(byte + 3 for byte in line.encode("utf-8")))]
    nll = 0.0
    for start in range(0, len(stream) - 1, 15):
        ids = torch.tensor([stream[start : start + 16]])
        nll += len(ids[0, 1:]) * model(ids, labels=ids).loss.item()
    num_bytes = sum(len(line.encode("utf-8")) for line in texts)
    evaluation = results["evaluation"]
    assert evaluation["num_bytes"] == num_bytes
    assert evaluation["num_tokens"] == len(stream) - 1
    assert evaluation["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)
    assert evaluation["perplexity"] == pytest.approx(math.exp(nll / (len(stream) - 1)), rel=1e-5)
    assert [step for step, _ in results["eval_loss_curve"]][:2] == [1, 2]


def test_the_best_model_is_that_of_the_exact_loss(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """Unless another number is named."""
    best = ["--eval-strategy", "steps", "--eval-steps", "1", "--save-steps", "1", "--load-best-model-at-end"]
    for name, given in (("token_loss", []), ("loss", ["--metric-for-best-model", "loss"])):
        run = pretrain.main(command(text, tmp_path / name, "--max-steps", "2", *best, *given))
        state = json.loads((tmp_path / name / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
        seen = [entry[f"eval_{name}"] for entry in state["log_history"] if f"eval_{name}" in entry]
        assert state["best_metric"] == min(seen) and run["num_updates"] == 2


def test_text_that_a_tokenizer_does_not_know_has_no_bits_per_byte(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = pretrain.main(command(text, tmp_path / "run", "--max-steps", "1", "--tokenizer", "listops"))
    assert "bits_per_byte" not in found["evaluation"] and "are unknown to the tokenizer" in caplog.text


def test_text_that_a_tokenizer_simplifies_has_no_bits_per_byte(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = build_tokenizer("bpe:270", [text.read_text()])
    tokenizer.backend_tokenizer.normalizer = Lowercase()
    tokenizer.save_pretrained(tmp_path / "lower")
    found = pretrain.main(command(text, tmp_path / "run", "--max-steps", "1", "--tokenizer", str(tmp_path / "lower")))
    assert "bits_per_byte" not in found["evaluation"] and "the tokenizer drops case: bits per byte" in caplog.text


def test_a_masked_run_predicts_masks_only(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["--objective", "masked", "--max-steps", "2", "--tokenizer", "bpe:270", "--mlm-probability", "0.4"]
    evaluation = pretrain.main(command(text, folder, *arguments))["evaluation"]
    assert "bits_per_byte" not in evaluation
    assert 0 < evaluation["num_tokens"] < 60
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert type(model).__name__ == "TNNForMaskedLM"
    assert not model.config.is_causal
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.mask_token_id == len(tokenizer) - 1 == model.config.vocab_size - 1


def test_a_masked_run_reads_pairs_and_is_scored_on_plain_text(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    arguments = ["--objective", "masked", "--max-steps", "1", "--block-size", "16", "--pair-share", "1"]
    trainer = pretrain.prepare(pretrain.parse_arguments(command(text, folder, *arguments)))
    batch = next(iter(trainer.get_train_dataloader()))
    originals = torch.tensor(trainer.train_dataset["input_ids"])
    texts = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    separator = trainer.processing_class.eos_token_id
    assert (texts[:, [7, 15]] == separator).all()  # this tokenizer ends each of two texts
    assert all((originals[:, :7] == row[:7]).all(dim=1).any() for row in texts)
    plain = pretrain.prepare(pretrain.parse_arguments(command(text, tmp_path / "plain", *arguments[:-2])))
    assert trainer.eval_dataset.to_list() == plain.eval_dataset.to_list()


def test_documents_are_told_apart_only_on_request(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    def blocks(*more: str) -> set[str]:
        arguments = pretrain.parse_arguments(command(text, tmp_path / "run", "--overwrite-output-dir", *more))
        return set(pretrain.prepare(arguments).train_dataset.column_names)

    assert blocks() == {"input_ids", "labels"}
    assert blocks("--respect-documents") == {"input_ids", "labels", "position_ids"}


def test_token_budget_and_global_batch(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    arguments = pretrain.parse_arguments(
        command(text, tmp_path / "run", "--global-batch-size", "6", "--max-tokens", "300")
    )
    pretrain.set_length(arguments)
    assert arguments.training.gradient_accumulation_steps == 3
    assert arguments.training.max_steps == 300 // (6 * 16)


def test_decay_on_all_parameters(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    def undecayed(*more: str) -> int:
        arguments = pretrain.parse_arguments(
            command(text, tmp_path / "run", "--overwrite-output-dir", "--weight-decay", "0.2", *more)
        )
        groups = pretrain.prepare(arguments).create_optimizer().param_groups
        return sum(len(group["params"]) for group in groups if group["weight_decay"] == 0)

    assert undecayed() > 0
    assert undecayed("--weight-decay-on-all-parameters") == 0


@pytest.mark.parametrize(
    ("model_type", "objective"),
    [("llama", "causal"), ("bert", "masked"), pytest.param("bert", "causal", marks=pytest.mark.slow)],
)
def test_models_of_the_library_train_too(
    pretrain: ModuleType, model_type: str, objective: str, text: Path, tmp_path: Path
) -> None:
    arguments = ["--model-type", model_type, "--objective", objective, "--max-steps", "1"]
    sizes = ["hidden_size=8", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=8"]
    arguments += ["--config-overrides", *sizes, "--output-dir", str(tmp_path / "run"), "--train-file", str(text)]
    assert pretrain.main([*SHORT, *QUIET, *arguments])["num_updates"] == 1
    if objective == "causal":  # BERT of itself sees the future
        refuse_future(AutoModelForCausalLM.from_pretrained(tmp_path / "run"), np.arange(16))


def test_a_budget_of_seconds(
    pretrain: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The length is kept by a resumed run, which makes no trial."""
    from hf_seqmix.training import script

    monkeypatch.setattr(script, "updates_within", lambda trainer, seconds: int(3 * seconds))
    results = pretrain.main(command(text, tmp_path / "run", "--max-seconds", "2", "--save-steps", "4"))
    assert results["num_updates"] == 6
    assert "6 updates in 2 seconds" in caplog.text
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    monkeypatch.setattr(script, "updates_within", None)
    again = pretrain.main(command(text, tmp_path / "run", "--max-seconds", "7", "--save-steps", "4", "--resume"))
    assert losses(again) == losses(results)
    assert "6 updates in all, as many as when the run began" in caplog.text and "7 seconds" not in caplog.text


def test_a_stream_is_timed_before_it_is_read(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """A real trial, whose answer is the least there is."""
    held_out = ["--validation-file", str(text)]
    results = pretrain.main(command(text, tmp_path / "run", "--streaming", *held_out, "--max-seconds", "1e-6"))
    assert results["num_updates"] == 1 and len(losses(results)) == 1


def test_muon_by_its_name(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    options = ["--max-steps", "4", "--optim", "muon", "--muon-learning-rate", "3e-2", "--kernel-learning-rate", "1e-3"]
    results = pretrain.main(command(text, tmp_path / "run", *options))
    assert losses(results)[-1] < losses(results)[0]
    training = results["arguments"]["training"]
    assert (training["optim"], training["muon_learning_rate"], training["kernel_learning_rate"]) == (
        "muon",
        0.03,
        1e-3,
    )


def test_a_trained_model_is_trained_further(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """With its tokenizer and configuration, whatever the recipe says, and without its optimizer."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model: {model_type: tnn, config_overrides: {hidden_size: 8, num_hidden_layers: 1, rpe_hidden_size: 8}}\n"
        "data: {tokenizer: 'bpe:270', block_size: 16}\ntraining: {max_steps: 4, learning_rate: 0.01}",
        encoding="utf-8",
    )
    typed = ["--recipe", str(recipe), *QUIET, "--train-file", str(text), "--per-device-train-batch-size", "2"]
    first = pretrain.main([*typed, "--output-dir", str(tmp_path / "first")])
    further = [*typed, "--model", str(tmp_path / "first"), "--output-dir", str(tmp_path / "second")]
    second = pretrain.main([*further, "--state-segments", "2", "--learning-rate", "0"])
    assert second["evaluation"]["token_loss"] == pytest.approx(first["evaluation"]["token_loss"], rel=1e-5)
    assert second["arguments"]["data"]["tokenizer"] is None
    assert len(AutoTokenizer.from_pretrained(tmp_path / "second")) == 270
    third = pretrain.main([*further, "--overwrite-output-dir"])
    assert third["evaluation"]["token_loss"] < first["evaluation"]["token_loss"]
    with pytest.raises(SystemExit, match="--config-overrides belong to a model with random weights"):
        pretrain.main([*further, "--config-overrides", "decay=0.5"])
    with pytest.raises(SystemExit, match=r"pretrain.py: .*no-such"):
        pretrain.main([*further, "--model", str(tmp_path / "no-such"), "--overwrite-output-dir"])
    with pytest.raises(SystemExit, match="vocab_size is 270, but the tokenizer has 384 tokens"):
        pretrain.main([*further, "--tokenizer", "byte", "--overwrite-output-dir"])


def test_training_tokens_are_those_that_were_seen(pretrain: ModuleType) -> None:
    """Ten blocks of 32 in batches of 8: the second update of an epoch has two."""
    training = SimpleNamespace(
        train_batch_size=8, world_size=1, gradient_accumulation_steps=1, dataloader_drop_last=False
    )
    data, run = SimpleNamespace(block_size=32, streaming=False), SimpleNamespace(state_segments=0)
    arguments = SimpleNamespace(training=training, data=data, run=run)
    trainer = SimpleNamespace(train_dataset=range(10))
    seen = [pretrain.tokens_seen(arguments, trainer, updates) // 32 for updates in range(7)]
    assert seen == [0, 8, 10, 18, 20, 28, 30]
    training.dataloader_drop_last = True  # the two are left out
    assert [pretrain.tokens_seen(arguments, trainer, updates) // 32 for updates in range(4)] == [0, 8, 16, 24]
    data.streaming = True
    assert pretrain.tokens_seen(arguments, trainer, 6) == 6 * 8 * 32
