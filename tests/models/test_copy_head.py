"""The copy head alone, and in the models of every family: what it predicts, and what caches keep for it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, StaticCache

from hf_seqmix import (
    PolyTransformerConfig,
    PolyTransformerForCausalLM,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix.cache import Pairs, StaticPairs, pairs_of
from hf_seqmix.models.copy_head import CopyHead
from hf_seqmix.models.recent_tokens import sum_of_parts
from hf_seqmix.ops.layout import TokenLayout, token_layout
from tests.largest import Largest
from tests.models.copying import Copying
from tests.models.fd_tnn import test_modeling_fd_tnn as fd_tnn
from tests.models.hybrid import test_modeling_hybrid as hybrid
from tests.models.poly_transformer import test_modeling_poly_transformer as poly_transformer
from tests.models.suite import PADS, perturb
from tests.models.tnn import test_modeling_tnn as tnn
from tests.tolerances import MODEL_TOLERANCE, assert_close, relative_error

VOCAB = 7


FORMS = [{}, {"copy_head_tokens": 2}, {"copy_head_tokens": 3, "copy_head_state": True}]
"""The token alone, the last two, and the last three with the hidden state."""


def parts(
    channels: int = 6, rank: int = 3, tokens: int = 1, with_state: bool = False
) -> tuple[CopyHead, nn.Embedding, nn.Linear]:
    head = CopyHead(channels, rank, tokens, with_state).double()
    if with_state:
        nn.init.constant_(head.score_gate, 0.7)
    return head, nn.Embedding(VOCAB, channels).double(), nn.Linear(channels, VOCAB).double()


def run(modules: tuple[CopyHead, nn.Embedding, nn.Linear], ids: Tensor, states: Tensor, layout: TokenLayout) -> Tensor:
    return ask(modules, ids, states, layout, None, 0)


def ask(
    modules: tuple[CopyHead, nn.Embedding, nn.Linear],
    ids: Tensor,
    states: Tensor,
    layout: TokenLayout,
    pairs: Any,
    past: int,
) -> Tensor:
    """Log p after each of `ids`, which follow `past` tokens that `pairs` holds."""
    head, embed, lm_head = modules
    recent = head.recent(ids, layout, pairs)
    embeddings = torch.where((recent.ids < 0).unsqueeze(-1), 0, embed(recent.ids.clamp(min=0)))
    keys, copied = head.keys(recent, embeddings, layout, pairs)
    places = torch.arange(ids.shape[1]) + past
    packed = None if layout.sequence_ids is None else (layout.sequence_ids, layout.sequence_ids)
    queries = sum_of_parts(head.q_proj(embeddings), recent.slots[..., : head.tokens])
    return head(states, queries, places, keys, copied, lm_head, VOCAB, packed)


def test_pairs_skip_pads_and_stay_in_their_sequence():
    ids = torch.tensor([[5, 3, 0, 4, 6]])
    masked = token_layout(torch.tensor([[1, 1, 0, 1, 1]]), 1, 5)
    packed = token_layout(None, 1, 5, position_ids=torch.tensor([[0, 1, 0, 1, 2]]))
    modules, states = parts(), torch.zeros(1, 5, 6, dtype=torch.float64)
    for layout, expected in (
        (TokenLayout(), [[-1, 5], [3, 3], [0, 0], [4, 4], [6, 6]]),
        (masked, [[-1, 5], [3, 3], [-1, -1], [4, 4], [6, 6]]),
        (packed, [[-1, 5], [3, 3], [-1, 0], [4, 4], [6, 6]]),
    ):
        pairs = Pairs()
        ask(modules, ids, states, layout, pairs, 0)
        assert pairs.values[0, 0].tolist() == expected
    ask(modules, ids, states, TokenLayout(), pairs, 5)
    assert pairs.values[0, 0, 5:, 0].tolist() == [5, 3, 0, 4, 6]  # the first follows the last of the call before


def test_an_open_gate_copies_what_followed():
    """After a b c a the token b, whose predecessor is the same token, gets all of the probability."""
    head, embed, lm_head = parts(VOCAB, VOCAB)
    embed.weight.data = torch.eye(VOCAB).double()
    for projection in (head.q_proj, head.k_proj):
        projection.weight.data = 30 * torch.eye(VOCAB).double()
    head.gate_proj.weight.data.fill_(1e3)
    ids = torch.tensor([[1, 2, 3, 1]])
    states = torch.full((1, 4, VOCAB), 1.0, dtype=torch.float64)
    out = run((head, embed, lm_head), ids, states, TokenLayout())
    assert_close(out.exp().sum(-1), torch.ones(1, 4, dtype=torch.float64))
    assert out[0, 3].argmax().item() == 2 and out[0, 3, 2].exp().item() > 0.999
    # The first has nothing to copy.
    assert_close(out[0, 0], lm_head(states)[0, 0].log_softmax(-1))


def test_a_state_asks_for_what_it_expects_and_the_gate_for_what_matches():
    """Of the tokens that followed earlier ones the state chooses, and a gate that sees high scores opens."""
    head, embed, lm_head = parts(VOCAB, VOCAB, with_state=True)
    embed.weight.data = torch.eye(VOCAB).double()
    head.q_proj.weight.data.zero_()
    head.state_proj.weight.data = 30 * torch.eye(VOCAB).double()
    head.k_proj.weight.data = torch.cat([torch.zeros(VOCAB, VOCAB), torch.eye(VOCAB)]).double()
    head.gate_proj.weight.data.zero_()
    ids = torch.tensor([[1, 2, 3, 1]])
    states = 2 * torch.eye(VOCAB, dtype=torch.float64)[torch.tensor([[0, 0, 0, 3]])]
    probabilities = []
    for gate in (-1.0, 0.0, 1.0):
        nn.init.constant_(head.score_gate, gate)
        probabilities.append(run((head, embed, lm_head), ids, states, TokenLayout())[0, 3, 3].exp().item())
    assert probabilities[0] < 0.5 < 0.999 < probabilities[2]
    assert probabilities[0] < probabilities[1] < probabilities[2]


@pytest.mark.parametrize("memory", [1, 400])
@pytest.mark.parametrize("form", [{}, {"channels": 4, "tokens": 2, "with_state": True}], ids=str)
def test_blocks_are_the_whole_and_smaller(monkeypatch, form, memory):
    modules, ids = parts(**form), torch.randint(VOCAB, (2, 33))
    states = torch.randn(2, 33, form.get("channels", 6), dtype=torch.float64)
    results = []
    for limit in (2**20, memory):
        monkeypatch.setattr("hf_seqmix.models.copy_head._BYTES", limit)
        modules[0].zero_grad()
        with Largest() as largest:
            out = run(modules, ids, states, TokenLayout())
            (out * out.detach()).sum().backward()
        results.append((out, modules[0].q_proj.weight.grad.clone(), largest.elements))
    assert_close(results[1][0], results[0][0])
    assert_close(results[1][1], results[0][1])
    assert results[0][2] >= 2 * 33 * 33 > 2 * results[1][2]  # all scores, and never half of them


def test_compiled():
    torch._dynamo.reset()
    modules, ids = parts(tokens=2, with_state=True), torch.randint(VOCAB, (2, 9))
    states = torch.randn(2, 9, 6, dtype=torch.float64)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_close(compiled(modules, ids, states, TokenLayout()), run(modules, ids, states, TokenLayout()))


@pytest.mark.parametrize("make", [Pairs, lambda: StaticPairs(max_cache_len=12)])
@pytest.mark.parametrize("form", [{}, {"tokens": 3}, {"tokens": 2, "with_state": True}], ids=str)
def test_a_cache_continues(make, form):
    modules = parts(**form)
    ids, states = torch.randint(VOCAB, (2, 9)), torch.randn(2, 9, 6, dtype=torch.float64)
    pairs, past, out = make(), 0, []
    for size in (4, 1, 4):
        some = slice(past, past + size)
        out.append(ask(modules, ids[:, some], states[:, some], TokenLayout(), pairs, past))
        past += size
    assert_close(torch.cat(out, dim=1), run(modules, ids, states, TokenLayout()))


# -- in the models of every family ------------------------------------------------------------------------------------

OWN = {
    "attention": {"num_heads": 2},
    "tnn": {"decay": 0.95, "rpe_hidden_size": 8},
    "fd_tnn": {"rpe_hidden_size": 8},
    "ipa": {"num_centers": 4, "token_shift": 2},
    "poly_transformer": {"num_attention_heads": 2},
    "short_conv": {"taps": 3},
}
MIXERS = [["tnn", "attention"], ["attention", "fd_tnn"], ["short_conv"], ["ipa"], ["poly_transformer"]]
"""The first layer of a cache keeps the pairs, beside a history, keys, inputs, or sums."""


def make(mixers: list[str], **fields: Any) -> PreTrainedModel:
    config = SeqMixHybridConfig(
        vocab_size=31, hidden_size=16, pad_token_id=0, eos_token_id=None, mixer_types=mixers,
        mixer_configs={mixer: OWN[mixer] for mixer in mixers}, copy_head=True, copy_head_rank=5, **fields,
    )  # fmt: skip
    return perturb(AutoModelForCausalLM.from_config(config), 0.2).double().eval()


def copied(model: PreTrainedModel, ids: list[int], states: Tensor) -> Tensor:
    """Log p after each of `ids`, token by token, from hidden states (length, channels)."""
    head, embed = model.copy_head, model.get_input_embeddings()
    compared, with_state = model.config.copy_head_tokens, model.config.copy_head_state

    def added(projection: nn.Linear, tokens: list[int]) -> Tensor:
        """What the newest token, the one before, ... give."""
        rank = model.config.copy_head_rank
        return sum(
            projection(embed(torch.tensor(token)))[turn * rank : (turn + 1) * rank]
            for turn, token in enumerate(tokens)
            if token is not None
        )

    def last(end: int) -> list[int | None]:
        return [ids[j] if j >= 0 else None for j in range(end, end - compared, -1)]

    out = []
    for here, state in enumerate(states):
        p = model.lm_head(state).softmax(-1)
        if here > 0:
            query = added(head.q_proj, last(here)) + (head.state_proj(state) if with_state else 0)
            keys = [added(head.k_proj, last(j) + ([ids[j + 1]] if with_state else [])) for j in range(here)]
            scores = torch.stack(keys) @ query / len(query) ** 0.5
            alpha = scores.softmax(-1)
            gate = head.gate_proj(state) - 2
            gate = torch.sigmoid(gate + head.score_gate * scores.logsumexp(-1) if with_state else gate)
            p = (1 - gate) * p
            for j in range(here):
                p = p + gate * alpha[j] * nn.functional.one_hot(torch.tensor(ids[j + 1]), len(p))
        out.append(p.log())
    return torch.stack(out)


@pytest.mark.parametrize("memory", [None, 1], ids=["whole", "in blocks"])
@pytest.mark.parametrize("mixers", MIXERS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
@torch.no_grad()
def test_copying_by_its_formula(monkeypatch, form, mixers, memory):
    if memory is not None:
        monkeypatch.setattr("hf_seqmix.models.copy_head._BYTES", memory)
    model = make(mixers, **form)
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids = torch.randint(1, 9, mask.shape)  # few tokens, so that they repeat
    out = model(ids, mask).logits
    assert_close(out.exp().sum(-1), torch.ones(mask.shape, dtype=torch.float64))
    states = model.model(ids, mask).last_hidden_state
    for row in range(len(mask)):
        real = mask[row].bool()
        assert_close(out[row][real], copied(model, ids[row][real].tolist(), states[row][real]))
    packed = torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4]])
    states = model.model(ids[:1], position_ids=packed).last_hidden_state[0]
    expected = [copied(model, ids[0, s].tolist(), states[s]) for s in (slice(0, 3), slice(3, 4), slice(4, 9))]
    assert_close(model(ids[:1], position_ids=packed).logits[0], torch.cat(expected))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gradients_by_the_formula(form):
    model = make(["short_conv"], hidden_dropout=0.0, **form)
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids, real = torch.randint(1, 9, mask.shape), mask.bool()
    weights = torch.randn(*mask.shape, 31, dtype=torch.float64)

    def gradients(total: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        total.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    actual = gradients((model(ids, mask).logits * weights)[real].sum())
    states = model.model(ids, mask).last_hidden_state
    rows = zip(ids, states, weights, real, strict=True)
    expected = gradients(
        sum((copied(model, row[own].tolist(), state[own]) * weight[own]).sum() for row, state, weight, own in rows)
    )
    assert actual.keys() == expected.keys() and {"copy_head.q_proj.weight", "copy_head.k_proj.weight"} <= actual.keys()
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, factor=10)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_blocks_in_a_model_have_the_same_gradients(monkeypatch, form):
    model, ids = make(["tnn"], **form), torch.randint(1, 9, (2, 9))
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    monkeypatch.setattr("hf_seqmix.models.copy_head._BYTES", 1)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, expected[name], factor=10)


@pytest.mark.parametrize("memory", [None, 1], ids=["whole", "in blocks"])
@pytest.mark.parametrize("given", ["labels", "shift_labels", "items", "packed"])
@pytest.mark.parametrize("mixers", [["tnn", "attention"], ["poly_transformer"]], ids=str)
@pytest.mark.parametrize("form", FORMS[::2], ids=str)
def test_the_loss_without_logits_is_that_of_the_logits(monkeypatch, form, mixers, given, memory):
    """Loss and gradients, with pads and tokens that are not counted, in any form of the labels."""
    if memory is not None:
        monkeypatch.setattr("hf_seqmix.models.copy_head._BYTES", memory)
    model = make(mixers, hidden_dropout=0.0, **form).train()
    mask = torch.tensor([*PADS["inside"], *PADS["left"], *PADS["right"]])
    ids = torch.randint(1, 9, mask.shape)
    labels = torch.where((mask == 1) & (torch.rand(mask.shape) < 0.8), ids, -100)
    call = {
        "labels": {"input_ids": ids, "attention_mask": mask, "labels": labels},
        "shift_labels": {"input_ids": ids, "attention_mask": mask, "shift_labels": labels.roll(-1, 1)},
        "items": {"input_ids": ids, "attention_mask": mask, "labels": labels, "num_items_in_batch": torch.tensor(70)},
        "packed": {
            "input_ids": ids[:1],
            "position_ids": torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4]]),
            "labels": ids[:1],
        },
    }[given]
    found = []
    for skip in (False, True):
        model.zero_grad()
        out = model(**call, skip_logits=skip)
        assert (out.logits is None) == skip
        out.loss.backward()
        found.append((out.loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (loss, gradients), (loss_alone, gradients_alone) = found
    # The library takes losses in float32.
    assert_close(loss_alone.float(), loss.float())
    assert gradients.keys() == gradients_alone.keys()
    for name, gradient in gradients.items():
        assert relative_error(gradient_of := gradients_alone[name], gradient) < 1e-4, (name, gradient_of)


@pytest.mark.parametrize("items", [None, torch.tensor(40)])
def test_what_mixers_add_is_in_the_loss_without_logits(items):
    config = PolyTransformerConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, degree_form="soft",
        degree_penalty=7.0, hidden_dropout=0.0, copy_head=True,
    )  # fmt: skip
    model = PolyTransformerForCausalLM(config).train()
    ids = torch.randint(1, 9, (2, 9))
    options = {} if items is None else {"num_items_in_batch": items}
    losses = [model(ids, labels=ids, skip_logits=skip, **options).loss for skip in (False, True)]
    assert_close(losses[1], losses[0], factor=10)
    assert relative_error(losses[0], model.eval()(ids, labels=ids, **options).loss) > 1e-3


def test_the_loss_without_logits_compiled():
    torch._dynamo.reset()
    config = TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, rpe_hidden_size=8, copy_head=True)
    model, ids = TNNForCausalLM(config).eval(), torch.randint(1, 9, (2, 9))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = compiled(ids, labels=ids, skip_logits=True, use_cache=False)
    assert found.logits is None
    assert_close(found.loss, model(ids, labels=ids).loss, factor=10)


def test_shifted_labels_of_another_shape_are_refused():
    model, ids = make(["tnn"]), torch.randint(1, 9, (2, 9))
    for labels in (ids.flatten(), ids[:, 1:]):
        with pytest.raises(ValueError, match=r"with skip_logits it must be that of the input, .2, 9.. Give a label"):
            model(ids, shift_labels=labels, skip_logits=True)


def test_logits_are_skipped_only_where_the_loss_is_the_librarys():
    ids = torch.randint(1, 9, (2, 9))
    for copy_head in (True, False):
        config = TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, hidden_dropout=0.0, copy_head=copy_head)
        model = TNNForCausalLM(config)
        assert model(ids, skip_logits=True).logits.shape == (2, 9, 31)  # no labels
        out, whole = model(ids, labels=ids, skip_logits=True), model(ids, labels=ids)
        assert out.logits is None
        assert_close(out.loss, whole.loss, factor=10)
        model.loss_function = lambda logits, labels, **_: logits.square().mean()
        own = model(ids, labels=ids, skip_logits=True)
        assert_close(own.loss, own.logits.square().mean())


class Tempered(TNNForCausalLM):
    def compute_logits(self, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().compute_logits(*args, **kwargs)


class Squared(TNNForCausalLM):
    @property
    def loss_function(self) -> Any:
        return lambda logits, labels, **_: logits.square().mean()


@pytest.mark.parametrize("model_class", [Tempered, Squared])
def test_logits_of_a_subclass_are_not_passed_over(model_class):
    model = model_class(
        TNNConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, hidden_dropout=0.0, copy_head=True)
    )
    ids = torch.randint(1, 9, (2, 9))
    assert torch.equal(model(ids, labels=ids, skip_logits=True).loss, model(ids, labels=ids).loss)


@pytest.mark.parametrize("mixers", MIXERS, ids=str)
@pytest.mark.parametrize("form", FORMS[::2], ids=str)
@torch.no_grad()
def test_decodes_as_it_reads(form, mixers):
    """Logits in chunks with pads, of growing and preallocated caches; every way to generate gives the same tokens."""
    model, assistant = make(mixers, **form), make(mixers, **form)
    mask = torch.tensor(PADS["inside"])
    ids = torch.randint(1, 9, mask.shape)
    full = model(ids, mask, use_cache=False).logits
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=14)):
        chunked = tnn.TestTNN().in_chunks(model, ids, mask, [4, 1, 4], cache)
        real = mask.bool()
        assert relative_error(chunked[real], full[real]) < MODEL_TOLERANCE[torch.float64]
    left = torch.tensor(PADS["left"])
    settings = {"max_new_tokens": 8, "do_sample": False, "attention_mask": left}
    expected = model.generate(ids * left, use_cache=False, **settings)
    for static in ({}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(model.generate(ids * left, **static, **settings), expected)
    beams = model.generate(ids * left, num_beams=3, use_cache=False, **settings)
    assert torch.equal(model.generate(ids * left, num_beams=3, **settings), beams)
    settings = {"max_new_tokens": 8, "do_sample": False}
    alone = model.generate(ids[1:], **settings)
    for other in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(ids[1:], **other, **settings), alone)


@pytest.mark.parametrize("form", FORMS, ids=str)
@torch.no_grad()
def test_rows_and_crops_of_a_cache(form):
    for mixers in MIXERS:
        model = make(mixers, **form)
        ids = torch.randint(1, 9, (2, 9))
        cache = DynamicCache(config=model.config)
        model(ids[:, :8], past_key_values=cache)
        cache.crop(-2)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0]))
        logits = model(ids[:, 6:].flip(0), past_key_values=cache).logits
        assert_close(logits, model(ids).logits[:, 6:].flip(0))


@pytest.mark.parametrize("form", FORMS[::2], ids=str)
def test_continuous_batching_gives_what_a_prompt_gives_alone(form):
    for mixers in MIXERS[:3]:
        model = make(mixers, **form)
        prompts = [torch.randint(1, 9, (length,)).tolist() for length in (3, 70, 9)]
        found = model.generate_batch(prompts, max_new_tokens=6, do_sample=False)
        for prompt, output in zip(prompts, found.values(), strict=True):
            alone = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
            assert output.generated_tokens == alone[0, len(prompt) :].tolist()


def test_ids_are_kept_exactly_in_half_precision():
    config = TNNConfig(vocab_size=3001, hidden_size=16, num_hidden_layers=2, copy_head=True)
    model = TNNForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.tensor([[2999, 2997, 2999, 2998]])
    expected = [[-1, 2999], [2997, 2997], [2999, 2999], [2998, 2998]]
    for cache in (DynamicCache(config=config), StaticCache(config, max_cache_len=8)):
        model(ids, past_key_values=cache)
        assert pairs_of(cache).values[0, 0, :4].tolist() == expected


@torch.no_grad()
def test_a_distilled_model_copies_too():
    config = TNNConfig(
        vocab_size=31,
        hidden_size=16,
        num_hidden_layers=2,
        decay=0.9,
        rpe_hidden_size=8,
        copy_head=True,
        copy_head_tokens=2,
        copy_head_state=True,
        pad_token_id=0,
    )
    model = perturb(TNNForCausalLM(config)).double().eval()
    ids = torch.randint(1, 9, (2, 40))
    expected = model.generate(ids, max_new_tokens=6, do_sample=False)
    model.distill_decoder(tolerance=1e-6, exact_taps=4)
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), expected)


def test_the_head_is_only_there_where_it_is_asked_for():
    fields = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2}
    assert TNNForCausalLM(TNNConfig(**fields)).copy_head is None
    assert TNNForCausalLM(TNNConfig(**fields, copy_head=True)).copy_head.q_proj.weight.shape == (16, 16)
    assert TNNConfig(copy_head=True).copy_head_rank == 64 and TNNConfig().copy_head_rank is None
    for changed, message in (
        ({"copy_head": True, "is_causal": False}, "copy_head is True, but is_causal is False"),
        ({"copy_head": True, "copy_head_rank": 0}, "copy_head_rank is 0; it must be at least 1"),
        ({"copy_head_tokens": 65}, "copy_head_tokens is 65; it must be at most 64"),
        ({"copy_head_rank": 2**21}, "copy_head_rank is 2097152; it must be at most 1048576"),
        ({"copy_head": True, "copy_head_tokens": 0}, "copy_head_tokens is 0; it must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            TNNConfig(**{**fields, **changed})
    with pytest.raises(ValueError, match="keeps no tokens"):
        make(["attention"])(torch.randint(9, (1, 5)), past_key_values=DynamicCache())


def test_what_a_checkpoint_lacks_begins_as_in_a_new_model(tmp_path):
    model = make(["short_conv"], copy_head_state=True)
    assert model.copy_head.score_gate.item() != 0
    kept = {name: value for name, value in model.state_dict().items() if "copy_head" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert "copy_head.score_gate" in info["missing_keys"]
    assert loaded.copy_head.score_gate.item() == 0
    assert 0 < loaded.copy_head.state_proj.weight.abs().max() <= 16**-0.5


def test_the_first_layer_of_a_cache_is_one_that_keeps_pairs():
    own = {"attention": {"num_heads": 2}}
    config = SeqMixHybridConfig(hidden_size=16, num_hidden_layers=3, mixer_configs=own, copy_head=True)
    assert config.layer_types == ["seqmix_key_inputs", "full_attention", "full_attention"]
    assert SeqMixHybridForCausalLM(config).copy_head is not None
    assert TNNConfig(num_hidden_layers=2, copy_head=True).layer_types == ["seqmix_convolution"] * 2


@pytest.mark.slow
class TestCopyingTNN(Copying, tnn.TestTNN):
    pass


@pytest.mark.slow
class TestCopyingFDTNN(Copying, fd_tnn.TestFDTNN):
    pass


@pytest.mark.slow
class TestCopyingPolyTransformer(Copying, poly_transformer.TestPolyTransformer):
    pass


@pytest.mark.slow
class TestCopyingAttentionFirst(Copying, hybrid.TestCompiledAttentionFirst):
    pass
