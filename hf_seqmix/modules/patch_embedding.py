"""Images as sequences of patches."""

from torch import Tensor, nn

__all__ = ["PatchEmbedding"]


class PatchEmbedding(nn.Module):
    """Map each patch of an image, flattened, to a vector: e = W vec(patch) + b.

    The patches do not overlap and come row after row. A patch of one pixel is the pixel input of the Long Range Arena:
    the pixel's channels through a linear layer. Larger ones are those of Qin et al. 2023 (arXiv 2305.04749) on
    ImageNet.

    Args:
        num_channels: channels of the images.
        patch_size: (height, width) of a patch, in pixels.
        hidden_size: channels out.
    """

    def __init__(self, num_channels: int, patch_size: tuple[int, int], hidden_size: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.patch_size = patch_size
        self.proj = nn.Linear(num_channels * patch_size[0] * patch_size[1], hidden_size)

    def grid_size(self, pixel_values: Tensor) -> tuple[int, int]:
        """Return (height, width) of the grid of patches of (batch, num_channels, height, width) images.

        Raises:
            ValueError: for another number of dimensions or channels, or an image that patches do not tile.
        """
        if pixel_values.ndim != 4 or pixel_values.shape[1] != self.num_channels:
            raise ValueError(
                f"pixel_values has shape {tuple(pixel_values.shape)}; it must be (batch, {self.num_channels}, height, "
                "width)."
            )
        height, width = pixel_values.shape[2:]
        patch_height, patch_width = self.patch_size
        if height % patch_height or width % patch_width:
            raise ValueError(
                f"images of {height} x {width} pixels are not divided by patches of {patch_height} x {patch_width} "
                "(patch_size): resize them."
            )
        return height // patch_height, width // patch_width

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Embed images.

        Args:
            pixel_values: (batch, num_channels, height, width) of any floating dtype; cast to that of the weights.

        Returns:
            (batch, patches, hidden_size).
        """
        rows, columns = self.grid_size(pixel_values)
        patch_height, patch_width = self.patch_size
        patches = pixel_values.unflatten(3, (columns, patch_width)).unflatten(2, (rows, patch_height))
        # (batch, channels, rows, patch height, columns, patch width) -> (batch, patches, pixels of a patch)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        dtype = self.proj.weight.dtype  # of integers where a quantizer has replaced the layer
        return self.proj(patches.to(dtype) if dtype.is_floating_point else patches)

    def extra_repr(self) -> str:
        """Return what the printed module shows."""
        return f"num_channels={self.num_channels}, patch_size={self.patch_size}"
