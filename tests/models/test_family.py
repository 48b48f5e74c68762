"""The row of a family: which classes it has, and what it refuses."""

import pytest
import torch
from torch import nn
from transformers.exporters.utils import apply_patches

from hf_seqmix import Family, SKITNNConfig
from hf_seqmix.models.auto import AUTO_CLASSES, FAMILIES
from hf_seqmix.models.backbone import SeqMixModel
from hf_seqmix.models.pretrained import SeqMixPreTrainedModel
from hf_seqmix.ops import causal_taps, toeplitz_matmul


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_every_class_has_the_configuration_and_the_backbone_of_its_family(family):
    heads = set(AUTO_CLASSES) - ({"ForCausalLM"} if family.config_class is SKITNNConfig else set())
    assert set(family.classes) == heads
    for suffix, cls in family.classes.items():
        assert cls.__name__ == family.prefix + suffix
        assert cls.config_class is family.config_class and issubclass(cls, family.pretrained)
        if suffix != "Model":
            assert cls.base_model_class is family.classes["Model"]
        assert cls.__doc__ and cls.__module__ == family.pretrained.__module__


def test_a_class_of_another_name_is_refused():
    class OwnPreTrainedModel(SeqMixPreTrainedModel):
        config_class = SKITNNConfig

    class OtherModel(SeqMixModel, OwnPreTrainedModel):
        pass

    with pytest.raises(ValueError, match="OtherModel is a class of the family 'Own': begin its name with that"):
        Family(OwnPreTrainedModel, lambda config, layer_idx: nn.Identity())


def test_the_librarys_exporters_to_other_runtimes_trace_real_numbers():
    class Mixes(torch.nn.Module):
        def forward(self, x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
            return toeplitz_matmul(x, kernel) + causal_taps(kernel)[0, 0]

    def targets() -> str:
        program = torch.export.export(Mixes(), (torch.ones(1, 2, 5), torch.ones(2, 5)))
        return " ".join(str(node.target) for node in program.graph.nodes)

    ours = targets()
    assert "hf_seqmix" in ours and "fft" in ours
    with apply_patches("onnx"):
        converted = targets()
    assert "hf_seqmix" not in converted and "fft" not in converted
