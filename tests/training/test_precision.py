"""`--bf16 auto`: how the flag is read, what is timed, and what a `Trainer` then computes in."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import HfArgumentParser

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.training import precision
from hf_seqmix.training.folders.resumable import ResumableTrainer
from hf_seqmix.training.precision import AutoPrecisionArguments, bfloat16_speedup, choose_precision, settle_precision


def parse(*words: str) -> AutoPrecisionArguments:
    parser = HfArgumentParser(AutoPrecisionArguments)
    return parser.parse_args_into_dataclasses(["--output_dir", "unused", "--use_cpu", *words])[0]


@pytest.mark.parametrize(
    ("words", "expected", "auto"),
    [
        ((), False, False),
        (("--bf16",), True, False),
        (("--bf16=True",), True, False),
        (("--bf16", "false"), False, False),
        (("--bf16", "true", "--bf16", "auto"), False, True),
        (("--bf16=auto", "--bf16", "no"), False, False),
    ],
)
def test_the_flag(words: tuple[str, ...], expected: bool, auto: bool) -> None:
    """The last word counts, so a command line overrides a recipe; a CPU is timed later."""
    read = parse(*words)
    assert (read.bf16, read.auto_bf16) == (expected, auto)
    assert read.mixed_precision == ("bf16" if expected else "no")


@pytest.mark.parametrize(("word", "expected"), [("true", True), ("auto", False), ("false", False)])
def test_bfloat16_without_an_accelerator_needs_no_word_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, word: str, expected: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(precision, "gpu_has_bfloat16", lambda: False)
    read = AutoPrecisionArguments("unused", bf16=word)
    assert (read.bf16, read.use_cpu) == (expected, expected)


@pytest.mark.parametrize(("words", "message"), [(("--bf16", "maybe"), "auto"), (("--bf16", "auto", "--fp16"), "fp16")])
def test_other_words_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(*words)


def test_timing_moves_no_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert 0 < bfloat16_speedup(width=1, rows=7, seconds=0) < 1000
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(("has", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_is_not_timed(monkeypatch: pytest.MonkeyPatch, has: bool, dtype: str) -> None:
    monkeypatch.setattr(precision, "gpu_has_bfloat16", lambda: has)
    chosen = choose_precision(torch.device("cuda"), 160)
    assert (chosen["dtype"], chosen["speedup"]) == (dtype, None) and "the GPU has" in chosen["reason"]


@pytest.mark.parametrize(("width", "timed"), [(8, 64), (160, 160), (4096, 512)])
def test_wide_models_are_not_timed_for_long(monkeypatch: pytest.MonkeyPatch, width: int, timed: int) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        precision, "bfloat16_speedup", lambda _, *, width, rows: float(bool(seen.append((width, rows))))
    )
    assert f"in linear layers of {timed} channels" in choose_precision(torch.device("cpu"), width, 7)["reason"]
    assert seen == [(timed, 7)]


def test_a_given_precision_is_left_alone(tmp_path: Path) -> None:
    training = parse("--bf16", "true")
    settle_precision(training, tmp_path)
    assert training.bf16 is True and training.precision is None and not any(tmp_path.iterdir())


@pytest.mark.parametrize(("speedup", "dtype"), [(1.19, "float32"), (1.2, "bfloat16")])
def test_a_run_in_another_folder_keeps_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speedup: float, dtype: str
) -> None:
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda *_, **__: speedup)
    for folder in ("first", "second", "third"):
        (tmp_path / folder).mkdir()
    first = parse("--bf16", "auto")
    settle_precision(first, tmp_path / "first")
    assert first.precision["dtype"] == dtype and first.bf16 == (dtype == "bfloat16")
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda *_, **__: 9.0 if dtype == "float32" else 0.1)
    for folder in ("second", "third"):
        resumed = parse("--bf16", "auto")
        settle_precision(resumed, tmp_path / folder, earlier=[tmp_path / folder, tmp_path / "first"])
        assert resumed.precision == first.precision and (tmp_path / folder / "precision.json").is_file()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_training_and_evaluation_compute_in_the_settled_dtype(
    tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU, too; weights, gradients and the encoder of the kernel stay in float32."""
    (tmp_path / "precision.json").write_text(f'{{"dtype": "{dtype}", "speedup": 1.5, "reason": "written"}}')
    training = parse("--bf16", "auto", "--max_steps", "2", "--save_strategy", "no", "--disable_tqdm", "true")
    with caplog.at_level(logging.WARNING):
        settle_precision(training, tmp_path, earlier=[tmp_path])
    torch.manual_seed(0)
    model = TNNForCausalLM(TNNConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, rpe_hidden_size=8))
    seen: dict[tuple[bool, bool], set[torch.dtype]] = {}

    def note(encodes: bool) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            seen.setdefault((encodes, module.training), set()).add(output.dtype)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(note("encoder" in name))
    rows = [{"input_ids": torch.arange(row, row + 8), "labels": torch.arange(row, row + 8)} for row in range(4)]
    trainer = ResumableTrainer(model=model, args=training, train_dataset=rows, eval_dataset=rows)
    losses = [trainer.train().training_loss, trainer.evaluate()["eval_loss"]]
    assert all(0 < loss < 10 for loss in losses)
    wanted = {getattr(torch, dtype)}
    assert seen == {
        (False, True): wanted,
        (False, False): wanted,
        (True, True): {torch.float32},
        (True, False): {torch.float32},
    }
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    moments = [entry for state in trainer.optimizer.state.values() for entry in state.values()]
    assert {entry.dtype for entry in moments} == {torch.float32}
