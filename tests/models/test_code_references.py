"""What configurations say of files of code beside them."""

import json

from hf_seqmix import TNNConfig


def test_a_configuration_without_code_files_names_none(tmp_path):
    config = TNNConfig(vocab_size=9, hidden_size=8)
    assert config.auto_map == {} and "auto_map" not in config.to_dict()
    config.auto_map["AutoModel"] = "elsewhere.X"
    assert config.auto_map == {} and TNNConfig(vocab_size=9, hidden_size=8).auto_map == {}
    config.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert TNNConfig(auto_map={"AutoConfig": "a.B"}).auto_map == {"AutoConfig": "a.B"}
