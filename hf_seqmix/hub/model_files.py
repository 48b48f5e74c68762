"""Which files of a folder or repository belong to its model.

These files must not stay when another model is written there.
"""

from fnmatch import fnmatchcase

__all__ = ["belongs_to_model", "belongs_to_repository"]

# The library reads a single weight file rather than the index of several, puts an adapter on the model that it opens,
# and takes any tokenizer for the model's.
_OF_A_MODEL = (
    *("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json"),
    *(
        "pytorch_model*.bin",
        "pytorch_model*.bin.index.json",
        "adapter_model.bin",
        "tf_model*.h5",
        "flax_model*.msgpack",
    ),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.*"),
    *("preprocessor_config.json", "processor_config.json"),
)
# A repository has its code, and nothing that is unpickled.
_OF_A_REPOSITORY = (*_OF_A_MODEL, "*.py", "*.bin", "*.bin.index.json", "*.h5", "*.msgpack")


def belongs_to_model(name: str) -> bool:
    """Whether a file of that name holds weights, a configuration or a tokenizer of a model."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _OF_A_MODEL)


def belongs_to_repository(name: str) -> bool:
    """Whether a file of that name is of a model, or holds code or weights of any kind."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _OF_A_REPOSITORY)
