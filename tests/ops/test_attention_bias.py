"""What a query of attention may see, entry by entry."""

import torch

from hf_seqmix.ops.attention_bias import attention_bias
from hf_seqmix.ops.layout import token_layout


def test_attention_bias():
    cpu = torch.device("cpu")
    assert attention_bias(token_layout(None, 1, 4), 4, 4, 0, True, cpu) is None
    assert attention_bias(token_layout(None, 1, 4), 4, 4, 0, False, cpu) is None
    padded = token_layout(torch.tensor([[0, 1, 1]]), 1, 3)
    bias = attention_bias(padded, 3, 3, 0, True, cpu)
    assert bias is not None
    # The pad attends to itself, so that its softmax is not empty.
    assert bias[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    chunk = attention_bias(token_layout(None, 1, 2, past_length=1), 2, 3, 1, True, cpu)
    assert chunk is not None
    assert chunk[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 1]]
    packed = token_layout(None, 1, 3, position_ids=torch.tensor([[0, 0, 1]]))
    bias = attention_bias(packed, 3, 3, 0, False, cpu)
    assert bias is not None
    assert bias[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
