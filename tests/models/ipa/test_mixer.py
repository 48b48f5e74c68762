"""IPA's column operation as a module: kernels, couplings, padding, packing, caches."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hf_seqmix import IPAMixer
from hf_seqmix.cache.key_inputs import KeyInputsLayer, KeyInputsStaticLayer
from hf_seqmix.models.ipa.options import COUPLINGS, IPA_KERNEL_NORMS, KERNEL_TYPES
from tests.tolerances import assert_close

OPTIONS: list[dict[str, Any]] = [
    *({"kernel_norm": norm} for norm in IPA_KERNEL_NORMS),
    *({"kernel_type": kind} for kind in KERNEL_TYPES[1:]),
    *({"coupling": coupling} for coupling in COUPLINGS[1:4]),
    {"kernel_type": "separable", "coupling": "toeplitz"},
    {"kernel_type": "rbf", "kernel_norm": "prod", "coupling": "separable"},
    {"rank": 3, "kernel_rank": 5, "max_relative_distance": 3},
    {"token_shift": 3},
    {"token_shift": 2, "kernel_type": "separable", "output_norm": False},
]


def make(is_causal: bool = True, **kwargs: Any) -> IPAMixer:
    mixer = IPAMixer(16, num_centers=4, max_positions=12, is_causal=is_causal, **kwargs)
    for parameter in mixer.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return mixer.double().eval()


def x_like(*shape: int) -> Tensor:
    return torch.randn(*shape, 16, dtype=torch.float64)


def by_formula(mixer: IPAMixer, x: Tensor) -> Tensor:
    """The column operation of one sequence (length, 16), term by term."""
    length, centres, rank = len(x), 4, mixer.rank
    place = torch.arange(length)
    offsets = place[:, None] - place
    seen = offsets >= 0 if mixer.is_causal else torch.ones_like(offsets, dtype=torch.bool)
    distance = mixer.max_relative_distance
    index = (
        offsets.clamp(0, distance - 1) if mixer.is_causal else offsets.clamp(1 - distance, distance - 1) + distance - 1
    )
    logits = torch.zeros(centres, length, length, dtype=x.dtype)
    if mixer.relative_bias is not None:
        logits = logits + mixer.relative_bias[:, index]
    kernels = None
    if mixer.q_proj is not None:
        q = mixer.q_proj(x).view(length, centres, -1).transpose(0, 1)
        k = mixer.k_proj(x).view(length, centres, -1).transpose(0, 1)
        if mixer.kernel_type == "bilinear":
            logits = logits + q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        elif mixer.kernel_type == "rbf":
            near = (q - mixer.query_centers[:, None]).square().sum(-1)[:, :, None]
            near = near + (k - mixer.key_centers[:, None]).square().sum(-1)[:, None]
            logits = logits - near / (2 * mixer.kernel_rank * (2 * mixer.log_widths).exp()[:, None, None])
        else:
            kernels = q.softmax(0) * k.softmax(0).transpose(1, 2)
    counts = seen.sum(-1, keepdim=True)
    over_centres = logits.softmax(0) if kernels is None else kernels
    over_keys = logits.masked_fill(~seen, float("-inf")).softmax(-1)
    if mixer.kernel_norm == "p":
        kernels = over_centres * seen / counts
    elif mixer.kernel_norm == "j":
        kernels = over_keys
    elif mixer.kernel_norm == "prod":
        kernels = (logits + over_centres.log()).masked_fill(~seen, float("-inf")).softmax(-1)
    elif mixer.kernel_norm == "mix":
        share = mixer.mix_logit.sigmoid()
        kernels = share * over_keys + (1 - share) * over_centres * seen / counts
    else:
        kernels = logits * seen
    if mixer.coupling == "toeplitz":
        kernels = kernels * mixer.coupling_table[:, index]
    elif mixer.coupling == "absolute_scalar":
        flat = place[:, None] * 12 + place
        if mixer.is_causal:
            flat = (place * (place + 1) // 2)[:, None] + torch.minimum(place[:, None], place)
        kernels = kernels * mixer.coupling_table[:, flat]
    if mixer.coupling == "separable":
        values = torch.stack([mixer.v_proj.weight[j] @ x[j] for j in range(length)]) + mixer.v_proj.bias
    else:
        values = mixer.v_proj(x)
    mixed = torch.einsum("plj,jpk->lpk", kernels, values.view(length, centres, rank)).flatten(1)
    if mixer.output_norm is not None:
        mixed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.output_norm.weight
    if mixer.coupling == "separable":
        return torch.stack([mixer.o_proj.weight[i] @ mixed[i] for i in range(length)]) + mixer.o_proj.bias
    return mixer.o_proj(mixed)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("options", OPTIONS[:-2], ids=str)
def test_by_the_formula(options, is_causal):
    mixer = make(is_causal, **options)
    for length in (1, 7, 12):
        x = x_like(2, length)
        assert_close(mixer(x), torch.stack([by_formula(mixer, row) for row in x]), factor=10)


def test_the_shift_moves_the_keys_alone():
    mixer, x = make(token_shift=3), x_like(1, 9)
    plain = make()
    plain.load_state_dict({k: v for k, v in mixer.state_dict().items() if "shift" not in k})
    keys = mixer.k_proj(mixer.token_shift(x))
    plain.k_proj.register_forward_hook(lambda *_: keys)
    assert_close(mixer(x), plain(x))


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
def test_all_pairs_equal_are_the_shared_coupling(is_causal):
    for kind in ("bilinear", "separable"):
        shared = make(is_causal, output_norm=False, kernel_type=kind)
        full = make(is_causal, output_norm=False, kernel_type=kind, coupling="full")
        own = {k: v for k, v in shared.state_dict().items() if not k.startswith(("v_proj", "o_proj"))}
        full.load_state_dict(own, strict=False)
        full.pair_maps.v_weight.data[:] = shared.v_proj.weight
        full.pair_maps.o_weight.data[:] = shared.o_proj.weight
        full.pair_maps.v_bias.data[:] = shared.v_proj.bias
        full.pair_maps.o_bias.data[:] = shared.o_proj.bias
        mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1]])
        x = x_like(2, 6)
        real = mask.bool()
        assert_close(full(x, mask)[real], shared(x, mask)[real])
        full.pair_maps.o_weight.data[3] += 1  # the pair (2, 0) when causal, (0, 3) when not
        changed = (full(x[:1]) - shared(x[:1])).abs().amax(dim=(0, 2)) > 1e-6
        assert changed.nonzero().flatten().tolist() == [2 if is_causal else 0]


def test_tables_of_ones_are_the_shared_coupling():
    shared, x = make(), x_like(2, 9)
    for coupling in ("toeplitz", "absolute_scalar"):
        other = make(coupling=coupling)
        other.load_state_dict(shared.state_dict(), strict=False)
        other.coupling_table.data.fill_(1.0)
        assert_close(other(x), shared(x))


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padding_and_packing(options, is_causal):
    mixer, x = make(is_causal, **options), x_like(2, 7)
    for pads in ([[0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0, 0, 0], [1] * 6 + [0]],
                 [[1, 0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 1, 1, 1]]):  # fmt: skip
        mask = torch.tensor(pads)
        out = mixer(x.masked_fill(mask.unsqueeze(-1) == 0, float("nan")), attention_mask=mask)
        for row in range(2):
            real = mask[row].bool()
            assert_close(out[row][real], mixer(x[row][real][None])[0], factor=10)
            assert_close(mixer(x[row : row + 1], attention_mask=mask[row : row + 1])[0][real], out[row][real])
    packed = mixer(x[:1], position_ids=torch.tensor([[0, 1, 0, 0, 1, 2, 3]]))
    assert_close(packed, torch.cat([mixer(part) for part in x[:1].split([2, 1, 4], dim=1)], dim=1), factor=10)
    both = torch.tensor([[1, 1, 0, 1, 0, 1, 1]])
    packed = mixer(x[:1], attention_mask=both, position_ids=torch.tensor([[0, 1, 1, 0, 0, 1, 2]]))
    assert_close(packed[:, [0, 1]], mixer(x[:1, :2]), factor=10)
    assert_close(packed[:, [3, 5, 6]], mixer(x[:1, [3, 5, 6]]), factor=10)


class Cache(DynamicCache):
    """The layers that a configuration with `token_shift` asks for."""

    def __init__(self, kind: type, **kwargs: Any) -> None:
        super().__init__()
        self.layers = [kind(**kwargs)]
        self.layer_class_to_replicate = None


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_caches(options):
    mixer, x = make(**options), x_like(2, 11)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0]])
    caches = [lambda: Cache(KeyInputsLayer), lambda: Cache(KeyInputsStaticLayer, max_cache_len=12)]
    if "token_shift" not in options:
        caches.append(DynamicCache)  # any cache of the library
    for sizes in ([11], [4, 1, 6], [1] * 11):
        for make_cache in caches:
            cache, padded, past, parts, rest = make_cache(), make_cache(), 0, [], []
            for part in x.split(sizes, dim=1):
                parts.append(mixer(part, past_key_values=cache))
                past += part.shape[1]
                rest.append(mixer(part, attention_mask=mask[:, :past], past_key_values=padded))
            assert_close(torch.cat(parts, dim=1), mixer(x), factor=10)
            real = mask.bool()
            assert_close(torch.cat(rest, dim=1)[real], mixer(x, attention_mask=mask)[real], factor=10)


def test_a_prepared_mask_says_what_is_seen():
    """As `generate` hands it over with a compiled cache: (batch, 1, queries, places), here of a history with pads."""
    mixer, x = make(coupling="toeplitz", token_shift=3), x_like(2, 9)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1, 1], [1] * 9])
    cache, parts, past = Cache(KeyInputsStaticLayer, max_cache_len=12), [], 0
    for part in x.split([5, 1, 3], dim=1):
        places = torch.arange(past, past + part.shape[1])
        seen = (torch.arange(12) <= places[:, None]) & torch.nn.functional.pad(mask, (0, 3)).bool()[:, None]
        part = part * mask[:, places].unsqueeze(-1)
        parts.append(mixer(part, attention_mask=seen[:, None], past_key_values=cache))
        past += part.shape[1]
    real = mask.bool()
    assert_close(torch.cat(parts, dim=1)[real], mixer(x, attention_mask=mask)[real])


def test_logits_in_half_precision():
    """The distances of a radial kernel are rounded, and cost less than the projections of a bilinear one."""
    errors = {}
    for kind in ("rbf", "bilinear"):
        mixer = IPAMixer(128, 8, kernel_type=kind).bfloat16()
        for projection in (mixer.q_proj, mixer.k_proj):
            projection.weight.data.normal_(std=128**-0.5)
        x, places = torch.randn(2, 64, 128, dtype=torch.bfloat16), torch.arange(64)[None]
        logits = []
        for each, states in ((mixer, x), (copy.deepcopy(mixer).double(), x.double())):
            query, key, _ = each._project(states, states, places)
            logits.append(torch.einsum("blpr,bjpr->bplj", query.double(), key.double()))
        errors[kind] = ((logits[0] - logits[1]).square().mean() / logits[1].square().mean()).sqrt().item()
    assert 0 < errors["rbf"] < 0.002 < errors["bilinear"] < 0.003


def test_separable_kernels_take_linear_time():
    """They never meet the op of pairs, unless a cache or a coupling of pairs asks for it."""
    mixer, x = make(kernel_type="separable"), x_like(2, 9)
    expected = mixer(x)
    cached = torch.cat([mixer(part, past_key_values=c) for c in [DynamicCache()] for part in x.split([4, 5], 1)], 1)
    assert_close(cached, expected)
    mixer._column = None
    assert torch.equal(mixer(x), expected)


@pytest.mark.parametrize("coupling", ["absolute_scalar", "separable"])
def test_positions_beyond_an_absolute_coupling(coupling):
    mixer = make(coupling=coupling)
    message = f"13 tokens, but coupling '{coupling}' has parameters for max_position_embeddings = 12 positions"
    with pytest.raises(ValueError, match=message):
        mixer(x_like(1, 13))
    mask = torch.ones(1, 13, dtype=torch.long)
    mask[:, :3] = 0
    assert mixer(x_like(1, 13), attention_mask=mask).isfinite().all()  # ten real tokens
    cache = DynamicCache()
    mixer(x_like(1, 12), past_key_values=cache)
    with pytest.raises(ValueError, match=message):
        mixer(x_like(1, 1), past_key_values=cache)
    mixer.set_context_length(12)
    for length in (5, 20):
        with pytest.raises(ValueError, match=f"was to be {length}, but .* exactly max_position_embeddings = 12"):
            mixer.set_context_length(length)
    make().set_context_length(20)


def test_offsets_beyond_the_bias_share_the_last_entry():
    mixer, x = make(max_relative_distance=3), x_like(1, 12)
    longer = make(max_relative_distance=12)
    state = mixer.state_dict()
    state["relative_bias"] = mixer.relative_bias[:, torch.arange(12).clamp(max=2)]
    longer.load_state_dict(state)
    assert_close(mixer(x), longer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_centers": 3}, "num_centers is 3, which does not divide hidden_size 16.*or give the rank"),
        ({"num_centers": 0}, "num_centers is 0; it must be at least 1"),
        ({"num_centers": 0, "rank": 4}, "num_centers is 0; it must be at least 1"),
        ({"rank": 0}, "^rank is 0; it must be at least 1"),
        ({"kernel_rank": 0}, "kernel_rank is 0; it must be at least 1"),
        ({"max_positions": 0}, "max_positions is 0; it must be at least 1"),
        ({"max_relative_distance": 0}, "max_relative_distance is 0; it must be at least 1"),
        ({"token_shift": -1}, "token_shift is -1; it must be a number of taps, or 0 for none"),
        ({"coupling": "tied"}, "coupling is 'tied'; it must be one of 'shared', 'toeplitz'"),
        ({"kernel_type": "linear"}, "kernel_type is 'linear'; it must be one of"),
        ({"kernel_norm": "mean"}, "kernel_norm is 'mean'; it must be one of"),
        ({"kernel_norm": "prod", "kernel_type": "separable"}, "kernel_norm is 'prod', but kernel_type 'separable'"),
        ({"coupling": "full"}, "so set output_norm=False, and at most 32 positions"),
        ({"coupling": "full", "output_norm": False, "max_positions": 33}, "at most 32 positions .*given 33"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        IPAMixer(16, **{"num_centers": 4, **options})


def test_caches_that_do_not_suit():
    x = x_like(1, 3)
    with pytest.raises(ValueError, match="bidirectional mixer has no cache"):
        make(False)(x, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="has no cache: set use_cache=False"):
        make(coupling="full", output_norm=False)(x, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match=r"keeps no inputs.*DynamicCache\(config=model.config\)"):
        make(token_shift=2)(x, past_key_values=DynamicCache())
    packed = torch.tensor([[0, 1, 0]])
    for options in ({}, {"kernel_type": "separable"}):
        cache = DynamicCache()
        with pytest.raises(ValueError, match="packed sequences cannot fill a cache: pass use_cache=False"):
            make(**options)(x, past_key_values=cache, position_ids=packed)
        assert cache.get_seq_length() == 0
        assert make(**options)(x, position_ids=packed).shape == x.shape
