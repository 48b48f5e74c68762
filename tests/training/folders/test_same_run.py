"""What a resumed run must have in common with its beginning."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from hf_seqmix import FDTNNConfig, SeqMixHybridConfig, TNNConfig
from hf_seqmix.training.folders.same_run import (
    changed_arguments,
    finished_results,
    record_arguments,
    refuse_other_model,
    train_unless_finished,
)

SMALL: dict[str, Any] = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 12}


@pytest.mark.parametrize(
    "config",
    [
        TNNConfig(**SMALL),
        TNNConfig(**SMALL, decay=None, channel_decays=[0.9, 0.999], num_labels=3),
        SeqMixHybridConfig(**SMALL, mixer_types=["tnn", "attention"], mixer_configs={"attention": {"num_heads": 2}}),
        LlamaConfig(**SMALL, num_attention_heads=2, intermediate_size=8),
    ],
    ids=["tnn", "decays", "hybrid", "llama"],
)
def test_the_same_model_is_continued(config: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    again = type(config).from_dict(config.to_dict())
    again.use_cache, again.pad_token_id, again.bos_token_id = False, 3, 4  # as the library does while it trains
    refuse_other_model(tmp_path, again)
    refuse_other_model(None, again)
    refuse_other_model(tmp_path, None)
    refuse_other_model(tmp_path / "nothing", again)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FDTNNConfig(**SMALL), "it is of a tnn model, and a fd_tnn model is to be trained"),
        (TNNConfig(**{**SMALL, "hidden_size": 32}), "hidden_size is 16 there and 32 here"),
        (TNNConfig(**SMALL, decay=0.5), r"decay is [\d.]+ there and 0.5 here"),
    ],
)
def test_another_model_is_refused_by_what_differs(config: Any, message: str, tmp_path: Path) -> None:
    TNNConfig(**SMALL).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        refuse_other_model(tmp_path, config)


def test_dropout_may_change(tmp_path: Path) -> None:
    TNNConfig(**SMALL, hidden_dropout=0.1, classifier_dropout=0.1).save_pretrained(tmp_path)
    refuse_other_model(tmp_path, TNNConfig(**SMALL, hidden_dropout=0.0, classifier_dropout=0.3))


def test_a_problem_that_was_left_open_is_settled_by_training(tmp_path: Path) -> None:
    TNNConfig(**SMALL, problem_type="single_label_classification").save_pretrained(tmp_path)
    refuse_other_model(tmp_path, TNNConfig(**SMALL))
    with pytest.raises(ValueError, match="problem_type is 'single_label_classification' there and 'regression' here"):
        refuse_other_model(tmp_path, TNNConfig(**SMALL, problem_type="regression"))


def test_arguments_that_change_are_named(tmp_path: Path) -> None:
    began: dict[str, Any] = {
        "data": {"train_file": ["a.txt"], "block_size": 64},
        "run": {"resume": None, "state_segments": 4, "max_seconds": 5.0, "max_tokens": None},
        "training": {"learning_rate": 1e-3, "max_steps": 10, "logging_steps": 1, "seed": 0},
    }
    assert changed_arguments(tmp_path, began) == []  # of a version that kept no record
    record_arguments(tmp_path, began)
    later = json.loads(json.dumps(began))
    later["run"] |= {"resume": "last", "max_seconds": None, "max_tokens": 2000}
    later["training"] |= {"max_steps": 20, "logging_steps": 5}
    assert changed_arguments(tmp_path, later) == []
    later["data"]["train_file"] = ["b.txt"]
    later["run"]["state_segments"] = 0
    later["training"] |= {"learning_rate": 0.5, "seed": 1}
    assert changed_arguments(tmp_path, later) == [
        "train_file was ['a.txt'] and is ['b.txt']",
        "state_segments was 4 and is 0",
        "learning_rate was 0.001 and is 0.5",
        "seed was 0 and is 1 (rows that finetune.py holds out are others then, and may have been trained on)",
    ]


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    record_arguments(tmp_path, {"training": {"optim": "adamw_torch_fused"}})
    with pytest.raises(ValueError, match="began with --optim adamw_torch_fused, whose state muon cannot read"):
        changed_arguments(tmp_path, {"training": {"optim": "muon"}})


@pytest.mark.parametrize("section", ["data", "model"])
def test_another_tokenizer_is_refused(tmp_path: Path, section: str) -> None:
    record_arguments(tmp_path, {section: {"tokenizer": "bpe:600"}})
    assert changed_arguments(tmp_path, {section: {"tokenizer": "bpe:600"}}) == []
    with pytest.raises(ValueError, match=r"began with --tokenizer bpe:600 and keeps its tokens: say the same"):
        changed_arguments(tmp_path, {section: {"tokenizer": "byte"}})


def test_another_share_of_held_out_rows_is_refused(tmp_path: Path) -> None:
    record_arguments(tmp_path, {"data": {"validation_fraction": 0.05}})
    assert changed_arguments(tmp_path, {"data": {"validation_fraction": 0.05}}) == []
    with pytest.raises(ValueError, match=r"began with --validation-fraction 0.05: by 0.5 rows that it was trained on"):
        changed_arguments(tmp_path, {"data": {"validation_fraction": 0.5}})


def test_results_of_a_finished_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def found(updates: int) -> dict[str, Any] | None:
        arguments, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=updates)
        trainer: Any = SimpleNamespace(args=arguments, state=state, is_world_process_zero=lambda: True)
        return finished_results(trainer)

    assert found(8) is None
    (tmp_path / "results.json").write_text('{"num_updates": 8, "train_seconds": 3.5}', encoding="utf-8")
    assert found(12) is None and not caplog.text
    assert found(8) == {"num_updates": 8, "train_seconds": 3.5}
    assert "results.json stays as it is" in caplog.text


@pytest.mark.parametrize("checkpoint", [None, "unfinished", "finished"])
@pytest.mark.parametrize("has_results", [True, False])
def test_a_finished_run_with_results_is_left_alone(tmp_path: Path, checkpoint: str | None, has_results: bool) -> None:
    done: list[str] = []

    def train(resume_from_checkpoint: str | None) -> SimpleNamespace:
        done.append(f"trained from {resume_from_checkpoint}")
        return SimpleNamespace(metrics={"train_runtime": 2.5})

    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path)),
        state=SimpleNamespace(global_step=8),
        is_world_process_zero=lambda: True,
        restore_finished=lambda checkpoint: checkpoint == "finished",
        train=train,
        save_model=lambda: done.append("saved"),
    )
    if has_results:
        (tmp_path / "results.json").write_text('{"num_updates": 8}', encoding="utf-8")
    found = train_unless_finished(trainer, checkpoint)
    if checkpoint != "finished":
        assert found == (2.5, None) and done == [f"trained from {checkpoint}", "saved"]
    elif has_results:
        assert found == (0.0, {"num_updates": 8}) and not done
    else:
        assert found == (0.0, None) and done == ["saved"]
