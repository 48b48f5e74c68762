"""Gradients, adapters and reduced precision."""

import copy

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.models.suite.base import PADS, VOCAB, SuiteBase, perturb
from tests.tolerances import MODEL_TOLERANCE, relative_error


class TrainingTests(SuiteBase):
    """Every head and every parameter learns."""

    @pytest.mark.parametrize(
        "each", [pytest.param(False, id="once"), pytest.param(True, id="each direction", marks=pytest.mark.slow)]
    )
    def test_every_head_learns(self, each):
        for suffix, is_causal in self.heads() if each else self.some_heads():
            if suffix == "Model":
                continue
            model = self.family.classes[suffix](self.head_config(suffix, is_causal, hidden_dropout=0.0))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            batch = self.batch(suffix)
            losses = []
            for _ in range(12):
                loss = model(**batch).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[-1] < 0.7 * losses[0], (suffix, losses)

    def test_every_parameter_gets_a_gradient(self, is_causal):
        suffix = "ForCausalLM" if is_causal else "ForMaskedLM"
        model = self.make(suffix, is_causal).train()
        model(**self.batch(suffix)).loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name

    def test_gradient_checkpointing_changes_nothing(self, is_causal):
        batch = self.batch("ForTokenClassification")
        batch["attention_mask"] = torch.tensor(PADS["inside"])
        model = self.make("ForTokenClassification", is_causal, hidden_dropout=0.0).train()
        model(**batch).loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        model(**batch).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)

    def test_weights_changed_in_any_way_are_seen_by_the_next_forward(self, is_causal):
        model = self.make("Model", is_causal, torch.float32)
        ids = torch.randint(VOCAB, (2, 9))

        def fresh() -> Tensor:
            other = type(model)(model.config).to(model.dtype).eval()
            other.load_state_dict(model.state_dict())
            return other(ids)[0]

        def step() -> None:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
            model(ids)[0].square().sum().backward()
            optimizer.step()

        changes = {
            "fused optimizer": step,
            ".data": lambda: [p.data.add_(0.05 * torch.randn_like(p)) for p in model.parameters()],
            "load_state_dict": lambda: model.load_state_dict(perturb(copy.deepcopy(model)).state_dict()),
            ".to": lambda: model.to(torch.float64),
        }
        previous = model(ids)[0]
        for name, change in changes.items():
            change()
            actual = model(ids)[0]
            assert torch.equal(actual, fresh()), name
            assert relative_error(actual.float(), previous.float()) > (1e-3 if name != ".to" else 0), name
            previous = actual

    def test_low_rank_adapters(self, is_causal):
        peft = pytest.importorskip("peft")
        base = self.make("ForTokenClassification", is_causal, torch.float32)
        inputs = self.batch("ForTokenClassification")
        plain = base(**inputs).logits
        model = peft.get_peft_model(
            base, peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["classifier"])
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.3)
        adapted = model(**inputs).logits
        assert relative_error(adapted, plain) > 1e-2
        with model.disable_adapter():
            torch.testing.assert_close(model(**inputs).logits, plain, rtol=1e-4, atol=1e-5)
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged(**inputs).logits, adapted, rtol=1e-3, atol=1e-4)

    def test_adapters_of_the_embedding(self, is_causal):
        peft = pytest.importorskip("peft")
        ids = torch.randint(VOCAB, (2, 9))
        for kwargs in (
            {"r": 2, "target_modules": ["embed_tokens"]},
            {"r": 2, "target_modules": ["o_proj"], "trainable_token_indices": [3]},
        ):
            base = self.make("Model", is_causal, torch.float32)
            expected = base(ids)[0]
            model = peft.get_peft_model(base, peft.LoraConfig(**kwargs))
            torch.testing.assert_close(model(input_ids=ids)[0], expected, rtol=1e-4, atol=1e-5)

    def test_label_smoothing_shifts_the_labels(self, tmp_path):
        pytest.importorskip("accelerate")
        if True not in self.directions:
            pytest.skip("a bidirectional family has no causal language model")
        model, batch = self.make("ForCausalLM", dtype=torch.float32), self.batch("ForCausalLM")
        arguments = transformers.TrainingArguments(
            str(tmp_path), label_smoothing_factor=0.1, report_to="none", use_cpu=True
        )
        loss = transformers.Trainer(model, arguments).compute_loss(model, dict(batch))
        scores = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        expected = nn.functional.cross_entropy(scores, batch["labels"][:, 1:].flatten(), label_smoothing=0.1)
        torch.testing.assert_close(loss, expected)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_autocast(self, is_causal, dtype):
        model = self.make("Model", is_causal, torch.float32)
        inputs = self.batch("Model", length=33)
        expected = model(**inputs)[0]
        with torch.autocast("cpu", dtype=dtype):
            actual = model(**inputs)[0]
        error = (actual.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < MODEL_TOLERANCE[dtype]
        with torch.autocast("cpu", dtype=dtype):
            model.train()(**inputs)[0].float().square().mean().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
