"""What a configuration or model says of files of code beside it, its `auto_map`: nothing, unless there are some."""

import os
from typing import Any, ClassVar

from transformers import PreTrainedConfig

__all__ = ["CodeReferences", "refuse_own_classes"]


def refuse_own_classes(cls: type) -> None:
    """Refuse to have the code of one of the package's classes saved with its objects.

    The library copies the file of the class and its siblings, and the package's files import from elsewhere, too. The
    classes of exported code, and those of other people, are in modules of other names.

    Raises:
        ValueError: naming what to do instead.
    """
    if cls.__module__.startswith("hf_seqmix."):
        raise ValueError(
            f"{cls.__name__} cannot be registered to be saved with its code, which stands in many folders: use "
            "hf_seqmix.hub.export(model, processor, folder), which writes the code beside the weights."
        )


class _NoCode:
    """What `auto_map` reads as where a configuration names no files of code: no names.

    TRL asks for it without looking whether it is there. No part of the configuration's fields: nothing is saved, and
    an `auto_map` that is set is found before this.
    """

    def __get__(self, config: PreTrainedConfig | None, owner: type) -> dict[str, str]:
        if config is None or config._auto_class is not None:  # then the library is to make one when it saves
            raise AttributeError("auto_map")
        return {}


class CodeReferences(PreTrainedConfig):
    """A configuration that names files of code only where there are some."""

    auto_map: ClassVar[_NoCode] = _NoCode()

    @classmethod
    def register_for_auto_class(cls, auto_class: str | type = "AutoConfig") -> None:
        """Register as the library does; the package's own classes are refused, see `refuse_own_classes`."""
        refuse_own_classes(cls)
        super().register_for_auto_class(auto_class)

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save as the library does, but not the names of a repository's own files of code, which stay where they were.

        A repository opened by its own code is saved with it, names and all.
        """
        held = vars(self).get("auto_map")
        if self._auto_class is None and isinstance(held, dict):
            elsewhere = {name: reference for name, reference in held.items() if "--" in str(reference)}
            del vars(self)["auto_map"]
            if elsewhere:
                vars(self)["auto_map"] = elsewhere
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            if held is not None:
                vars(self)["auto_map"] = held
