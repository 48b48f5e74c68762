"""What timings of generation share: checkpoints, prompts of code, and the check that two ways give equal tokens."""

import inspect
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing.protocol import WrongResultError
from transformers import AutoTokenizer

from hf_seqmix.models.auto import AUTO_CLASSES  # its module registers every family

__all__ = ["Request", "alone", "check_tokens", "code_requests", "load"]


class Request(NamedTuple):
    """The tokens of a prompt, and how many are asked for."""

    prompt: list[int]
    new_tokens: int


def load(folder: str, dtype: torch.dtype, device: str) -> Any:
    """Open a checkpoint that ends no text by itself, so that every request gets what it asks for."""
    model = AUTO_CLASSES["ForCausalLM"].from_pretrained(folder, dtype=dtype).to(device).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def code_requests(folder: str, count: int, prompt: tuple[int, int], new: tuple[int, int]) -> list[Request]:
    """Cut prompts from a module of Python's standard library, at places and with lengths that are drawn.

    Args:
        folder: of a checkpoint, for its tokenizer.
        count: how many.
        prompt: fewest and most tokens of a prompt.
        new: fewest and most tokens that are asked for.
    """
    tokens = AutoTokenizer.from_pretrained(folder)(Path(inspect.getfile(inspect)).read_text(encoding="utf-8"))
    ids, draw = tokens["input_ids"], random.Random(0)
    requests = []
    for _ in range(count):
        length = draw.randint(*prompt)
        if length >= len(ids):
            raise ValueError(f"prompts of {length} tokens were asked for, and the text has {len(ids)}: ask for fewer.")
        start = draw.randrange(len(ids) - length)
        requests.append(Request(ids[start : start + length], draw.randint(*new)))
    return requests


def alone(model: Any, request: Request, **options: Any) -> list[int]:
    """Return the tokens that `generate` gives to one request, by greedy search."""
    ids = torch.tensor([request.prompt], device=model.device)
    sequence = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.new_tokens, do_sample=False, **options
    )
    return sequence[0, len(request.prompt) :].tolist()


def check_tokens(
    name: str, requests: Sequence[Request], found: Sequence[list[int]], expected: Callable[[Request], list[int]]
) -> None:
    """Compare the tokens of requests with those of `generate`.

    Raises:
        WrongResultError: naming the request and the place of the first difference.
    """
    for number, (request, tokens) in enumerate(zip(requests, found, strict=True)):
        right = expected(request)
        if tokens != right:
            place = next((i for i, (a, b) in enumerate(zip(tokens, right, strict=False)) if a != b), len(tokens))
            raise WrongResultError(f"{name} differs from generate at token {place} of request {number}.")
