"""What pretrain.py refuses, and the line that it says."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

from hf_seqmix import TNNConfig
from tests.scripts.pretraining.inputs import QUIET, SHORT, command


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model-type", "tnnn"], "no model type 'tnnn'"),
        (["--config-overrides", "hidden_sizes=3"], "has no field 'hidden_sizes'; did you mean hidden_size"),
        (["--config-overrides", "decay=2"], "decay is 2"),
        (
            ["--config-overrides", "position_embedding_type=learned", "max_position_embeddings=8"],
            r"--block-size is 16, but the model has positions for 8 tokens \(max_position_embeddings\): give blocks",
        ),
        (["--block-size", "1"], "--block-size is 1; it must be at least 2"),
        (["--max-eval-blocks", "0"], "--max-eval-blocks is 0; it must be at least 1"),
        (["--global-batch-size", "-8"], "--global-batch-size is -8; it must be at least 1"),
        (["--streaming", "--max-steps", "1", "--shuffle-buffer-size", "0"], "--shuffle-buffer-size is 0"),
        (["--mlm-probability", "2"], r"--mlm-probability must lie between 0 and 1; given 2\.0"),
        (
            ["--objective", "masked", "--mlm-probability", "1e-9", "--max-eval-blocks", "1"],
            "no token of the validation data is predicted .*a larger --mlm-probability",
        ),
        (["--metric-for-best-model", "perplexty"], "which no evaluation gives; did you mean perplexity"),
        (["--pair-share", "0.5"], "--pair-share goes with --objective masked; the objective is causal"),
        (["--objective", "masked", "--pair-share", "1.5"], r"--pair-share must lie between 0 and 1; given 1\.5"),
        (
            ["--objective", "masked", "--pair-share", "1", "--block-size", "8"],
            "--block-size must be at least 16; given 8",
        ),
        (
            ["--objective", "masked", "--pair-share", "1", "--block-size", "16", "--respect-documents"],
            "does not go with --respect-documents",
        ),
        (["--config-overrides", "hidden_size=many"], "configuration is refused.*hidden_size"),
        (["--config-overrides", "vocab_size=100"], "the tokenizer has 384 tokens; give"),
        (
            ["--config-overrides", "vocab_size=384", "--objective", "masked"],
            "vocab_size is 384, but the tokenizer has 385 tokens, with the mask token of --objective masked; give",
        ),
        (["--config-file", "config.json"], "either --model-type"),
        (["--config-overrides", "is_causal=false"], "is_causal"),
        (["--dataset", "embedded:python-stdlib"], "either --dataset"),
        (["--streaming"], "--max-tokens, --max-steps or --max-seconds"),
        (["--max-tokens", "10"], "one update takes 32 tokens"),
        (["--max-tokens", "100", "--max-steps", "3"], "give one of them"),
        (["--max-tokens", "100", "--auto-find-batch-size"], "which --auto-find-batch-size changes"),
        (["--global-batch-size", "3"], "does not divide"),
        (["--block-size", "100000"], "fewer tokens than one block"),
        (["--tokenizer", "bpe:9"], "too small"),
        (["--text-column", "body"], r"its columns are text\. Name the one .*--text-column\)"),
        (["--recipe", "no-such.yaml"], "no recipe"),
        (["--optim", "moun"], "--optim moun is unknown; did you mean muon"),
        (["--adam-beta1", "1.5"], r"--adam-beta1 is 1\.5; it must be at least 0 and below 1"),
        (["--weight-decay", "-1"], r"--weight-decay is -1\.0; it must be at least 0"),
        (
            ["--lr-scheduler-type", "cosine_with_min_lr"],
            "--lr-scheduler-type cosine_with_min_lr cannot be used: .*min_lr",
        ),
    ],
)
def test_wrong_input_ends_with_a_message(
    pretrain: ModuleType, text: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=f"(?s)pretrain.py: .*{message}"):
        pretrain.main(command(text, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()  # or the command without its fault would find a folder that is not empty


def test_a_wrong_model_is_found_before_the_data_is_read(pretrain: ModuleType, tmp_path: Path) -> None:
    data = command(tmp_path / "no-such.txt", tmp_path / "run")
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text("{")
    for more, message in (
        (["--config-overrides", "decay=2"], "decay is 2"),
        (["--config-overrides", "width=2"], "no field 'width'"),
    ):
        with pytest.raises(SystemExit, match=message):
            pretrain.main([*data, *more])
    of_trained = [*SHORT, "--train-file", "no-such.txt", "--output-dir", str(tmp_path / "run")]
    for more, message in (
        (["--model", str(tmp_path / "model")], "config.json is missing"),
        (["--config-file", str(tmp_path / "config.json")], "config.json is not JSON"),
        (["--model-type", "ski_tnn"], "a SKI-TNN is bidirectional(?s:.*) Or give --objective masked"),
        (["--model-type", "vit"], "there is no causal language model of the type vit"),
    ):
        with pytest.raises(SystemExit, match=message):
            pretrain.main([*of_trained, *more])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-seconds", "0"], "--max-seconds is 0.0; it must be positive and finite"),
        (["--max-seconds", "inf"], "--max-seconds is inf; it must be positive and finite"),
        (["--max-seconds", "9", "--max-steps", "4"], "--max-seconds and --max-steps both say"),
        (["--max-seconds", "9", "--max-tokens", "400"], "--max-tokens and --max-seconds both say"),
        (["--optim", "moun"], "moun"),
    ],
)
def test_wrong_lengths_and_optimizers(
    pretrain: ModuleType, text: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        pretrain.main(command(text, tmp_path / "run", *more))


@pytest.mark.parametrize("own", ["causal", "masked"])
def test_a_trained_model_of_the_other_objective_is_refused(pretrain: ModuleType, tmp_path: Path, own: str) -> None:
    TNNConfig(vocab_size=9, hidden_size=8, is_causal=own == "causal").save_pretrained(tmp_path / "model")
    save_file({"weight": torch.ones(1)}, tmp_path / "model" / "model.safetensors")
    other = {"causal": "masked", "masked": "causal"}[own]
    typed = [*SHORT, "--train-file", "no-such.txt", "--output-dir", str(tmp_path / "run"), "--objective", other]
    message = f"model is a {own} model, but --objective is {other}: give --objective {own}, or another model"
    with pytest.raises(SystemExit, match=message):  # before the data is read
        pretrain.main([*typed, "--model", str(tmp_path / "model")])


def test_a_classifier_is_no_language_model(pretrain: ModuleType, tmp_path: Path) -> None:
    config = TNNConfig(vocab_size=9, hidden_size=8, is_causal=False, architectures=["TNNForSequenceClassification"])
    config.save_pretrained(tmp_path / "model")
    save_file({"weight": torch.ones(1)}, tmp_path / "model" / "model.safetensors")
    typed = [*SHORT, "--train-file", "no-such.txt", "--output-dir", str(tmp_path / "run")]
    message = "is a TNNForSequenceClassification, which is no language model: give a causal one"
    with pytest.raises(SystemExit, match=message):
        pretrain.main([*typed, "--model", str(tmp_path / "model")])


def test_a_rate_that_the_model_has_no_use_for_is_refused_in_a_line(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    typed = [*SHORT, *QUIET, "--train-file", str(text), "--output-dir", str(tmp_path / "run"), "--max-steps", "2"]
    typed += ["--kernel-learning-rate", "1e-3"]
    typed += ["--config-overrides", "hidden_size=8", "num_hidden_layers=1", "num_centers=2"]
    with pytest.raises(SystemExit, match=r"pretrain\.py: --kernel-learning-rate is 0\.001.* has no kernel networks"):
        pretrain.main([*typed, "--model-type", "ipa"])


def test_a_second_process_writes_nothing_where_the_first_was_refused(
    pretrain: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process has let the others go on, and left no tokenizer."""
    (tmp_path / "of-others").mkdir()
    arguments = pretrain.parse_arguments(command(text, tmp_path / "of-others"))
    monkeypatch.setattr(type(arguments.training), "process_index", property(lambda _: 1))
    monkeypatch.setattr(type(arguments.training), "local_process_index", property(lambda _: 1))
    with pytest.raises(ValueError, match="first process of this machine stopped before it had a tokenizer"):
        pretrain.prepare(arguments)
    assert not list((tmp_path / "of-others").iterdir())
