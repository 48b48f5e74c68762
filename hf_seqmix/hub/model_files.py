"""Which files of a folder or repository belong to the model in it, so that they must not stay when another one is put there."""

from fnmatch import fnmatchcase

__all__ = ["belongs_to_model", "belongs_to_repository"]

# A single weight file is read before the index of a sharded one, an adapter is put on top, a tokenizer is taken for the model's.
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
    """Whether a file, by its name in the folder, is of a model's weights, configuration or tokenizer."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _OF_A_MODEL)


def belongs_to_repository(name: str) -> bool:
    """Whether a file is of a model, or code or weights of any kind, for which only a model's repository has a place."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _OF_A_REPOSITORY)
