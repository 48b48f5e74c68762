"""Padding, packing and causality."""

import pytest
import torch
from transformers import DynamicCache

from hf_seqmix.ops import batch_invariant
from hf_seqmix.ops.layout import TokenLayout, token_layout
from hf_seqmix.ops.packing import sequence_positions
from tests.models.suite.base import PADS, VOCAB, SuiteBase
from tests.tolerances import assert_close, relative_error


class PaddingTests(SuiteBase):
    """A row depends on nothing but its own text, and in causal models not on the text to come."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("side", PADS)
    @pytest.mark.one_in(2)
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

    @pytest.mark.parametrize("side", PADS)
    def test_the_loss_of_padded_rows_is_that_of_rows_alone(self, is_causal, side):
        if not is_causal:
            pytest.skip("a masked language model predicts no next token")
        model, mask = self.make("ForCausalLM", is_causal), torch.tensor(PADS[side])
        ids = torch.randint(VOCAB, mask.shape)
        rows = [row[real][None] for row, real in zip(ids, mask.bool(), strict=True)]
        counts = [row.shape[1] - 1 for row in rows]
        labels = ids.masked_fill(mask == 0, -100)
        for call in ({}, {"skip_logits": True}):
            losses = [model(row, labels=row, **call).loss * count for row, count in zip(rows, counts, strict=True)]
            padded = model(ids, attention_mask=mask, labels=labels, **call).loss
            assert_close(padded, sum(losses) / sum(counts))

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

    def test_pads_within_a_packed_row_take_no_place(self, is_causal):
        model = self.make("Model", is_causal)
        mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1], [1] * 11 + [0]]).bool()
        numbers = torch.tensor([[0] * 6 + [1] * 6, [0] * 4 + [1] * 4 + [2] * 4])
        numbers[0, 3] = 7  # of any value at pads
        ids = torch.randint(VOCAB, mask.shape)
        out = model(ids, attention_mask=mask.long(), seq_idx=numbers, use_cache=False)[0]
        for row, number in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
            own = mask[row] & (numbers[row] == number)
            assert_close(out[row][own], model(ids[row][own][None], use_cache=False)[0][0])
        if is_causal:  # a token to predict after a pad is predicted by the last real token
            assert torch.equal(out[[0, 0, 0, 1], [3, 9, 10, 11]], out[[0, 0, 0, 1], [2, 8, 8, 10]])

    def test_layers_take_the_boundaries_of_packed_sequences_as_data(self, is_causal):
        """What a graph does, which cannot look whether there are any; in one, nothing else is done."""
        model = self.make("Model", is_causal)
        ids = torch.tensor([[0] * 5 + [1] + [2] * 6, [4] * 12])
        for pads in (None, torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1], [0] + [1] * 11]).bool()):
            eager = token_layout(pads, 2, 12, seq_idx=ids)
            real = torch.ones(2, 12, dtype=torch.bool) if pads is None else pads
            positions = sequence_positions(ids, pads)
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
