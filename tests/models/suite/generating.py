"""Every mode and path of `generate`."""

import copy

import pytest
import torch
from transformers import PreTrainedModel

from hf_seqmix._compat import CACHE_NAME
from tests.models.suite.base import PADS, VOCAB, SuiteBase, perturb
from tests.tolerances import assert_close


class GeneratingTests(SuiteBase):
    """`generate` writes the same with every cache, padded or not."""

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

    # Mixers know nothing of how tokens are drawn: by default rows change their places.
    @pytest.mark.parametrize(
        "mode", [pytest.param(mode, marks=[] if mode == "beam" else pytest.mark.slow) for mode in MODES]
    )
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
        "early exit": {"assistant_early_exit": 1},
    }

    @pytest.mark.parametrize("side", ["right", "inside"])
    def test_a_prompt_that_ends_in_pads_is_continued_as_the_prompt_alone(self, generator, side):
        """By every path of `generate`, with the same logits."""
        mask = torch.tensor(PADS[side])
        ids = torch.randint(1, VOCAB, mask.shape) * mask
        settings = {"max_new_tokens": 6, "output_logits": True, "return_dict_in_generate": True}
        rows = [ids[row][mask[row].bool()][None] for row in range(2)]
        alone = [generator.generate(row, use_cache=False, **settings) for row in rows]
        # One whose first token is not taken goes back into the prompt: it drafts the neighbor of what is chosen.
        assistant = copy.deepcopy(generator)
        assistant.lm_head.weight = torch.nn.Parameter(generator.lm_head.weight.roll(1, 0))
        for path, kwargs in {**self.PATHS, "assistant": {"assistant_model": assistant}}.items():
            one_row = path in ("prompt lookup", "early exit", "assistant")
            for some in (slice(0, 1), slice(1, 2)) if one_row else (slice(0, 2),):
                actual = generator.generate(ids[some], attention_mask=mask[some], **settings, **kwargs)
                assert torch.equal(actual.sequences[:, :9], ids[some]), path
                for place, expected in enumerate(alone[some]):
                    assert torch.equal(actual.sequences[place, 9:], expected.sequences[0, -6:]), path
                    for step in range(6):
                        assert_close(actual.logits[step][place], expected.logits[step][0])

    @pytest.mark.parametrize("chunk", [1, 4])
    @pytest.mark.parametrize("implementation", ["dynamic", "static"])
    @pytest.mark.one_in(2)
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

    @pytest.mark.parametrize("how", ["assistant", "prompt lookup", "early exit"])
    def test_assisted_generation_equals_plain_generation(self, generator, how):
        ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
        depth = generator.config.num_hidden_layers
        if how == "assistant":
            assistant = copy.deepcopy(generator)
            perturb(assistant, 0.02)
            kwargs = {"assistant_model": assistant}
        else:
            kwargs = {"prompt_lookup_num_tokens": 3} if how == "prompt lookup" else {"assistant_early_exit": 1}
        expected = generator.generate(ids, max_new_tokens=16)
        assert torch.equal(generator.generate(ids, max_new_tokens=16, **kwargs), expected)
        assert generator.config.num_hidden_layers == depth

    def test_generation_from_one_token(self, generator):
        ids = torch.tensor([[7]])
        expected = generator.generate(ids, max_new_tokens=6, use_cache=False)
        assert torch.equal(generator.generate(ids, max_new_tokens=6), expected)

    def test_generation_continues_a_cache(self, generator):
        ids = torch.randint(1, VOCAB, (1, 5))
        first = generator.generate(ids, max_new_tokens=4, return_dict_in_generate=True)
        more = generator.generate(first.sequences, **{CACHE_NAME: getattr(first, CACHE_NAME)}, max_new_tokens=5)
        assert torch.equal(more, generator.generate(ids, max_new_tokens=9))

    def test_turns_of_uneven_lengths_continue_a_cache(self, generator):
        mask, text, cache = torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), None
        for turn in map(torch.tensor, PADS.values()):
            text = torch.cat([text, torch.randint(1, VOCAB, turn.shape) * turn], dim=1)
            mask = torch.cat([mask, turn], dim=1)
            settings = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
            expected = generator.generate(text, attention_mask=mask, use_cache=False, **settings)
            out = generator.generate(text, attention_mask=mask, **{CACHE_NAME: cache}, **settings)
            assert_close(torch.stack(out.logits), torch.stack(expected.logits))
            text, cache = out.sequences, getattr(out, CACHE_NAME)
            mask = torch.cat([mask, mask.new_ones(2, 2)], dim=1)

    def test_generation_from_embeddings(self, generator):
        ids = torch.randint(1, VOCAB, (1, 5))
        embeds = generator.get_input_embeddings()(ids)
        actual = generator.generate(inputs_embeds=embeds, max_new_tokens=6)
        assert torch.equal(actual, generator.generate(ids, max_new_tokens=6)[:, 5:])
