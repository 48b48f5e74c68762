"""A target that several test files need."""

from dataclasses import dataclass

import torch

from hf_seqmix.analysis.rates import Target
from hf_seqmix.analysis.rates.targets import uniform


@dataclass(frozen=True)
class TwoOutputs(Target):
    """y(t) = (x_0(t)^2, mean_s x_1(s)): two inputs and two outputs a token, neither linear nor causal."""

    length: int = 8
    width = 2
    num_outputs = 2
    is_causal = False

    def inputs(self, rows: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return uniform((rows, self.length, 2), generator, dtype)

    def _outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        squares, means = inputs[..., 0].square(), inputs[..., 1].mean(dim=1, keepdim=True)
        return torch.stack([squares, means.expand_as(squares)], dim=-1)
