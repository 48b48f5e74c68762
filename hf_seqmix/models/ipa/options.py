"""What the couplings and kernels of IPA may be."""

__all__ = ["COUPLINGS", "KERNEL_NORMS", "KERNEL_TYPES"]

COUPLINGS = ("shared", "toeplitz")
"""What the affine maps of different pairs of positions share: all, or all but a factor of the offset."""

KERNEL_TYPES = ("bilinear",)
"""The form of a kernel's logits: a product of a projected query and a projected key, plus a bias of the offset."""

KERNEL_NORMS = ("p", "j", "prod", "mix", "none")
"""What kernels are normalized over, as in `piecewise_column`, which a configuration does without."""
