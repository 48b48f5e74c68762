"""One number marks what is not predicted."""

import ast
from pathlib import Path

import torch

import hf_seqmix
from hf_seqmix._labels import IGNORED_LABEL

REPOSITORY = Path(hf_seqmix.__file__).parents[1]


def test_losses_of_torch_leave_it_out():
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORED_LABEL


def test_the_number_stands_in_one_file():
    for folder in ("hf_seqmix", "scripts"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if path.relative_to(REPOSITORY).parts[1] in ("metrics", "_labels.py"):  # `evaluate` runs copies of metrics
                continue
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            numbers = {ast.unparse(node) for node in nodes if isinstance(node, ast.UnaryOp)}
            assert "-100" not in numbers, f"{path} writes -100; import IGNORED_LABEL of hf_seqmix._labels"
