"""The tests that every family passes: a subclass of `ModelSuite` names a family and makes its configurations."""

import copy
import pickle
import re
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.masking_utils import create_masks_for_generate

from hf_seqmix import Family, SeqMixConfig
from hf_seqmix._compat import attends
from hf_seqmix.models.auto import AUTO_CLASSES
from hf_seqmix.models.mixers import WeighingMixer
from hf_seqmix.ops import batch_invariant
from hf_seqmix.ops.layout import TokenLayout, token_layout
from hf_seqmix.ops.packing import sequence_positions
from tests.tolerances import MODEL_TOLERANCE, assert_close, relative_error

VOCAB = 61
PADS = {
    "left": [[0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0]],
    "inside": [[1, 1, 0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1, 1, 1, 0]],
}


def perturb(model: nn.Module, scale: float = 0.1) -> nn.Module:
    """Move every parameter away from where initialization put it: zero biases hide what leaks through pads."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def library_reset_forgets() -> bool:
    """Return whether the library's growing layers are empty after a reset; older releases keep their length."""
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    cache.reset()
    return cache.get_seq_length() == 0


class _Nothing:
    """A forward hook that does nothing and, like a partial, has no name."""

    def __call__(self, *_: Any) -> None:
        return None


class ModelSuite:
    """What holds for each family, in both directions it supports."""

    family: Family
    directions: tuple[bool, ...] = (True, False)

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        raise AssertionError("a suite says how its configurations are made")

    # -- helpers ---------------------------------------------------------------------------------------------------

    def head_names(self, is_causal: bool) -> list[str]:
        left_out = "ForMaskedLM" if is_causal else "ForCausalLM"
        return [suffix for suffix in self.family.classes if suffix != left_out]

    def heads(self) -> list[tuple[str, bool]]:
        return [(name, is_causal) for is_causal in self.directions for name in self.head_names(is_causal)]

    def takes_images(self, suffix: str) -> bool:
        return self.family.classes[suffix].main_input_name == "pixel_values"

    def head_config(self, suffix: str, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        """A configuration with what a head asks for: one for images names their size."""
        image = {"image_size": [6, 4], "patch_size": 2, "num_channels": 1} if self.takes_images(suffix) else {}
        return self.config(is_causal, **{**image, **kwargs})

    def make(
        self, suffix: str = "Model", is_causal: bool = True, dtype: torch.dtype = torch.float64, **kwargs: Any
    ) -> PreTrainedModel:
        model = perturb(self.family.classes[suffix](self.head_config(suffix, is_causal, **kwargs)))
        return model.to(dtype).eval()

    def batch(self, suffix: str, rows: int = 2, length: int = 9) -> dict[str, Tensor]:
        """Inputs and labels that a head can be trained on."""
        if self.takes_images(suffix):
            return {"pixel_values": torch.randn(rows, 1, 6, 4), "labels": torch.arange(rows) % 2}
        inputs = {"input_ids": torch.randint(VOCAB, (rows, length))}
        if suffix in ("ForCausalLM", "ForMaskedLM"):
            inputs["labels"] = inputs["input_ids"].clone()
        elif suffix == "ForSequenceClassification":
            inputs["labels"] = torch.arange(rows) % 2
        elif suffix == "ForTokenClassification":
            inputs["labels"] = inputs["input_ids"] % 2
        elif suffix == "ForQuestionAnswering":
            inputs["start_positions"] = torch.arange(rows) % length
            inputs["end_positions"] = (torch.arange(rows) + 1) % length
        return inputs

    @pytest.fixture(params=[True, False], ids=["causal", "bidirectional"])
    def is_causal(self, request: pytest.FixtureRequest) -> bool:
        if request.param not in self.directions:
            with pytest.raises(ValueError, match="is_causal"):
                self.config(request.param)
            pytest.skip("this direction is refused, as just checked")
        return request.param

    # -- loading and saving ----------------------------------------------------------------------------------------

    def test_every_head_is_registered_and_comes_back_bit_equal(self, tmp_path, recwarn):
        for suffix, is_causal in self.heads():
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

    # -- padding, packing, causality -------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("side", PADS)
    def test_a_padded_row_equals_the_row_alone(self, is_causal, side, dtype):
        mask = torch.tensor(PADS[side])
        ids = torch.randint(VOCAB, mask.shape)
        for norm_position in ("pre", "post"):
            model = self.make("Model", is_causal, dtype, norm_position=norm_position)
            # With a cache, the history has to be kept free of pads, too.
            for use_cache in {False, is_causal}:
                out = model(ids, attention_mask=mask, use_cache=use_cache).last_hidden_state
                for row in range(2):
                    real = mask[row].bool()
                    alone = model(ids[row][real][None], use_cache=False).last_hidden_state[0]
                    assert_close(out[row][real], alone)

    def test_what_stands_at_pads_does_not_matter(self, is_causal):
        model = self.make("Model", is_causal)
        for mask in (torch.tensor(pads) for pads in PADS.values()):
            ids = torch.randint(VOCAB, mask.shape)
            other = torch.where(mask.bool(), ids, torch.randint(VOCAB, mask.shape))
            real = mask.bool()
            assert_close(model(other, mask)[0][real], model(ids, mask)[0][real])

    def test_not_even_nan_at_pads_matters(self, is_causal):
        model = self.make("Model", is_causal)
        for mask in (torch.tensor(pads) for pads in PADS.values()):
            embeds = model.get_input_embeddings()(torch.randint(VOCAB, mask.shape)).detach()
            real = mask.bool()
            expected = model(inputs_embeds=embeds, attention_mask=mask)[0][real]
            embeds = embeds.masked_fill(~real.unsqueeze(-1), float("nan"))
            assert_close(model(inputs_embeds=embeds, attention_mask=mask)[0][real], expected)

    def test_empty_inputs(self, is_causal):
        model = self.make("Model", is_causal)
        for shape in ((2, 0), (0, 3)):
            out = model(torch.zeros(shape, dtype=torch.long), use_cache=False)
            assert out.last_hidden_state.shape == (*shape, model.config.hidden_size)

    def test_neighbors_in_the_batch_do_not_matter(self, is_causal):
        model = self.make("Model", is_causal)
        ids = torch.randint(VOCAB, (3, 9))
        out = model(ids)[0]
        assert_close(model(ids[[2, 0]])[0], out[[2, 0]])
        assert_close(model(ids[1:2])[0], out[1:2])

    @pytest.mark.parametrize("kind", ["position_ids", "cu_seq_lens_q", "seq_idx"])
    def test_packed_sequences_equal_each_alone(self, is_causal, kind):
        model = self.make("Model", is_causal)
        ids = torch.randint(VOCAB, (1, 12))
        lengths = (5, 1, 6)
        boundaries = {
            "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
            "cu_seq_lens_q": torch.tensor([0, 5, 6, 12], dtype=torch.int32),
            "seq_idx": torch.tensor([[0] * 5 + [1] + [2] * 6], dtype=torch.int32),
        }
        out = model(ids, **{kind: boundaries[kind]}).last_hidden_state
        expected = torch.cat([model(part)[0] for part in ids.split(lengths, dim=1)], dim=1)
        assert_close(out, expected)

    def test_in_a_fixed_order_nothing_but_the_text_matters(self, is_causal):
        """Batch, pads, packing and, with a cache, chunks and steps: equal to the last bit."""
        # 33 tokens, and 18 channels in places, leave an end to vectorized functions and tiles of rows.
        model = self.make("ForCausalLM" if is_causal else "ForMaskedLM", is_causal, torch.float32)
        call = {"use_cache": False} if is_causal else {}
        ids, lengths = torch.randint(VOCAB, (3, 33)), [33, 1, 14]
        parts = [row[:n] for row, n in zip(ids, lengths, strict=True)]
        with torch.no_grad(), batch_invariant():
            alone = [model(part[None], **call).logits[0] for part in parts]
            whole = torch.cat([model(row[None], **call).logits for row in ids])
            assert torch.equal(model(ids, **call).logits, whole)
            for side in ("left", "right", "inside"):
                mask = torch.zeros_like(ids)
                for row, n in enumerate(lengths):
                    place = {"left": slice(33 - n, 33), "right": slice(0, n), "inside": slice(0, 2 * n, 2)}[side]
                    mask[row, place if n < 33 else slice(None)] = 1
                padded = torch.zeros_like(ids).masked_scatter(mask.bool(), torch.cat(parts))
                logits = model(padded, mask, **call).logits
                for row, expected in enumerate(alone):
                    assert torch.equal(logits[row][mask[row].bool()], expected), (side, row)
            positions = torch.cat([torch.arange(n) for n in lengths])[None]
            packed = model(torch.cat(parts)[None], position_ids=positions, **call).logits[0]
            assert torch.equal(packed, torch.cat(alone))
            for sizes in ([20, 13], [1] * 33) if is_causal else ():
                assert torch.equal(
                    self.in_chunks(model, ids, None, sizes, DynamicCache(config=model.config)), whole
                ), sizes

    def test_layers_take_the_boundaries_of_packed_sequences_as_data(self, is_causal):
        """What a graph does, which cannot look whether there are any; in one, nothing else is done."""
        model = self.make("Model", is_causal)
        ids = torch.tensor([[0] * 5 + [1] + [2] * 6, [4] * 12])
        for pads in (None, torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1], [0] + [1] * 11]).bool()):
            eager = token_layout(pads, 2, 12, seq_idx=ids)
            real = torch.ones(2, 12, dtype=torch.bool) if pads is None else pads
            positions = sequence_positions(ids)
            for layer in model.layers:
                values = torch.randn(2, 12, model.config.hidden_size, dtype=torch.float64)
                found = []
                for layout in (eager, TokenLayout(eager.mask, eager.key_mask, eager.sequence_ids)):
                    leaf = values.clone().requires_grad_()
                    y = layer.mixer(leaf, attention_mask=layout, position_ids=positions)[real]
                    parameters = [p for p in layer.mixer.parameters() if p.requires_grad]
                    found.append(
                        (y, *torch.autograd.grad(y.square().sum(), [leaf, *parameters], materialize_grads=True))
                    )
                for actual, expected in zip(*reversed(found), strict=True):
                    torch.testing.assert_close(actual, expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_the_future_does_not_reach_the_past(self, is_causal, dtype):
        model = self.make("Model", is_causal, dtype)
        ids = torch.randint(VOCAB, (2, 40))
        changed = ids.clone()
        changed[:, 25] = (changed[:, 25] + 1) % VOCAB
        before, after = model(ids)[0], model(changed)[0]
        if is_causal:
            assert_close(after[:, :25], before[:, :25])
        else:
            assert relative_error(after[:, :25], before[:, :25]) > 1e-4
        assert relative_error(after[:, 25:], before[:, 25:]) > 1e-4

    # -- caches ----------------------------------------------------------------------------------------------------

    def in_chunks(
        self, model: PreTrainedModel, ids: Tensor, mask: Tensor | None, sizes: list[int], cache: Any
    ) -> Tensor:
        parts, past = [], 0
        for size in sizes:
            seen = None if mask is None else mask[:, : past + size]
            parts.append(model(ids[:, past : past + size], seen, past_key_values=cache, use_cache=True).logits)
            past += size
        return torch.cat(parts, dim=1)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("sizes", [[9], [4, 5], [1] * 9, [3, 1, 1, 4], [2, 6, 1]], ids=str)
    def test_cached_chunked_and_full_logits_agree(self, sizes, dtype):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM", True, dtype)
        bound = MODEL_TOLERANCE[dtype]
        for pads in (None, *PADS.values()):
            mask = None if pads is None else torch.tensor(pads)
            real = torch.ones(2, 9, dtype=torch.bool) if mask is None else mask.bool()
            ids = torch.randint(VOCAB, (2, 9))
            full = model(ids, mask, use_cache=False).logits
            for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=14)):
                chunked = self.in_chunks(model, ids, mask, sizes, cache)
                assert relative_error(chunked[real], full[real]) < bound, (pads, type(cache).__name__)

    def test_several_tokens_at_once_join_a_preallocated_cache(self):
        """With the prepared mask of the last, as the library's exporters merge steps of decoding."""
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids, mask = torch.randint(VOCAB, (2, 9)), torch.tensor(PADS["left"])
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = StaticCache(model.config, max_cache_len=14)

        def prepared(start: int, stop: int) -> dict[str, Tensor | None]:
            embeds = model.get_input_embeddings()(ids[:, start:stop])
            return create_masks_for_generate(
                model.config, embeds, mask[:, :stop], cache, position_ids=places[:, start:stop]
            )

        model(ids[:, :6], prepared(0, 6), places[:, :6], past_key_values=cache, use_cache=True)
        masks, last = prepared(6, 9), prepared(8, 9)
        merged = {name: x if x is None or x.ndim == 4 else last[name] for name, x in masks.items()}
        actual = model(ids[:, 6:], merged, places[:, 6:], past_key_values=cache, use_cache=True).logits
        assert_close(actual, model(ids, mask).logits[:, 6:])

    @pytest.mark.parametrize("pads", ["left", "inside"])
    def test_masks_of_this_calls_tokens_alone(self, pads):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        # On the left, the later thirds have no pads: only the history does.
        ids, mask = torch.randint(VOCAB, (2, 9)), torch.tensor(PADS[pads])
        cache = DynamicCache(config=model.config)

        def in_thirds() -> Tensor:
            thirds = zip(ids.split(3, 1), mask.split(3, 1), strict=True)
            return torch.cat([model(i, m, past_key_values=cache, use_cache=True).logits for i, m in thirds], 1)

        if any(map(attends, model.config.layer_types)):
            with pytest.raises(ValueError, match="give a mask of 6 columns"):
                in_thirds()
        else:
            real = mask.bool()
            assert_close(in_thirds()[real], model(ids, mask).logits[real])

    def test_a_cropped_cache_continues_as_if_nothing_had_been(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (2, 12))
        cache = DynamicCache(config=model.config)
        model(ids[:, :9], past_key_values=cache, use_cache=True)
        cache.crop(-3)
        actual = model(ids[:, 6:], past_key_values=cache, use_cache=True).logits
        assert_close(actual, model(ids).logits[:, 6:])

    def test_a_reset_cache_forgets_the_weights_too(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no cache")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (2, 9))
        caches: list[Any] = [StaticCache(model.config, max_cache_len=14)]
        if "full_attention" not in model.config.layer_types or library_reset_forgets():
            caches.append(DynamicCache(config=model.config))
        for cache in caches:
            model(ids, past_key_values=cache, use_cache=True)
            perturb(model)
            cache.reset()
            assert_close(model(ids, past_key_values=cache, use_cache=True).logits, model(ids).logits)

    def test_the_cache_is_returned_only_where_it_makes_sense(self, is_causal):
        model = self.make("Model", is_causal)
        ids = torch.randint(VOCAB, (1, 5))
        assert (model(ids).past_key_values is not None) == is_causal
        assert model(ids, use_cache=False).past_key_values is None
        assert model(ids, position_ids=torch.tensor([[0, 1, 0, 1, 2]])).past_key_values is None
        assert model.train()(ids).past_key_values is None
        if not is_causal:
            with pytest.raises(ValueError, match="bidirectional"):
                model(ids, past_key_values=DynamicCache(config=model.config))

    # -- generation ------------------------------------------------------------------------------------------------

    @pytest.fixture
    def generator(self) -> PreTrainedModel:
        if True not in self.directions:
            pytest.skip("a bidirectional family does not generate")
        model = self.make("ForCausalLM", True, torch.float64, pad_token_id=0, max_position_embeddings=16)
        # Sharpened, so that a wrong cache changes the choice of tokens.
        model.lm_head.weight.data.mul_(8.0)
        return model

    MODES = {
        "greedy": {},
        "sample": {"do_sample": True, "top_k": 20},
        "beam": {"num_beams": 3},
        "beam sample": {"num_beams": 2, "do_sample": True, "num_return_sequences": 2},
        "contrast of temperatures": {"do_sample": True, "temperature": 0.3},
    }

    @pytest.mark.parametrize("mode", MODES)
    def test_generation_with_and_without_cache(self, generator, mode):
        mask = torch.tensor(PADS["left"])
        ids = torch.randint(1, VOCAB, mask.shape) * mask
        outputs = []
        for kwargs in (
            {"use_cache": False},
            {"use_cache": True},
            {"cache_implementation": "static", "disable_compile": True},
        ):
            torch.manual_seed(5)
            outputs.append(
                generator.generate(ids, attention_mask=mask, max_new_tokens=18, **self.MODES[mode], **kwargs)
            )
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0], outputs[2])
        assert outputs[0].shape[1] == 27  # past max_position_embeddings
        assert len(outputs[0].unique()) > 5

    def test_generation_in_a_left_padded_batch_equals_each_row_alone(self, generator):
        mask = torch.tensor(PADS["left"])
        ids = torch.randint(1, VOCAB, mask.shape) * mask
        together = generator.generate(ids, attention_mask=mask, max_new_tokens=10)
        for row in range(2):
            alone = generator.generate(ids[row][mask[row].bool()][None], max_new_tokens=10)
            assert torch.equal(together[row, 9:], alone[0, -10:])

    PATHS = {
        "cache": {},
        "no cache": {"use_cache": False},
        "chunks": {"prefill_chunk_size": 2},
        "preallocated": {"cache_implementation": "static", "disable_compile": True},
        "preallocated, chunks": {"cache_implementation": "static", "disable_compile": True, "prefill_chunk_size": 3},
        "prompt lookup": {"prompt_lookup_num_tokens": 3},
    }

    @pytest.mark.parametrize("side", ["right", "inside"])
    def test_a_prompt_that_ends_in_pads_is_continued_as_the_prompt_alone(self, generator, side):
        """By every path of `generate`, with the same logits."""
        mask = torch.tensor(PADS[side])
        ids = torch.randint(1, VOCAB, mask.shape) * mask
        settings = {"max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
        rows = [ids[row][mask[row].bool()][None] for row in range(2)]
        alone = [generator.generate(row, use_cache=False, **settings) for row in rows]
        for path, kwargs in self.PATHS.items():
            last = 1 if path == "prompt lookup" else 2  # which takes one row at a time
            actual = generator.generate(ids[:last], attention_mask=mask[:last], **settings, **kwargs)
            assert torch.equal(actual.sequences[:, :9], ids[:last]), path
            for row in range(last):
                assert torch.equal(actual.sequences[row, 9:], alone[row].sequences[0, -6:]), path
                for step in range(6):
                    assert_close(actual.logits[step][row], alone[row].logits[step][0])

    @pytest.mark.parametrize("chunk", [1, 4])
    @pytest.mark.parametrize("implementation", ["dynamic", "static"])
    def test_generation_after_a_prefill_in_chunks(self, generator, chunk, implementation):
        mask = torch.tensor(PADS["left"])
        ids = torch.randint(1, VOCAB, mask.shape) * mask
        expected = generator.generate(ids, attention_mask=mask, max_new_tokens=8, use_cache=False)
        actual = generator.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=8,
            prefill_chunk_size=chunk,
            cache_implementation=implementation,
            disable_compile=True,
        )
        assert torch.equal(actual, expected)

    @pytest.mark.parametrize("how", ["assistant", "prompt lookup"])
    def test_assisted_generation_equals_plain_generation(self, generator, how):
        ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
        if how == "assistant":
            assistant = copy.deepcopy(generator)
            perturb(assistant, 0.02)
            kwargs = {"assistant_model": assistant}
        else:
            kwargs = {"prompt_lookup_num_tokens": 3}
        expected = generator.generate(ids, max_new_tokens=16)
        assert torch.equal(generator.generate(ids, max_new_tokens=16, **kwargs), expected)

    def test_generation_from_one_token(self, generator):
        ids = torch.tensor([[7]])
        expected = generator.generate(ids, max_new_tokens=6, use_cache=False)
        assert torch.equal(generator.generate(ids, max_new_tokens=6), expected)

    def test_generation_continues_a_cache(self, generator):
        ids = torch.randint(1, VOCAB, (1, 5))
        first = generator.generate(ids, max_new_tokens=4, return_dict_in_generate=True)
        more = generator.generate(first.sequences, past_key_values=first.past_key_values, max_new_tokens=5)
        assert torch.equal(more, generator.generate(ids, max_new_tokens=9))

    def test_turns_of_uneven_lengths_continue_a_cache(self, generator):
        mask, text, cache = torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), None
        for turn in map(torch.tensor, PADS.values()):
            text = torch.cat([text, torch.randint(1, VOCAB, turn.shape) * turn], dim=1)
            mask = torch.cat([mask, turn], dim=1)
            settings = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
            expected = generator.generate(text, attention_mask=mask, use_cache=False, **settings)
            out = generator.generate(text, attention_mask=mask, past_key_values=cache, **settings)
            assert_close(torch.stack(out.logits), torch.stack(expected.logits))
            text, cache = out.sequences, out.past_key_values
            mask = torch.cat([mask, mask.new_ones(2, 2)], dim=1)

    def test_generation_from_embeddings(self, generator):
        ids = torch.randint(1, VOCAB, (1, 5))
        embeds = generator.get_input_embeddings()(ids)
        actual = generator.generate(inputs_embeds=embeds, max_new_tokens=6)
        assert torch.equal(actual, generator.generate(ids, max_new_tokens=6)[:, 5:])

    # -- outputs and arguments -------------------------------------------------------------------------------------

    def test_hidden_states(self, is_causal):
        model = self.make("Model", is_causal)
        out = model(**self.batch("Model"), output_hidden_states=True)
        assert len(out.hidden_states) == model.config.num_hidden_layers + 1
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
        as_tuple = model(**self.batch("Model"), output_hidden_states=True, return_dict=False)
        assert isinstance(as_tuple, tuple)

    def test_attentions(self, is_causal):
        for suffix in ("Model", *self.head_names(is_causal)):
            model, batch = self.make(suffix, is_causal), self.batch(suffix)
            depth, blocks = model.config.num_hidden_layers, model.base_model.layers
            weighing = [isinstance(blocks[i % len(blocks)].mixer, WeighingMixer) for i in range(depth)]
            if not any(weighing):
                with pytest.raises(ValueError, match="output_attentions is True, but the mixers of this model"):
                    model(**batch, output_attentions=True)
                continue
            out = model(**batch, output_attentions=True)
            assert len(out.attentions) == sum(weighing)
            assert_close(out[0], model(**batch)[0], factor=MODEL_TOLERANCE[torch.float64] / 1e-11)
            assert model(**batch).attentions is None

    def test_embeddings_instead_of_ids(self, is_causal):
        model = self.make("Model", is_causal)
        ids = self.batch("Model")["input_ids"]
        out = model(inputs_embeds=model.get_input_embeddings()(ids))
        assert torch.equal(out[0], model(ids)[0])
        for kwargs in ({}, {"input_ids": ids, "inputs_embeds": model.get_input_embeddings()(ids)}):
            with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
                model(**kwargs)

    def test_logits_to_keep(self):
        if True not in self.directions:
            pytest.skip("a bidirectional family has no causal language model")
        model = self.make("ForCausalLM")
        ids = torch.randint(VOCAB, (2, 9))
        full = model(ids).logits
        assert_close(model(ids, logits_to_keep=1).logits, full[:, -1:])
        assert_close(model(ids, logits_to_keep=4).logits, full[:, -4:])
        assert_close(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, full[:, [0, 5]])

    def test_resizing_and_tying_of_embeddings(self):
        for suffix, is_causal in self.heads():
            if suffix not in ("ForCausalLM", "ForMaskedLM"):
                continue
            model = self.make(suffix, is_causal)
            ids = torch.randint(VOCAB, (2, 9))
            before = model(ids).logits
            model.resize_token_embeddings(VOCAB + 5)
            assert model.lm_head.weight is model.get_input_embeddings().weight
            assert model.config.vocab_size == VOCAB + 5
            assert_close(model(ids).logits[..., :VOCAB], before)
            assert model(ids, labels=ids).loss.isfinite()
            untied = self.make(suffix, is_causal, tie_word_embeddings=False)
            assert untied.lm_head.weight is not untied.get_input_embeddings().weight

    def test_bad_arguments_are_refused_clearly(self, is_causal):
        model = self.make("Model", is_causal)
        ids = torch.randint(VOCAB, (2, 9))
        with pytest.raises(
            ValueError, match=f"input_ids run from 0 to {VOCAB}, but the vocabulary has ids 0 to {VOCAB - 1}"
        ):
            model(torch.tensor([[0, VOCAB]]))
        with pytest.raises(ValueError, match="input_ids run from -1"):
            model(torch.tensor([[0, -1]]))
        with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 8\)"):
            model(ids, attention_mask=torch.ones(2, 8))
        with pytest.raises(ValueError, match=r"must be \(batch, length\)"):
            model(ids[0])

    # -- training --------------------------------------------------------------------------------------------------

    def test_every_head_learns(self):
        for suffix, is_causal in self.heads():
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

    def test_the_auto_classes_know_the_family(self):
        config = self.config(self.directions[0])
        assert type(transformers.AutoConfig.for_model(config.model_type)) is self.family.config_class
        for suffix, is_causal in self.heads():
            model = AUTO_CLASSES[suffix].from_config(self.head_config(suffix, is_causal))
            assert type(model) is self.family.classes[suffix]
            assert not model.is_remote_code()


# By default each direction is compiled once: causal models in evaluation, with caches, the others in training.
FIRST_CAUSAL = [pytest.param(True, id="causal"), pytest.param(False, id="bidirectional", marks=pytest.mark.slow)]
FIRST_BOTH = [pytest.param(True, id="causal", marks=pytest.mark.slow), pytest.param(False, id="bidirectional")]


class CompiledModelSuite(ModelSuite):
    """The common tests and those of compiled and exported graphs, which take half of the time of all."""

    @pytest.mark.parametrize("is_causal", FIRST_CAUSAL, indirect=True)
    # Without a mask the graph is a part of this one.
    @pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
    def test_compiles_in_one_graph(self, is_causal, masked):
        """One graph without a mask, one for pads wherever they are, each with a cache and without."""
        torch._dynamo.reset()
        model = self.make("Model", is_causal)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for pads in PADS.values() if masked else [None]:
            mask = None if pads is None else torch.tensor(pads)
            ids = torch.randint(VOCAB, (2, 9))
            real = torch.ones(2, 9, dtype=torch.bool) if mask is None else mask.bool()
            expected = model(ids, attention_mask=mask, use_cache=False)[0][real]
            for use_cache in (False, None):  # by default a causal model builds a cache, within the graph
                assert_close(compiled(ids, attention_mask=mask, use_cache=use_cache)[0][real], expected)
        assert counter.frame_count <= 2

    @pytest.mark.slow  # by default tests/ecosystem/test_compile.py has graphs for all lengths, of three families
    @pytest.mark.parametrize("masked", [False, True])
    def test_compiles_at_most_twice_for_all_lengths(self, is_causal, masked):
        torch._dynamo.reset()
        model = self.make("Model", is_causal)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for length in (9, 11, 14, 20, 33):
            ids = torch.randint(VOCAB, (2, length))
            mask = torch.ones(2, length, dtype=torch.long) if masked else None
            if mask is not None:
                mask[0, 3:5] = mask[1, :2] = 0
            real = torch.ones(2, length, dtype=torch.bool) if mask is None else mask.bool()
            actual = compiled(ids, attention_mask=mask, use_cache=False)[0]
            assert_close(actual[real], model(ids, attention_mask=mask, use_cache=False)[0][real])
        assert counter.frame_count <= 2

    @pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
    def test_exports_with_any_length(self, is_causal, masked):
        model = self.make("Model", is_causal)

        def arguments(length: int) -> dict[str, Any]:
            ids = torch.randint(VOCAB, (2, length))
            mask = torch.ones(2, length, dtype=torch.long)
            mask[0, 1:3] = 0
            return {"input_ids": ids, "attention_mask": mask if masked else None, "use_cache": False}

        length = torch.export.Dim("length", min=2, max=4096)
        shapes = {"input_ids": {1: length}, "attention_mask": {1: length} if masked else None, "use_cache": None}
        program = torch.export.export(model, (), kwargs=arguments(12), dynamic_shapes=shapes)
        for n in (12, 5, 40):
            inputs = arguments(n)
            real = torch.ones(2, n, dtype=torch.bool) if not masked else inputs["attention_mask"].bool()
            assert_close(program.module()(**inputs)[0][real], model(**inputs)[0][real])

    def test_exports_with_positions(self, is_causal):
        """Whether positions restart is data of the program."""
        model = self.make("Model", is_causal)

        def arguments(positions: list[int]) -> dict[str, Any]:
            ids = torch.randint(VOCAB, (2, len(positions)))
            return {"input_ids": ids, "position_ids": torch.tensor([positions]), "use_cache": False}

        length = torch.export.Dim("length", min=2, max=4096)
        shapes = {"input_ids": {1: length}, "position_ids": {1: length}, "use_cache": None}
        program = torch.export.export(model, (), arguments(list(range(7))), strict=False, dynamic_shapes=shapes)
        for positions in (list(range(7)), [0, 1, 2, 0, 0, 1, 2, 3, 4]):
            inputs = arguments(positions)
            assert_close(program.module()(**inputs)[0], model(**inputs)[0])

    @pytest.mark.parametrize("static", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_the_librarys_exporter_takes_both_stages_of_generation(self, static):
        if True not in self.directions:
            pytest.skip("a bidirectional family does not generate")
        exporters = pytest.importorskip("transformers.exporters")
        from transformers.exporters.utils import decompose_for_generation

        try:
            exporter = exporters.DynamoExporter()
        except ImportError as error:
            pytest.skip(str(error))
        model = self.make("ForCausalLM", pad_token_id=0)
        mask = torch.tensor(PADS["left"])
        inputs = {"input_ids": torch.randint(1, VOCAB, mask.shape) * mask, "attention_mask": mask}
        cache = {"cache_implementation": "static", "max_length": 16} if static else {}
        how = {
            "generation_config": transformers.GenerationConfig(pad_token_id=0, **cache),
            "multi_token_decode": static,
        }
        config = exporters.DynamoConfig(dynamic=static)
        programs = exporter.export_for_generation(model, inputs, config, **how).components
        stages = decompose_for_generation(model, inputs, **how)
        assert list(programs) == list(stages) == ["prefill", "decode"]
        for name, (module, given) in stages.items():
            expected = module(**copy.deepcopy(given)).logits
            tensors = {key: value for key, value in given.items() if key not in ("use_cache", "return_dict")}
            actual = programs[name].program.module()(**tensors).logits
            real = mask.bool() if name == "prefill" else torch.ones(expected.shape[:2], dtype=torch.bool)
            assert_close(actual[real], expected[real])

    @pytest.mark.slow
    def test_compiles_packed_rows(self, is_causal):
        """In one graph for all lengths, forward and backward."""
        torch._dynamo.reset()
        model = self.make("Model", is_causal)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for positions in ([0, 1, 0, 1, 2, 3, 4, 0, 1], list(range(7)), [0, 1, 2, 0, 1]):
            ids, given = torch.randint(VOCAB, (2, len(positions))), torch.tensor([positions])
            gradients = []
            for function in (model, compiled):
                model.zero_grad()
                y = function(ids, position_ids=given)[0]
                y.square().mean().backward()
                gradients.append((y, *(p.grad for p in model.parameters() if p.grad is not None)))
            for actual, expected in zip(*reversed(gradients), strict=True):
                torch.testing.assert_close(actual, expected)
        assert counter.frame_count <= 2

    @pytest.mark.parametrize("is_causal", FIRST_BOTH, indirect=True)
    def test_a_compiled_training_step_has_the_same_gradients(self, is_causal):
        torch._dynamo.reset()
        batch = self.batch("ForTokenClassification")
        model = self.make("ForTokenClassification", is_causal, hidden_dropout=0.0).train()
        model(**batch).loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        torch.compile(model, backend="aot_eager", fullgraph=True)(**batch).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)
