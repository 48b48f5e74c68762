"""Loading, saving, copying and placing."""

import copy
import pickle
import re
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_seqmix.models.auto import AUTO_CLASSES
from tests.models.suite.base import PADS, SuiteBase
from tests.tolerances import MODEL_TOLERANCE


class _Nothing:
    """A forward hook that does nothing and, like a partial, has no name."""

    def __call__(self, *_: Any) -> None:
        return None


class SavingTests(SuiteBase):
    """Each head is the same after it was saved, moved or copied."""

    @pytest.mark.parametrize(
        "each", [pytest.param(False, id="once"), pytest.param(True, id="each direction", marks=pytest.mark.slow)]
    )
    def test_every_head_is_registered_and_comes_back_bit_equal(self, tmp_path, recwarn, each):
        for suffix, is_causal in self.heads() if each else self.some_heads():
            model = self.make(suffix, is_causal, torch.float32)
            inputs = self.batch(suffix)
            expected = model(**inputs)
            folder = tmp_path / f"{suffix}-{is_causal}"
            model.save_pretrained(folder)
            loaded, info = AUTO_CLASSES[suffix].from_pretrained(folder, output_loading_info=True)
            assert type(loaded) is type(model)
            assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
            for key, value in loaded.state_dict().items():
                assert torch.equal(value, model.state_dict()[key]), key
            actual = loaded(**inputs)
            assert torch.equal(actual[0], expected[0])
            assert type(actual) is type(expected)
        assert not [str(w.message) for w in recwarn]

    def test_a_head_loads_the_backbone_of_another(self, tmp_path, caplog):
        model = self.make("Model", self.directions[0], torch.float32)
        model.save_pretrained(tmp_path)
        classifier, info = self.family.classes["ForTokenClassification"].from_pretrained(
            tmp_path, output_loading_info=True
        )
        assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
        for key, value in model.state_dict().items():
            assert torch.equal(classifier.model.state_dict()[key], value)
        for key in info["missing_keys"]:
            assert torch.isfinite(classifier.state_dict()[key]).all()

    def test_loads_in_half_precision(self, tmp_path, is_causal):
        model = self.make("Model", is_causal, torch.float32)
        model.save_pretrained(tmp_path)
        inputs = self.batch("Model", length=33)
        expected = model(**inputs).last_hidden_state
        for dtype in (torch.bfloat16, torch.float16):
            half = type(model).from_pretrained(tmp_path, dtype=dtype)
            assert half.dtype == dtype
            # As the library's own test reads the entries, each of which must name something.
            entries = {entry: re.compile(rf"(?:^|\.){entry}(?:\.|$)") for entry in half._keep_in_fp32_modules}
            kept = {
                entry: [name for name in half.state_dict() if rule.search(name)] for entry, rule in entries.items()
            }
            assert all(kept.values())
            wide = {name for name, value in half.state_dict().items() if value.dtype == torch.float32}
            assert wide == (set().union(*kept.values()) if dtype == torch.float16 else set())
            actual = half(**inputs).last_hidden_state
            assert actual.dtype == dtype
            error = (actual.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
            assert error < MODEL_TOLERANCE[dtype]

    def test_builds_on_the_meta_device(self, is_causal):
        with torch.device("meta"):
            model = self.family.classes["Model"](self.config(is_causal))
        assert {p.device.type for p in model.parameters()} == {"meta"}
        assert not list(model.buffers()), "a buffer would have to be re-created after loading"

    def test_nothing_is_left_to_chance_by_initialization(self, is_causal):
        def draw() -> dict[str, Tensor]:
            torch.manual_seed(3)
            return self.family.classes["Model"](self.config(is_causal)).state_dict()

        first, second = draw(), draw()
        for key, value in first.items():
            assert torch.equal(value, second[key]) and torch.isfinite(value).all(), key

    def test_weights_that_a_checkpoint_lacks_are_drawn(self, tmp_path, is_causal, poisoned_empty):
        """A mixer that owns parameters of its own draws them in `init_weights`."""
        model = self.make("Model", is_causal, torch.float32)
        model.save_pretrained(tmp_path)
        kept = dict([next(iter(model.state_dict().items()))])
        save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
        for name, value in type(model).from_pretrained(tmp_path).state_dict().items():
            assert value.isfinite().all(), name

    def test_weights_that_a_checkpoint_has_are_not_drawn_with_those_that_it_lacks(self, tmp_path, is_causal):
        """One tensor of each module with several is gone, the first or the second."""
        model = self.make("Model", is_causal, torch.float32)
        model.save_pretrained(tmp_path)
        saved = load_file(tmp_path / "model.safetensors")
        modules: dict[str, list[str]] = {}
        for name in saved:
            modules.setdefault(name.rpartition(".")[0], []).append(name)
        for place in (0, 1):
            lost = {names[place] for names in modules.values() if len(names) > 1}
            kept = {name: value for name, value in saved.items() if name not in lost}
            save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
            loaded = type(model).from_pretrained(tmp_path).state_dict()
            for name, value in kept.items():
                assert torch.equal(loaded[name], value), name

    def test_device_map(self, tmp_path, is_causal):
        pytest.importorskip("accelerate")
        model = self.make("Model", is_causal, torch.float32)
        model.save_pretrained(tmp_path / "model")
        inputs = self.batch("Model")
        inputs["attention_mask"] = torch.tensor(PADS["inside"])
        expected = model(**inputs)[0]
        for where in ("cpu", "disk"):
            # From the disk, each layer's weights are fetched when the layer is called, and no sooner.
            placed = type(model).from_pretrained(
                tmp_path / "model", device_map={"": where}, offload_folder=tmp_path / "off"
            )
            assert torch.equal(placed(**inputs)[0], expected)

    def test_copies_and_pickles(self, is_causal):
        model = self.make("Model", is_causal)
        model.layers[0].register_forward_hook(_Nothing())
        inputs = self.batch("Model")
        expected = model(**inputs, output_hidden_states=True)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            actual = other(**inputs, output_hidden_states=True)
            assert torch.equal(actual.last_hidden_state, expected.last_hidden_state)
            assert len(actual.hidden_states) == len(expected.hidden_states)

    def test_the_auto_classes_know_the_family(self):
        config = self.config(self.directions[0])
        assert type(transformers.AutoConfig.for_model(config.model_type)) is self.family.config_class
        for suffix, is_causal in self.heads():
            model = AUTO_CLASSES[suffix].from_config(self.head_config(suffix, is_causal))
            assert type(model) is self.family.classes[suffix]
            assert not model.is_remote_code()
