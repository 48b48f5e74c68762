"""Conditions under which a test cannot run."""

import pytest
import transformers

needs_no_torchvision = pytest.mark.skipif(
    getattr(transformers.AutoImageProcessor, "is_dummy", False),
    reason="this release of the library wants torchvision for any image processor",
)
