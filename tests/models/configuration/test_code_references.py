"""What configurations and models say of files of code beside them."""

import json

import pytest

from hf_seqmix import SeqMixHybridModel, TNNConfig, TNNForCausalLM


def test_a_configuration_without_code_files_names_none(tmp_path):
    config = TNNConfig(vocab_size=9, hidden_size=8)
    assert config.auto_map == {} and "auto_map" not in config.to_dict()
    config.auto_map["AutoModel"] = "elsewhere.X"
    assert config.auto_map == {} and TNNConfig(vocab_size=9, hidden_size=8).auto_map == {}
    config.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert TNNConfig(auto_map={"AutoConfig": "a.B"}).auto_map == {"AutoConfig": "a.B"}


@pytest.mark.parametrize("cls", [TNNConfig, TNNForCausalLM, SeqMixHybridModel])
def test_classes_of_the_package_are_not_saved_with_their_code(cls):
    """The library would copy a file that imports from folders beside its own."""
    with pytest.raises(ValueError, match=rf"{cls.__name__} cannot be registered .*hf_seqmix\.hub\.export\(model"):
        cls.register_for_auto_class()
    assert cls._auto_class is None

    class Own(cls):
        """Of other people."""

    Own.register_for_auto_class("AutoModel")
    assert Own._auto_class == "AutoModel" and cls._auto_class is None
