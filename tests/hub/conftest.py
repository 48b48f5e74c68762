"""One export of each kind of model, shared by the tests of a session."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers.utils.hub import HF_MODULES_CACHE

from hf_seqmix import (
    FDTNNConfig,
    FDTNNForImageClassification,
    IPAConfig,
    IPAForCausalLM,
    PolyTransformerConfig,
    PolyTransformerForSequenceClassification,
    SeqMixHybridConfig,
    SeqMixHybridForCausalLM,
    SeqMixHybridForImageClassification,
    SeqMixHybridModel,
    SeqMixImageProcessor,
    SKITNNConfig,
    SKITNNForMaskedLM,
    TNNConfig,
    TNNForCausalLM,
)
from hf_seqmix.data import train_bpe
from hf_seqmix.hub import export

TEXT: dict[str, Any] = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 16}


@pytest.hookimpl(tryfirst=True)  # before the workers are given their names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker run all tests of the exports, which then are made once."""
    for item in items:
        if "exported" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("exported"))


class Exported(NamedTuple):
    """A repository, what was exported, and its processor."""

    folder: Path
    model: Any
    processor: Any


def perturbed(model: Any) -> Any:
    """Move every parameter, so that no zero or one of the beginning is left."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    torch.manual_seed(0)
    mixers = ["tnn", "attention", "ipa", "fd_tnn", "poly_transformer", "short_conv"]
    images = FDTNNConfig(
        hidden_size=16, num_hidden_layers=1, is_causal=False, image_size=8, mixing_dimensions=2, short_conv_taps=3
    )
    models = {
        "tnn": TNNForCausalLM(TNNConfig(**TEXT, ngram_sizes=[2, 3], ngram_buckets=32)),
        "fd_tnn": FDTNNForImageClassification(images),
        "ski_tnn": SKITNNForMaskedLM(SKITNNConfig(**TEXT, num_inducing_points=4)),
        "ipa": IPAForCausalLM(
            IPAConfig(**TEXT, token_shift=2, copy_head=True, copy_head_tokens=2, copy_head_state=True)
        ),
        "poly_transformer": PolyTransformerForSequenceClassification(
            PolyTransformerConfig(**TEXT, num_labels=3, kernel_power=2, forget_gate=True)
        ),
        "seqmix_hybrid": SeqMixHybridForCausalLM(
            SeqMixHybridConfig(**{**TEXT, "num_hidden_layers": len(mixers)}, mixer_types=mixers, short_conv_taps=3)
        ),
    }
    models["attention"] = SeqMixHybridModel(SeqMixHybridConfig(**TEXT))  # the control, and a model without a head
    processors = {
        "tnn": train_bpe(["def main(x): return x + 1\n"] * 3, 260),
        "fd_tnn": SeqMixImageProcessor.for_model(images),
    }
    images = SeqMixHybridConfig(
        hidden_size=16,
        mixer_types=["ipa", "attention"],
        # No layers, but their code, as in a hybrid of all.
        mixer_configs={"tnn": {}, "fd_tnn": {}, "ski_tnn": {"num_inducing_points": 2}, "poly_transformer": {}},
        is_causal=False,
        image_size=[4, 6],
        patch_size=2,
        num_channels=1,
    )
    models["images"] = SeqMixHybridForImageClassification(images)
    processors["images"] = SeqMixImageProcessor.for_model(images)
    folder = tmp_path_factory.mktemp("exported")
    return {
        name: Exported(
            export(
                perturbed(model), processors.get(name), folder / name, max_shard_size="8KB" if name == "ipa" else "5GB"
            ),
            model,
            processors.get(name),
        )
        for name, model in models.items()
    }


@pytest.fixture(scope="session")
def modules_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the library copies code to; one for all, since the library imports from the first."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        # Another test may have made the library look in the user's own folder, where other repositories have these
        # names.
        elsewhere = os.path.realpath(HF_MODULES_CACHE)
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
        patch.setattr("sys.path", [path for path in sys.path if os.path.realpath(path) != elsewhere])
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
            patch.delitem(sys.modules, name)
        yield folder
