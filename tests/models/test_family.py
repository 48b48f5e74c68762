"""The row of a family: which classes it has, and what it refuses."""

import pytest
from torch import nn

from hf_seqmix import Family, SKITNNConfig
from hf_seqmix.models.auto import AUTO_CLASSES, FAMILIES
from hf_seqmix.models.backbone import SeqMixModel, SeqMixPreTrainedModel


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
