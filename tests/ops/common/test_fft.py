"""Transform lengths and blocks."""

import torch

from hf_seqmix.ops.common.fft import channel_blocks, fast_length


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
