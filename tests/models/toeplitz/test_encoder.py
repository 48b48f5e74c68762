"""The relative-position encoder."""

from functools import partial

import pytest
import torch
from torch.nn.functional import layer_norm, linear
from torch.utils._python_dispatch import TorchDispatchMode

from hf_seqmix import FDTNNMixer, RelativePositionEncoder, TNNConfig, TNNMixer, TNNModel
from hf_seqmix.analysis.kernels import learned_kernels
from tests.modules.wrapped import Wrapped


def rms(z):
    return z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_formula_norm_then_activation_then_linear(num_layers):
    encoder = RelativePositionEncoder(5, hidden_size=8, num_layers=num_layers).double()
    s = torch.arange(-4, 5, dtype=torch.float64)
    z = linear(s[:, None], encoder.in_proj.weight, encoder.in_proj.bias)
    for layer in encoder.layers:
        z = linear(rms(z).relu(), layer.weight, layer.bias)
    expected = linear(rms(z).relu(), encoder.out_proj.weight, encoder.out_proj.bias)
    torch.testing.assert_close(encoder(s), expected.T)


def test_layer_norm_variant_of_the_long_range_arena():
    encoder = RelativePositionEncoder(5, hidden_size=8, num_layers=2, norm_type="layer").double()
    torch.nn.init.normal_(encoder.out_norm.weight)
    torch.nn.init.normal_(encoder.out_norm.bias)
    s = torch.arange(6, dtype=torch.float64)
    z = linear(s[:, None], encoder.in_proj.weight, encoder.in_proj.bias)
    for layer in encoder.layers:
        z = linear(z.relu(), layer.weight, layer.bias)
    z = layer_norm(z, (8,), encoder.out_norm.weight, encoder.out_norm.bias)
    expected = linear(z.relu(), encoder.out_proj.weight, encoder.out_proj.bias)
    torch.testing.assert_close(encoder(s), expected.T)


def test_without_a_norm():
    encoder = RelativePositionEncoder(5, hidden_size=8, num_layers=2, norm_type="none").double()
    s = torch.arange(6, dtype=torch.float64)
    z = linear(s[:, None], encoder.in_proj.weight, encoder.in_proj.bias)
    for layer in encoder.layers:
        z = linear(z.relu(), layer.weight, layer.bias)
    torch.testing.assert_close(encoder(s), linear(z.relu(), encoder.out_proj.weight, encoder.out_proj.bias).T)
    far = encoder(torch.tensor([1e9, 2e9], dtype=torch.float64))
    torch.testing.assert_close(far[:, 1] / far[:, 0], torch.full((5,), 2.0, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("norm_type", "extra"), [("simple_rms", 0), ("layer", 2), ("none", 0)])
def test_number_of_parameters(norm_type, extra):
    p, k, m = 16, 3, 24
    encoder = RelativePositionEncoder(m, p, k, norm_type=norm_type)
    assert sum(t.numel() for t in encoder.parameters()) == 2 * p + k * (p * p + p) + p * m + m + extra * p


def test_saturates_at_large_lags():
    encoder = RelativePositionEncoder(32, 64, 6).double()
    far = encoder(torch.tensor([1e9], dtype=torch.float64))
    error = [(encoder(torch.tensor([t], dtype=torch.float64)) - far).norm().item() for t in (16.0, 1024.0, 65536.0)]
    assert error[1] < error[0] / 16 and error[2] < error[1] / 16  # as 1 / t


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_computes_in_float32_whatever_the_weights_and_autocast_say(dtype):
    encoder = RelativePositionEncoder(5, 8, 1).to(dtype)
    s = torch.arange(2040, 2060)
    with torch.autocast("cpu", dtype=dtype):
        out = encoder(s)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, RelativePositionEncoder.forward(encoder.float(), s))


def test_products_of_few_digits_do_not_round_lags():
    """As those in TF32 on a GPU, which has no more digits than float16."""
    aten = torch.ops.aten

    class FewDigits(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (aten.mm.default, aten.addmm.default):
                args = [x.half().float() for x in args]
            return func(*args, **(kwargs or {}))

    encoder, lags = RelativePositionEncoder(5, 8, 1), torch.arange(4090, 4110)
    exact, hidden = encoder(lags), encoder.in_proj(lags.unsqueeze(-1))
    with FewDigits():
        assert torch.equal(encoder.in_proj(lags.unsqueeze(-1)), hidden)
        assert not torch.equal(encoder(lags), exact)  # products are rounded


def test_unknown_norm():
    with pytest.raises(ValueError, match="rpe_norm_type is 'batch'"):
        RelativePositionEncoder(2, norm_type="batch")


@pytest.mark.parametrize("norm_type", ["simple_rms", "layer"])
@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "tanh"])
def test_no_output_exceeds_the_bound(norm_type, activation):
    encoder = RelativePositionEncoder(5, 8, 2, activation, norm_type).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
        largest = encoder(torch.linspace(-1e4, 1e4, 2001)).abs().amax(dim=1)
    assert (largest <= encoder.bound()).all()
    assert encoder.bound()[0] < 1e3  # and says something


@pytest.mark.parametrize(("name", "change"), [("out_proj", lambda y: 3 * y), ("out_norm", lambda y: 3 * y + 1)])
def test_the_bound_is_that_of_layers_as_they_are_called(name, change):
    """Adapters, split weights and weights that are fetched for a call change what a layer does, not its parameters."""
    encoder = RelativePositionEncoder(5, 8, 2, "silu", "layer").double()
    encoder.get_submodule(name).register_forward_hook(lambda layer, x, y: change(y))
    with torch.no_grad():
        largest = encoder(torch.linspace(-1e4, 1e4, 2001)).abs().amax(dim=1)
    assert (largest <= encoder.bound()).all()


def test_the_bound_of_a_layer_norm_follows_the_formula():
    encoder = RelativePositionEncoder(5, 8, 2, norm_type="layer").double()
    with torch.no_grad():
        encoder.out_norm.weight.normal_()
        encoder.out_norm.bias.normal_()
    norm, out = encoder.out_norm, encoder.out_proj
    length = norm.weight.abs().max() * 8**0.5 + norm.bias.norm()
    torch.testing.assert_close(encoder.bound(), out.weight.norm(dim=1) * length + out.bias.abs(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"activation": "swiglu"}, ValueError, "activation is 'swiglu'; it must be one of .*'silu'"),
        ({"channels": 0}, ValueError, "channels is 0; it must be at least 1"),
        ({"hidden_size": 0}, ValueError, "hidden_size is 0; it must be at least 1"),
        ({"num_layers": -1}, ValueError, "num_layers is -1; it must be at least 0"),
        ({"num_layers": 1.5}, TypeError, "num_layers is 1.5; it must be an integer, at least 0"),
    ],
)
def test_arguments_that_make_no_sense(wrong, error, message):
    with pytest.raises(error, match=message):
        RelativePositionEncoder(**{"channels": 8, **wrong})


@pytest.mark.parametrize("build", [partial(TNNMixer, 8), partial(FDTNNMixer, 8, 16)], ids=["tnn", "fd_tnn"])
def test_a_largest_lag_is_a_whole_number(build):
    for wrong, error, message in (
        (-1, ValueError, "max_lag is -1; it must be at least 0"),
        (2.5, TypeError, "max_lag is 2.5; it must be an integer, at least 0"),
    ):
        with pytest.raises(error, match=message):
            build(kernel_max_lag=wrong)


@pytest.mark.parametrize("mixer", [TNNMixer(8, channel_decays=[0.5, 1.0]), FDTNNMixer(8, 16, is_causal=False)])
def test_a_wrapper_may_stand_for_the_last_layer(mixer):
    mixer, x = mixer.double(), torch.randn(2, 9, 8, dtype=torch.float64)
    encoder = mixer.operator.kernel.encoder
    expected, bound, layer = mixer(x), encoder.bound(), encoder.out_proj
    encoder.out_proj = Wrapped(layer)
    assert torch.equal(mixer(x), expected) and torch.equal(encoder.bound(), bound)
    assert torch.equal(mixer.operator.kernel(9), mixer.operator.kernel(9, x.device))
    encoder.out_proj = Wrapped(lambda z: layer(z))
    with pytest.raises(TypeError, match="Wrapped stands for a linear layer, but has neither a weight nor parameters"):
        mixer(x)


def test_with_biases_of_zero_the_kernel_sees_the_sign_of_the_lag_alone():
    """So a bidirectional model by the published initialization begins; drawn biases, the default, tell lags apart."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 5, "hidden_size": 8, "num_hidden_layers": 1, "is_causal": False, "decay": 1.0}
    seen = {}
    for linear_init, fields in {"normal": {"linear_init": "normal"}, "uniform": {}}.items():
        model = TNNModel(TNNConfig(**sizes, **fields))
        taps = learned_kernels(model, 9)[0].taps  # (channels, 17), lags -8 to 8
        ahead, behind = taps[:, :8].std(dim=1), taps[:, 9:].std(dim=1)
        seen[linear_init] = (torch.stack([ahead, behind]) / taps.std(dim=1)).median()
    assert seen["normal"] < 1e-2 and seen["uniform"] > 0.1
