"""Muon with AdamW, and rates of kernel networks: the same as the optimizers alone, saved, resumed, refused."""

import copy
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainingArguments

from hf_seqmix import TNNConfig, TNNForCausalLM
from hf_seqmix.models.parameter_roles import hidden_matrices, kernel_parameters
from hf_seqmix.training.divergence.error import DivergenceError
from hf_seqmix.training.folders.resumable import ResumableTrainer
from hf_seqmix.training.optimizers import Float32Muon, MuonWithAdamW, OptimizerError, RoleOptimizers, newton_schulz
from hf_seqmix.training.training_arguments import SeqMixTrainingArguments

ROWS = [{"input_ids": torch.arange(row, row + 8) % 20, "labels": torch.arange(row, row + 8) % 20} for row in range(12)]


def model(**fields: Any) -> TNNForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "rpe_hidden_size": 8}
    return TNNForCausalLM(TNNConfig(**{**sizes, "hidden_dropout": 0.2, **fields}))


def arguments(folder: Path, **options: Any) -> SeqMixTrainingArguments:
    steps = {"max_steps": 6, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2}
    fixed = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    return SeqMixTrainingArguments(output_dir=str(folder), **{**steps, **fixed, **options})


def trainer(folder: Path, **options: Any) -> ResumableTrainer:
    return ResumableTrainer(model=model(), args=arguments(folder, **options), train_dataset=ROWS)


def losses(run: ResumableTrainer) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def test_each_part_is_the_optimizer_of_torch(tmp_path: Path) -> None:
    run = trainer(tmp_path, optim="muon", learning_rate=3e-3, muon_learning_rate=5e-2, weight_decay=0.1, bf16="true")
    ours: Any = run.create_optimizer()
    twin = model()
    names, decays = hidden_matrices(twin), set(run.get_decay_parameter_names(twin))
    parts: dict[str, list[Tensor]] = {"matrices": [], "decaying": [], "plain": []}
    for name, parameter in twin.named_parameters():
        parts["matrices" if name in names else "decaying" if name in decays else "plain"].append(parameter)
    adamw = [{"params": parts["decaying"], "weight_decay": 0.1}, {"params": parts["plain"], "weight_decay": 0.0}]
    theirs = [
        torch.optim.Muon(parts["matrices"], lr=5e-2, weight_decay=0.1),
        torch.optim.AdamW(adamw, lr=3e-3, fused=True),
    ]
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        for own, other in zip(run.model.parameters(), twin.parameters(), strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            other.grad = own.grad.clone()
        ours.step()
        for each in theirs:
            each.step()
    for (name, own), other in zip(run.model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, other), name
    assert {group["lr"] for group in ours.param_groups} == {3e-3, 5e-2}


@pytest.mark.parametrize("options", [{}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}])
def test_muon_in_float32_is_the_muon_of_torch_but_for_rounding(options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in [(6, 6), (5, 11), (13, 4), (1, 7), (7, 1)]]
    ours, theirs = ([torch.nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    muon: list[Any] = [{"params": ours, "lr": 0.1, "weight_decay": 0.1, **options}]
    optimizers = [MuonWithAdamW(muon, [], dtype=torch.float32), torch.optim.Muon(theirs, 0.1, 0.1, **options)]
    for _ in range(3):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            other.grad = own.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for own, other, matrix in zip(ours, theirs, start, strict=True):
        moved = (other - matrix).norm()
        assert 0 < (own - other).norm() < 0.02 * moved, own.shape  # eight bits of bfloat16


@pytest.mark.parametrize("shape", [(8, 8), (3, 17), (17, 3), (1, 5), (1, 1)])
def test_newton_schulz_keeps_singular_vectors_and_evens_singular_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    values = s / s.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(newton_schulz(matrix), u @ torch.diag(values) @ vh)
    assert newton_schulz(matrix.bfloat16()).dtype == torch.float32
    assert newton_schulz(torch.zeros(shape)).abs().max() == 0


def test_iterations_are_in_bfloat16_only_where_the_run_is(tmp_path: Path) -> None:
    for bf16, kind in (("false", Float32Muon), ("true", torch.optim.Muon)):
        optimizer: Any = trainer(tmp_path / bf16, optim="muon", bf16=bf16).create_optimizer()
        assert [type(part) for part in optimizer._parts] == [torch.optim.AdamW, kind]


def test_a_resumed_run_is_the_run_bit_for_bit(tmp_path: Path) -> None:
    options = {"optim": "muon", "kernel_learning_rate": 1e-2, "lr_scheduler_type": "cosine", "warmup_steps": 1}
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    resumed = trainer(tmp_path / "whole", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert resumed.first_step == 4
    assert losses(resumed) == losses(whole) and len(losses(whole)) == 6
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    states = [run.optimizer.state_dict()["state"] for run in (whole, resumed)]
    assert states[0].keys() == states[1].keys() and len(states[0]) == len(list(whole.model.parameters()))
    for index, state in states[0].items():
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(states[1][index][k])) for k, v in state.items())


def test_both_rates_follow_the_schedule(tmp_path: Path) -> None:
    run = trainer(tmp_path, optim="muon", muon_learning_rate=0.04, learning_rate=2e-3, lr_scheduler_type="linear")
    run.create_optimizer_and_scheduler(4)
    run.optimizer.step()
    run.lr_scheduler.step()
    assert {group["lr"] for group in run.optimizer.param_groups} == {0.03, 1.5e-3}


@pytest.mark.parametrize("optim", ["muon", "adamw_torch"])
@pytest.mark.parametrize(("name", "least"), [("polynomial", "lr_end"), ("cosine_with_min_lr", "min_lr")])
def test_a_schedule_ends_at_the_rate_that_is_given(tmp_path: Path, optim: str, name: str, least: str) -> None:
    """The library relates the last rate to the optimizer's default, which is not torch's but `--learning-rate`."""
    options = {"optim": optim, "learning_rate": 1e-2, "kernel_learning_rate": 2e-2, "muon_learning_rate": 4e-2}
    run = trainer(tmp_path, lr_scheduler_type=name, lr_scheduler_kwargs={least: 1e-3}, **options)
    run.create_optimizer_and_scheduler(3)
    for _ in range(3):
        run.optimizer.step()
        run.lr_scheduler.step()
    last = {1e-3, 2e-3} | ({4e-3} if optim == "muon" else set())
    assert {round(group["lr"], 12) for group in run.optimizer.param_groups} == last


def test_a_schedule_of_matrices_alone_ends_at_as_large_a_share(tmp_path: Path) -> None:
    options = {"optim": "muon", "learning_rate": 1e-2, "muon_learning_rate": 4e-2}
    run = trainer(tmp_path, lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": 1e-3}, **options)
    names = hidden_matrices(run.model)
    for name, parameter in run.model.named_parameters():
        parameter.requires_grad_(name in names)
    run.create_optimizer_and_scheduler(1)
    run.optimizer.step()
    run.lr_scheduler.step()
    assert {round(group["lr"], 12) for group in run.optimizer.param_groups} == {4e-3}


def test_the_rate_that_is_logged_is_the_learning_rate(tmp_path: Path) -> None:
    options = {"muon_learning_rate": 0.02, "kernel_learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    for optim in ("muon", "adamw_torch"):
        run = trainer(tmp_path / optim, optim=optim, learning_rate=3e-3, max_steps=1, **options)
        run.train()
        assert [entry["learning_rate"] for entry in run.state.log_history if "loss" in entry] == [3e-3]


def test_the_advice_after_a_divergence_names_both_rates(tmp_path: Path) -> None:
    run = trainer(tmp_path, optim="muon", learning_rate=1e30, lr_scheduler_type="constant")
    with pytest.raises(
        DivergenceError, match=r"learning rate 1e\+30.*given: 1e\+30; .*--muon-learning-rate, given: 0\.02"
    ):
        run.train()


def test_kernel_networks_have_a_rate_of_their_own(tmp_path: Path) -> None:
    run = trainer(tmp_path, optim="adamw_torch", learning_rate=1e-3, kernel_learning_rate=7e-3)
    optimizer = run.create_optimizer()
    assert type(optimizer) is torch.optim.AdamW
    assert {group["fused"] for group in optimizer.param_groups} == {None}  # as the library's own
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    kernels = kernel_parameters(run.model)
    for name, parameter in run.model.named_parameters():
        assert rates[id(parameter)] == (7e-3 if name in kernels else 1e-3), name
    decays = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert not decays  # as `weight_decay` is 0
    plain = trainer(tmp_path, optim="adamw_torch", learning_rate=1e-3)
    assert plain.optimizer_cls_and_kwargs is None


def test_frozen_parameters_have_no_group(tmp_path: Path) -> None:
    run = trainer(tmp_path, optim="muon")
    frozen = dict(run.model.named_parameters())["model.layers.0.mixer.o_proj.weight"].requires_grad_(False)
    optimizer = run.create_optimizer()
    assert all(parameter is not frozen for group in optimizer.param_groups for parameter in group["params"])


def test_a_closure_is_called_once_with_gradients() -> None:
    weight, bias = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3))
    optimizer = MuonWithAdamW([{"params": [weight]}], [{"params": [bias]}])
    calls = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        (weight.sum() + bias.sum()).backward()
        return 2.5

    assert optimizer.step(closure) == 2.5 and calls == [True]
    assert not torch.equal(weight, torch.ones(3, 3)) and not torch.equal(bias, torch.ones(3))


def test_copies_of_an_optimizer_go_on_alike() -> None:
    def stepped(optimizer: MuonWithAdamW) -> list[torch.Tensor]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.arange(1.0, parameter.numel() + 1).reshape(parameter.shape) * (number + 1)
        optimizer.step()
        return [parameter.detach().clone() for parameter in parameters]

    weight, bias = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3))
    optimizer = MuonWithAdamW([{"params": [weight], "lr": 0.1}], [{"params": [bias], "lr": 0.1}])
    stepped(optimizer)
    copies = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    expected = stepped(optimizer)
    for other in copies:
        torch.testing.assert_close(stepped(other), expected, rtol=0, atol=0)


@pytest.mark.parametrize("others", [False, True])
def test_a_group_that_is_added_is_one_of_adamw(others: bool) -> None:
    weight, bias, late = (torch.nn.Parameter(torch.ones(size)) for size in ((3, 3), (3,), (4, 4)))
    optimizer = MuonWithAdamW([{"params": [weight]}], [{"params": [bias]}] if others else [], lr=0.25)
    optimizer.add_param_group({"params": [late], "weight_decay": 0.0})
    weight.grad, bias.grad, late.grad = torch.ones(3, 3), torch.ones(3), torch.ones(4, 4)
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.full((4, 4), 0.75))  # the first update of Adam is the rate


def test_what_muon_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shape \(6,\).*FSDP of version 2"):
        MuonWithAdamW([{"params": [torch.nn.Parameter(torch.ones(6))]}], [])
    optimizer = MuonWithAdamW([{"params": [torch.nn.Parameter(torch.ones(2, 2))]}], [])
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        optimizer.add_param_group({**optimizer.param_groups[0], "params": [torch.nn.Parameter(torch.ones(4))]})
    with pytest.raises(ValueError, match="DeepSpeed flattens"):
        arguments(tmp_path, optim="muon", deepspeed={"zero_optimization": {"stage": 2}})
    for rate in (-1.0, 0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"--muon-learning-rate is {rate}; it must be positive and finite"):
            arguments(tmp_path, optim="muon", muon_learning_rate=rate)
    with pytest.raises(OptimizerError, match="has no hidden matrices"):
        RoleOptimizers()(torch.nn.Linear(2, 2), decays=lambda model: (), adamw={"lr": 1}, weight_decay=0.0, muon={})


def test_a_rate_of_muon_without_muon_is_said_to_be_unused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        arguments(tmp_path, optim="adamw_torch")
        assert not caplog.messages
        arguments(tmp_path, optim="adamw_torch", muon_learning_rate=0.5)
    assert caplog.messages == ["--muon-learning-rate 0.5 is not used: --optim is adamw_torch, not muon."]


def test_rates_that_nothing_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not with sgd"):
        arguments(tmp_path, optim="sgd", kernel_learning_rate=1e-3)
    plain = {"decays": lambda model: (), "adamw": {"lr": 1e-3}, "weight_decay": 0.0}
    with pytest.raises(ValueError, match="has no kernel networks"):
        RoleOptimizers()(torch.nn.Linear(2, 2), kernel_learning_rate=1e-3, **plain)
    model = torch.nn.ModuleDict({"kernel": torch.nn.Linear(2, 2).requires_grad_(False), "head": torch.nn.Linear(2, 2)})
    with pytest.raises(ValueError, match="whose kernel networks are all frozen"):
        RoleOptimizers()(model, kernel_learning_rate=1e-3, **plain)


def test_muon_of_frozen_matrices_is_refused() -> None:
    frozen = model()
    frozen.model.layers.requires_grad_(False)
    rates: dict[str, Any] = {"decays": lambda model: (), "adamw": {"lr": 1e-3}, "weight_decay": 0.0}
    with pytest.raises(OptimizerError, match="those of TNNForCausalLM are all frozen: take --optim adamw_torch"):
        RoleOptimizers()(frozen, muon={"lr": 0.02}, **rates)


def test_other_arguments_are_the_librarys(tmp_path: Path) -> None:
    ours, theirs = arguments(tmp_path), TrainingArguments(output_dir=str(tmp_path))
    assert ours.optim == theirs.optim
    assert set(ours.to_dict()) - set(theirs.to_dict()) == {"muon_learning_rate", "kernel_learning_rate"}
