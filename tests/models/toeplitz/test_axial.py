"""Mixing along rows and columns, against the dense Kronecker product of the two matrices."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hf_seqmix import FDTNNMixer, SKITNNMixer, TNNMixer, ToeplitzOperator
from hf_seqmix.models.toeplitz.axial import AxialOperator, operator_of_axes
from hf_seqmix.ops.layout import TokenLayout, token_layout
from hf_seqmix.ops.toeplitz.product import toeplitz_matrix
from tests.tolerances import assert_close, relative_error

GRIDS = [(1, 1), (1, 7), (5, 1), (3, 5), (7, 4), (16, 16), (13, 2)]
CHANNELS = 3


class AnyKernel(nn.Module):
    """Taps without any structure: the middle of a long random table, so that they do not depend on the length."""

    def __init__(self, reach: int = 40) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(CHANNELS, 2 * reach + 1, dtype=torch.float64))

    def forward(self, length: int, device: torch.device | None = None) -> Tensor:
        middle = self.table.shape[1] // 2
        return self.table[:, middle - length + 1 : middle + length]


def make(grid: tuple[int, int]) -> AxialOperator:
    return AxialOperator(ToeplitzOperator(AnyKernel(), False), ToeplitzOperator(AnyKernel(), False), grid)


def dense(operator: AxialOperator, grid: tuple[int, int]) -> Tensor:
    """T_H (x) T_W of each channel, (channels, height x width, height x width)."""
    height, width = grid
    along_rows = toeplitz_matrix(operator.row_operator.kernel(width), width, causal=False)
    along_columns = toeplitz_matrix(operator.column_operator.kernel(height), height, causal=False)
    return torch.stack([torch.kron(h, w) for h, w in zip(along_columns, along_rows, strict=True)])


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_equals_the_kronecker_product(grid):
    operator = make(grid)
    x = torch.randn(2, grid[0] * grid[1], CHANNELS, dtype=torch.float64)
    matrix = dense(operator, grid)
    y = operator(x, TokenLayout())
    assert_close(y, torch.einsum("cij,bjc->bic", matrix, x))
    # The grid of the call wins over that of the construction.
    elsewhere = AxialOperator(operator.row_operator, operator.column_operator, (2, 2))
    assert torch.equal(elsewhere(x, TokenLayout(grid_size=grid)), y)


@pytest.mark.parametrize("grid", [(3, 5), (1, 4)], ids=str)
def test_gradients_equal_those_of_the_kronecker_product(grid):
    operator = make(grid)
    x = torch.randn(2, grid[0] * grid[1], CHANNELS, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    inputs = [x, operator.row_operator.kernel.table, operator.column_operator.kernel.table]
    actual = torch.autograd.grad(operator(x, TokenLayout()), inputs, upstream)
    expected = torch.autograd.grad(torch.einsum("cij,bjc->bic", dense(operator, grid), x), inputs, upstream)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e)
    assert torch.autograd.gradcheck(lambda x: operator(x, TokenLayout()), x)


def test_absent_patches_count_in_neither_product():
    grid = (3, 5)
    operator, x = make(grid), torch.randn(2, 15, CHANNELS, dtype=torch.float64)
    mask = torch.arange(30).view(2, 15) % 4 != 0
    along_rows = toeplitz_matrix(operator.row_operator.kernel(5), 5, causal=False)
    along_columns = toeplitz_matrix(operator.column_operator.kernel(3), 3, causal=False)
    present = mask.view(2, 3, 5, 1)
    mixed = torch.einsum("cjq,biqc->bijc", along_rows, x.unflatten(1, grid) * present) * present
    expected = torch.einsum("cip,bpjc->bijc", along_columns, mixed).flatten(1, 2)
    absent = x.masked_fill(~mask.unsqueeze(-1), torch.nan)
    assert_close(operator(absent, token_layout(mask.long(), 2, 15, grid_size=grid))[mask], expected[mask])


def test_rows_first_or_columns_first():
    """The two axes commute, so doing both orders and adding, as the published code does, doubles one of them."""
    grid = (5, 7)
    operator = make(grid)
    x = torch.randn(2, 35, CHANNELS, dtype=torch.float64)
    turned = AxialOperator(operator.column_operator, operator.row_operator, (7, 5))
    x_turned = x.unflatten(1, grid).transpose(1, 2).flatten(1, 2)
    y_turned = turned(x_turned, TokenLayout()).unflatten(1, (7, 5)).transpose(1, 2).flatten(1, 2)
    assert_close(y_turned, operator(x, TokenLayout()))


def test_each_axis_has_its_own_kernel():
    mixer = TNNMixer(4, 6, is_causal=False, grid_size=(3, 5), decay=[0.9, 0.5])
    assert (mixer.operator.row_operator.kernel.decay, mixer.operator.column_operator.kernel.decay) == (0.9, 0.5)
    both = TNNMixer(4, 6, is_causal=False, grid_size=(3, 5), channel_decays=[0.9, 0.5])
    assert both.operator.row_operator.kernel.decay == both.operator.column_operator.kernel.decay == (0.9, 0.5)
    names = {name for name, _ in mixer.operator.named_parameters()}
    assert len(names) == 2 * len(list(mixer.operator.row_operator.parameters()))
    seen: list[tuple] = []

    def operator_for(*settings: float) -> nn.Module:
        seen.append(settings)
        return nn.Identity()

    axial = operator_of_axes(operator_for, (3, 5), False, (5, 3), 0.9)
    assert isinstance(axial, AxialOperator) and seen == [(5, 0.9), (3, 0.9)]
    assert isinstance(operator_of_axes(operator_for, None, True, 99, 0.9), nn.Identity) and seen[2:] == [(99, 0.9)]


def test_one_pixel_reaches_every_place_and_no_other_image():
    operator = make((4, 6))
    x = torch.randn(2, 24, CHANNELS, dtype=torch.float64)
    changed = x.clone()
    changed[0, 13] += 1
    difference = operator(changed, TokenLayout()) - operator(x, TokenLayout())
    assert (difference[0].abs() > 1e-6).all()
    assert not difference[1].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_image_padded_below_and_to_the_right_equals_the_image_alone(dtype):
    mixer = TNNMixer(4, 6, is_causal=False, grid_size=(3, 5)).to(dtype)
    for parameter in mixer.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    image = torch.randn(1, 3, 5, 4, dtype=dtype)
    padded = torch.full((1, 4, 7, 4), float("nan"), dtype=dtype)
    padded[:, :3, :5] = image
    mask = torch.zeros(1, 4, 7, dtype=torch.long)
    mask[:, :3, :5] = 1
    out = mixer(padded.flatten(1, 2), attention_mask=mask.flatten(1), grid_size=(4, 7)).unflatten(1, (4, 7))
    alone = mixer(image.flatten(1, 2))
    assert_close(out[:, :3, :5].flatten(1, 2), alone)
    unmasked = mixer(padded.nan_to_num(1.0).flatten(1, 2), grid_size=(4, 7)).unflatten(1, (4, 7))
    assert relative_error(unmasked[:, :3, :5].flatten(1, 2), alone) > 1e-3


def test_any_memory_layout_and_no_memory_at_all():
    operator = make((3, 5))
    x = torch.randn(CHANNELS, 15, 2, dtype=torch.float64).permute(2, 1, 0)
    assert_close(operator(x, TokenLayout()), operator(x.contiguous(), TokenLayout()))
    assert operator(x[:0], TokenLayout()).shape == (0, 15, CHANNELS)
    assert operator(x[:, :0], TokenLayout(grid_size=(0, 5))).shape == (2, 0, CHANNELS)


def test_what_makes_no_sense_is_refused():
    operator = make((3, 5))
    x = torch.randn(1, 15, CHANNELS, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"15 positions, but a grid of 4 x 4 has 16"):
        operator(x, TokenLayout(grid_size=(4, 4)))
    with pytest.raises(ValueError, match="has no cache"):
        operator(x, TokenLayout(), DynamicCache())
    packed = token_layout(None, 1, 15, seq_idx=torch.tensor([[0] * 7 + [1] * 8]))
    with pytest.raises(ValueError, match="packed sequences cannot be mixed in two dimensions"):
        operator(x, packed)
    with pytest.raises(ValueError, match="is_causal is True: a grid has no past"):
        TNNMixer(4, grid_size=(3, 5))
    with pytest.raises(ValueError, match="each an integer of at least 1"):
        TNNMixer(4, is_causal=False, grid_size=(3, 0))
    for wrong in (4, (4,), (4, 2.5), "ab"):
        mixers = partial(TNNMixer, 4), partial(FDTNNMixer, 4, 16)
        builds = [partial(SKITNNMixer, 4, 16), *(partial(mixer, is_causal=False) for mixer in mixers)]
        for build in builds:
            with pytest.raises(ValueError, match=r"grid_size is .*; it must be \(height, width\), each an integer"):
                build(grid_size=wrong)
    with pytest.raises(ValueError, match="one value for each axis"):
        TNNMixer(4, decay=[0.9, 0.8])
