"""Training on streams of segments: whose state a segment goes on from, resumed runs, accumulation, budgets."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from hf_seqmix import PolyTransformerConfig, PolyTransformerForCausalLM, TNNConfig, TNNForCausalLM
from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.cache import detach_cache
from hf_seqmix.training import budget
from hf_seqmix.training.folders.resumable import ResumableTrainer
from hf_seqmix.training.segments.carried_states import StateSettings
from hf_seqmix.training.segments.stateful import StatefulTrainer
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

BLOCK, SEGMENTS = 8, 4
STREAMS = StateSettings(SEGMENTS)
TEXT = torch.arange(52 * BLOCK).square().remainder(19).view(-1, BLOCK)
BLOCKS = [{"input_ids": block, "labels": block} for block in TEXT]


def model(family: str = "tnn", **fields: Any) -> Any:
    torch.manual_seed(0)
    shared = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "hidden_dropout": 0.0, **fields}
    if family == "tnn":
        return TNNForCausalLM(
            TNNConfig(
                **shared,
                rpe_hidden_size=8,
                short_conv_taps=3,
                copy_head=True,
                copy_head_tokens=3,
                copy_head_state=True,
            )
        )
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**shared, num_attention_heads=2, intermediate_size=16))
    return PolyTransformerForCausalLM(PolyTransformerConfig(**shared, num_attention_heads=2))


def trainer(
    folder: Path,
    states: StateSettings | None = STREAMS,
    trained: Any = None,
    trainer_class: type = StatefulTrainer,
    **options: Any,
) -> Any:
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    steps = {"max_steps": 11, "logging_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 0.1}
    plain = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "save_strategy": "no"}
    arguments = SeqMixTrainingArguments(output_dir=str(folder), **{**steps, **plain, **fixed, **options})
    told = {"states": states} if trainer_class is StatefulTrainer else {}
    return trainer_class(
        model=trained or model(num_hidden_layers=1),
        args=arguments,
        train_dataset=BLOCKS,
        eval_dataset=BLOCKS[:6],
        **told,
    )


def losses(run: Any) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def weights(run: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize("family", ["tnn", "poly", "llama"])
def test_each_segment_goes_on_from_the_state_of_the_one_before(family: str, tmp_path: Path) -> None:
    """The losses of a loop by hand: other streams begin with the fifth and the ninth update."""
    run = trainer(tmp_path, trained=model(family), max_steps=9)
    run.train()
    by_hand, order, cache = model(family).train(), list(run.segments), None
    descent, expected, alone = torch.optim.SGD(by_hand.parameters(), lr=0.1), [], []
    for update in range(9):
        ids = TEXT[order[2 * update : 2 * update + 2]]
        if update % SEGMENTS == 0:
            cache = DynamicCache(config=by_hand.config)
        with torch.no_grad():
            alone.append(by_hand(ids, labels=ids, use_cache=False).loss.item())
        loss = by_hand(ids, labels=ids, **{CACHE_NAME: cache}).loss
        descent.zero_grad()
        loss.backward()
        descent.step()
        detach_cache(cache)
        expected.append(loss.item())
    assert losses(run) == pytest.approx(expected, rel=1e-5)
    differs = [abs(one - other) > 1e-4 for one, other in zip(losses(run), alone, strict=True)]
    assert differs == [update % SEGMENTS > 0 for update in range(9)]


@pytest.mark.parametrize("stop", [*(pytest.param(stop, marks=pytest.mark.slow) for stop in (6, 8)), 15])
def test_a_resumed_run_is_the_same_to_the_bit(stop: int, tmp_path: Path) -> None:
    """Within streams, between streams, and within streams of a later pass of 12 updates."""
    options = {"max_steps": 18, "save_strategy": "steps", "save_steps": stop, "gradient_accumulation_steps": 2}
    dropping = {"hidden_dropout": 0.2}
    whole = trainer(tmp_path, trained=model(**dropping), optim="adamw_torch", **options)
    whole.train()
    assert whole.segments.updates == 12
    checkpoint = tmp_path / f"checkpoint-{stop}"
    assert (checkpoint / "states_0.pt").is_file() == (stop % SEGMENTS > 0)
    resumed = trainer(tmp_path, trained=model(**dropping), optim="adamw_torch", **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert losses(resumed) == losses(whole) and len(losses(whole)) == 18
    for name, value in weights(whole).items():
        assert torch.equal(weights(resumed)[name], value), name


def test_states_of_other_rows_are_not_taken_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"save_strategy": "steps", "save_steps": 6}
    trainer(tmp_path, **options).train()
    checkpoint = tmp_path / "checkpoint-6"
    said = "2 rows and 4 segments: the next 2 updates begin with empty states"
    other = trainer(tmp_path, gradient_accumulation_steps=2, **options)
    other.train(resume_from_checkpoint=str(checkpoint))
    assert f"has no states for 1 processes, 2 accumulation steps, {said}" in caplog.text
    assert len(losses(other)) == 11
    shutil.copytree(checkpoint, tmp_path / "without" / "checkpoint-6")
    (tmp_path / "without" / "checkpoint-6" / "states_0.pt").unlink()
    caplog.clear()
    trainer(tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "without" / "checkpoint-6"))
    assert f"has no states for 1 processes, 1 accumulation steps, {said}" in caplog.text


def test_accumulation_does_not_change_whose_state_a_row_has(tmp_path: Path) -> None:
    """Updates of four rows, in one, two and four parts."""
    runs = []
    for parts in (1, 2, 4):
        sizes = {"per_device_train_batch_size": 4 // parts, "gradient_accumulation_steps": parts}
        run = trainer(tmp_path / str(parts), **sizes)
        run.train()
        runs.append(losses(run))
    assert runs[1] == pytest.approx(runs[0], rel=1e-4) and runs[2] == pytest.approx(runs[0], rel=1e-4)


def test_blocks_are_read_alone_up_to_the_start(tmp_path: Path) -> None:
    run = trainer(tmp_path, StateSettings(SEGMENTS, start=0.3))
    seen = []

    def before(module: Any, inputs: Any, named: dict[str, Any]) -> None:
        cache = named.get(CACHE_NAME, named.get("past_key_values"))
        seen.append(None if cache is None else cache.get_seq_length() // BLOCK)

    run.model.register_forward_pre_hook(before, with_kwargs=True)
    run.train()
    assert seen == [None] * 4 + [0, 1, 2, 3] + [0, 1, 2]


def test_evaluations_have_no_states(tmp_path: Path) -> None:
    run = trainer(tmp_path, eval_strategy="steps", eval_steps=3)
    run.train()
    between = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    undisturbed = trainer(tmp_path)
    undisturbed.train()
    assert losses(run) == losses(undisturbed) and len(set(between)) > 2
    alone = trainer(tmp_path, trained=run.model, trainer_class=ResumableTrainer)
    assert run.evaluate()["eval_loss"] == alone.evaluate()["eval_loss"]


def test_without_states_it_is_the_trainer_it_was(tmp_path: Path) -> None:
    run, plain = trainer(tmp_path, None), trainer(tmp_path, trainer_class=ResumableTrainer)
    run.train()
    plain.train()
    assert run.segment is None and losses(run) == losses(plain)


def test_a_budget_counts_both_kinds_of_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates without states take a second, those with states two: three quarters of one, one of the other."""
    clocks = iter([1.0, 2.0])

    def clock() -> Any:
        each, now = next(clocks), [0.0]

        def look() -> float:
            now[0] += each
            return now[0]

        return look

    run = trainer(tmp_path, StateSettings(SEGMENTS, start=0.75))
    monkeypatch.setattr(budget, "training_clock", clock)
    assert budget.updates_within(run, 100) == 80
    assert [share for share, _ in trainer(tmp_path).trial_parts()] == [1.0]
    assert trainer(tmp_path, None).trial_parts() == [(1.0, {"states": None})]


def test_too_little_text_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="52 blocks, which are 13 streams of 4 segments, but an update reads 16 rows"):
        trainer(tmp_path, per_device_train_batch_size=16)
    with pytest.raises(ValueError, match="--torch-compile makes graphs"):
        trainer(tmp_path, torch_compile=True)


def test_the_order_of_streams_is_that_of_the_seed_of_the_data(tmp_path: Path) -> None:
    first, same, other = (
        list(trainer(tmp_path, seed=seed, data_seed=of_data).segments) for seed, of_data in ((1, 5), (2, 5), (1, 6))
    )
    assert first == same != other
