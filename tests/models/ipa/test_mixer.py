"""IPA's column operation as a module: kernels, couplings, padding, packing, caches."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hf_seqmix import IPAMixer
from hf_seqmix.cache.key_inputs import KeyInputsLayer, KeyInputsStaticLayer
from hf_seqmix.models.ipa.options import KERNEL_NORMS
from tests.models.suite import PADS, perturb
from tests.tolerances import assert_close

OPTIONS: list[dict[str, Any]] = [
    *({"kernel_norm": norm} for norm in KERNEL_NORMS),
    {"coupling": "toeplitz"},
    {"coupling": "toeplitz", "kernel_norm": "prod"},
    {"rank": 3, "kernel_rank": 5, "max_relative_distance": 3},
    {"token_shift": 3},
    {"token_shift": 2, "output_norm": False},
]


def make(is_causal: bool = True, **kwargs: Any) -> IPAMixer:
    mixer = IPAMixer(16, num_centers=4, is_causal=is_causal, **{"max_relative_distance": 12, **kwargs})
    for parameter in mixer.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return mixer.double().eval()


def x_like(*shape: int) -> Tensor:
    return torch.randn(*shape, 16, dtype=torch.float64)


def by_formula(mixer: IPAMixer, x: Tensor) -> Tensor:
    """The column operation of one sequence (length, 16), term by term."""
    length, centers, rank = len(x), 4, mixer.rank
    place = torch.arange(length)
    offsets = place[:, None] - place
    seen = offsets >= 0 if mixer.is_causal else torch.ones_like(offsets, dtype=torch.bool)
    distance = mixer.max_relative_distance
    index = (
        offsets.clamp(0, distance - 1) if mixer.is_causal else offsets.clamp(1 - distance, distance - 1) + distance - 1
    )
    q = mixer.q_proj(x).view(length, centers, -1).transpose(0, 1)
    k = mixer.k_proj(x).view(length, centers, -1).transpose(0, 1)
    logits = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + mixer.relative_bias[:, index]
    counts = seen.sum(-1, keepdim=True)
    over_centers = logits.softmax(0)
    over_keys = logits.masked_fill(~seen, float("-inf")).softmax(-1)
    if mixer.kernel_norm == "p":
        kernels = over_centers * seen / counts
    elif mixer.kernel_norm == "j":
        kernels = over_keys
    elif mixer.kernel_norm == "prod":
        kernels = (logits + over_centers.log()).masked_fill(~seen, float("-inf")).softmax(-1)
    elif mixer.kernel_norm == "mix":
        share = mixer.mix_logit.sigmoid()
        kernels = share * over_keys + (1 - share) * over_centers * seen / counts
    else:
        kernels = logits * seen
    if mixer.coupling == "toeplitz":
        kernels = kernels * mixer.coupling_table[:, index]
    mixed = torch.einsum("plj,jpk->lpk", kernels, mixer.v_proj(x).view(length, centers, rank)).flatten(1)
    if mixer.output_norm is not None:
        mixed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.output_norm.weight
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


def expansion(mixer: IPAMixer, x: Tensor, maps: Tensor) -> Tensor:
    """Sum the paper's expansion of one causal sequence, y_l = sum_j sum_p K^p_lj (J^p_lj x_j + b^p), with 1/l nowhere.

    `maps` are J, (length, length, centers, 16, 16); offsets b^p are those of the mixer.
    """
    length, rank = len(x), mixer.rank
    q, k = (projection(x).view(length, 4, -1) for projection in (mixer.q_proj, mixer.k_proj))
    offset = (mixer.o_proj.weight.view(16, 4, rank) * mixer.v_proj.bias.view(4, rank)).sum(-1).T  # b^p, (centers, 16)
    rows = []
    for here in range(length):
        seen = torch.arange(here + 1)
        logits = torch.einsum("pr,jpr->jp", q[here], k[seen]) / rank**0.5 + mixer.relative_bias[:, here - seen].T
        affine = torch.einsum("jpab,jb->jpa", maps[here, seen], x[seen]) + offset
        rows.append(torch.einsum("jp,jpa->a", logits.softmax(-1), affine))
    return torch.stack(rows)


def test_departures_from_the_expansion():
    """All pairs share their maps, and the sum over tokens is a mean: along equal tokens it does not grow."""
    mixer, x = make(output_norm=False), x_like(4)
    mixer.o_proj.bias.data.zero_()
    own = torch.einsum("apr,prb->pab", mixer.o_proj.weight.view(16, 4, -1), mixer.v_proj.weight.view(4, -1, 16))
    maps = own.expand(4, 4, 4, 16, 16).clone()
    counts = torch.arange(1.0, 5.0, dtype=torch.float64)[:, None]
    assert_close(mixer(x[None])[0], expansion(mixer, x, maps) / counts)
    maps[3, 0] += 1
    assert (mixer(x[None])[0] - expansion(mixer, x, maps) / counts)[3].abs().max() > 1e-3

    mixer.relative_bias.data.zero_()
    equal = x[:1].expand(4, 16)
    means = mixer(equal[None])[0].norm(dim=-1)
    sums = expansion(mixer, equal, maps[:1, :1].expand_as(maps)).norm(dim=-1)
    assert_close(means, means[0].expand(4))  # 1, 1, 1, 1
    assert_close(sums, means[0] * counts[:, 0])  # 1, 2, 3, 4


def test_a_table_of_ones_is_the_shared_coupling():
    shared, x = make(), x_like(2, 9)
    other = make(coupling="toeplitz")
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
                own, past = mask[:, past : past + part.shape[1]], past + part.shape[1]
                part = part.masked_fill(own.unsqueeze(-1) == 0, float("nan"))
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


def test_offsets_beyond_the_bias_share_the_last_entry():
    mixer, x = make(max_relative_distance=3), x_like(1, 12)
    longer = make(max_relative_distance=12)
    state = mixer.state_dict()
    state["relative_bias"] = mixer.relative_bias[:, torch.arange(12).clamp(max=2)]
    longer.load_state_dict(state)
    assert_close(mixer(x), longer(x))


def test_a_packed_row_is_no_longer_than_its_longest_sequence(caplog):
    mixer, x = make(max_relative_distance=23), x_like(1, 40)  # said once in a session, by this number
    mixer(x, position_ids=torch.arange(20).repeat(2)[None])
    assert not caplog.records
    mixer(x)
    assert "A sequence is longer than max_relative_distance = 23 tokens" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_centers": 3}, "num_centers is 3, which does not divide hidden_size 16.*or give the rank"),
        ({"num_centers": 0}, "num_centers is 0; it must be at least 1"),
        ({"num_centers": 0, "rank": 4}, "num_centers is 0; it must be at least 1"),
        ({"rank": 0}, "^rank is 0; it must be at least 1"),
        ({"kernel_rank": 0}, "kernel_rank is 0; it must be at least 1"),
        ({"max_relative_distance": 0}, "max_relative_distance is 0; it must be at least 1"),
        ({"token_shift": -1}, "token_shift is -1; it must be at least 0"),
        ({"coupling": "full"}, "coupling is 'full'; it must be one of 'shared', 'toeplitz'"),
        ({"kernel_norm": "mean"}, "kernel_norm is 'mean'; it must be one of"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        IPAMixer(16, **{"num_centers": 4, **options})


def test_caches_that_do_not_suit():
    x = x_like(1, 3)
    with pytest.raises(ValueError, match="bidirectional mixer has no cache"):
        make(False)(x, past_key_values=DynamicCache())
    with pytest.raises(
        ValueError, match=r"holds no layer \d yet, but .*need the last inputs.*DynamicCache\(config=model.config\)"
    ):
        make(token_shift=2)(x, past_key_values=DynamicCache())
    packed = torch.tensor([[0, 1, 0]])
    cache = DynamicCache()
    with pytest.raises(ValueError, match="packed sequences cannot fill a cache: pass use_cache=False"):
        make()(x, past_key_values=cache, position_ids=packed)
    assert cache.get_seq_length() == 0
    assert make()(x, position_ids=packed).shape == x.shape


@pytest.mark.parametrize("kernel_norm", ["p", "j", "prod", "mix", "none"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("side", [None, *PADS])
def test_weights_are_what_values_are_summed_with(kernel_norm, is_causal, side):
    mixer = IPAMixer(
        8,
        2,
        kernel_rank=3,
        coupling="toeplitz",
        kernel_norm=kernel_norm,
        token_shift=2 if is_causal else 3,
        is_causal=is_causal,
    )
    perturb(mixer).double()
    mask = None if side is None else torch.tensor(PADS[side])
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    y, weights = mixer(x, mask, output_attentions=True)
    value = mixer.v_proj(x if mask is None else x * mask.unsqueeze(-1)).unflatten(-1, (2, -1)).transpose(1, 2)
    expected = mixer.o_proj(mixer.output_norm((weights @ value).transpose(1, 2).flatten(2)))
    real = torch.ones(2, 9, dtype=torch.bool) if mask is None else mask.bool()
    assert_close(y[real], expected[real])
    if mask is not None:
        assert weights.masked_select(~real[:, None, None] & real[:, None, :, None]).abs().max() == 0
