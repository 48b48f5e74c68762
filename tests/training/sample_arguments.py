"""Arguments of a training script that reads no model and no data."""

from dataclasses import dataclass, field

from hf_seqmix.training.arguments import Arguments, RunArguments, arguments_parser, read_arguments


@dataclass
class Model:
    """What is trained."""

    model_type: str | None = None
    config_overrides: list[str] = field(default_factory=list, metadata={"action": "extend"})


@dataclass
class Data:
    """What it is trained on."""

    dataset: str | None = None
    train_file: str | None = None


KINDS = (Model, Data, RunArguments)


def parse(*argv: str) -> Arguments[Model, Data, RunArguments]:
    parser = arguments_parser(KINDS, "usage", None, {"learning_rate": 0.5})
    replaces = {"train_file": {"dataset"}}
    return Arguments(*read_arguments(parser, KINDS, [*argv, "--use-cpu"], replaces))
