"""Pure functions of tensors; plain torch is the definition."""

from .toeplitz import toeplitz_matmul, toeplitz_matmul_dense, toeplitz_matrix, toeplitz_step

__all__ = ["toeplitz_matmul", "toeplitz_matmul_dense", "toeplitz_matrix", "toeplitz_step"]
