"""Transform lengths and blocks."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from hf_seqmix.ops.common.fft import channel_blocks, fast_length, step_sizes, stepped_inverse, stepped_spectrum
from tests.tolerances import assert_close


def is_fast(n: int) -> bool:
    for prime in (2, 3, 5, 7):
        while n % prime == 0:
            n //= prime
    return n == 1


def test_fast_length_is_the_smallest_even_smooth_number():
    for minimum in range(2, 3000):
        expected = next(n for n in range(minimum + minimum % 2, 2 * minimum + 2, 2) if is_fast(n))
        assert fast_length(minimum) == expected
    assert fast_length(1) == 1


def test_blocks_bound_the_memory_of_a_transform():
    cpu = torch.device("cpu")
    block = channel_blocks(4, 256, 16384, torch.float32, cpu)
    assert 1 <= block < 256
    assert block * 4 * 16384 * 4 <= 2**20 * torch.get_num_threads()
    assert channel_blocks(4, 256, 64, torch.float32, cpu) == 256
    assert channel_blocks(4096, 256, 1 << 20, torch.float32, cpu) == 1
    assert channel_blocks(0, 5, 8, torch.float32, cpu) == 5


@pytest.mark.parametrize("length", [8, 4096, 8192])
def test_a_product_in_two_steps_is_the_circular_one(length):
    x, kernel = (torch.randn(2, 3, length, dtype=torch.float64) for _ in range(2))  # the first dimension is summed
    rows, columns = step_sizes(length)
    assert rows * columns == length and (columns > 1) == (length > 8)
    spectra = [
        stepped_spectrum(t.unflatten(-1, (rows, columns)), scaled) for t, scaled in ((x, False), (kernel, True))
    ]
    exact = torch.fft.irfft((torch.fft.rfft(x) * torch.fft.rfft(kernel)).sum(dim=0), n=length)
    assert_close(stepped_inverse((spectra[0] * spectra[1]).sum(dim=0), rows).flatten(-2), exact)


def test_tensors_without_numbers_leave_nothing_in_the_cache():
    x = torch.randn(1, 128, 48)
    with FakeTensorMode():
        assert stepped_spectrum(torch.empty(1, 128, 48)).shape == (1, 65, 48)
    assert torch.equal(stepped_spectrum(x), stepped_spectrum(x.clone()))
