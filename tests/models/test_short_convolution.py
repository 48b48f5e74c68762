"""The convolution before the mixers of every family, and the mixer that is a convolution alone."""

from typing import Any

import pytest

from hf_seqmix import SeqMixConfig
from tests.models.fd_tnn import test_modeling_fd_tnn as fd_tnn
from tests.models.hybrid import test_modeling_hybrid as hybrid
from tests.models.ipa import test_modeling_ipa as ipa
from tests.models.poly_transformer import test_modeling_poly_transformer as poly_transformer
from tests.models.ski_tnn import test_modeling_ski_tnn as ski_tnn
from tests.models.suite import CompiledModelSuite
from tests.models.tnn import test_modeling_tnn as tnn


class Convolved:
    """A family's configurations, with a convolution before each mixer."""

    def config(self, is_causal: bool = True, **kwargs: Any) -> SeqMixConfig:
        convolution = {"short_conv_taps": 4 if is_causal else 5, "short_conv_init": "uniform"}
        return super().config(is_causal, **{**convolution, **kwargs})


@pytest.mark.slow
class TestConvolvedTNN(Convolved, tnn.TestTNN):
    pass


@pytest.mark.slow
class TestConvolvedFDTNN(Convolved, fd_tnn.TestFDTNN):
    pass


@pytest.mark.slow
class TestConvolvedSKITNN(Convolved, ski_tnn.TestSKITNN):
    pass


@pytest.mark.slow
class TestConvolvedIPA(Convolved, ipa.TestIPA):
    pass


@pytest.mark.slow
class TestConvolvedExtendedIPA(Convolved, ipa.TestExtendedIPA):
    pass


@pytest.mark.slow
class TestConvolvedPolyTransformer(Convolved, poly_transformer.TestPolyTransformer):
    pass


@pytest.mark.slow
class TestConvolvedAttention(Convolved, hybrid.TestAttention):
    pass


@pytest.mark.slow
class TestShortConv(hybrid.HybridConfigurations, CompiledModelSuite):
    mixer_types = ("short_conv", "short_conv")


@pytest.mark.slow
class TestShortConvAndAttention(Convolved, hybrid.HybridConfigurations, CompiledModelSuite):
    mixer_types = ("short_conv", "attention")
