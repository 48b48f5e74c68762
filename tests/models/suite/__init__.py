"""The tests that every family passes: a subclass of `ModelSuite` names a family and makes its configurations."""

from tests.models.suite.base import PADS, VOCAB, perturb
from tests.models.suite.caching import CachingTests
from tests.models.suite.calling import CallingTests
from tests.models.suite.compiling import CompilingTests
from tests.models.suite.generating import GeneratingTests
from tests.models.suite.padding import PaddingTests
from tests.models.suite.saving import SavingTests
from tests.models.suite.training import TrainingTests

__all__ = ["PADS", "VOCAB", "CompiledModelSuite", "ModelSuite", "perturb"]


class ModelSuite(SavingTests, PaddingTests, CachingTests, GeneratingTests, CallingTests, TrainingTests):
    """What holds for each family, in both directions it supports."""


class CompiledModelSuite(ModelSuite, CompilingTests):
    """The common tests and those of compiled and exported graphs, which take half of the time of all."""
