import json

from hf_seqmix.training.environment import run_environment


def test_environment_is_json():
    environment = json.loads(json.dumps(run_environment()))
    assert environment["versions"]["torch"]
    assert environment["command"].startswith("python ")
