"""What the models of the benchmark `leaderboard` cost: training at several lengths, decoding after long prompts.

Models have random weights. All of them are measured in turns, in one process a length.
"""

import argparse
import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, StoppingCriteriaList

from hf_seqmix import __version__
from hf_seqmix._compat import CACHE_NAME
from hf_seqmix.cache.size import cache_bytes
from hf_seqmix.training import config_from_overrides, parse_overrides
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result, group_results, with_run
from hf_seqmix.training.run import Run
from hf_seqmix.training.timing import Clock, Timed, TokenClock, in_fresh_process, interleave, medians_ms, peak_bytes

from ..results import LOG, Report, origin
from .models import language_recipe

WARM, NEW_TOKENS = 8, 64
"""Tokens of a generation that do not count, and those over which the seconds of a token are averaged."""
TOKENS = 8192
"""Of an update that is timed, where nothing else is said."""

logger = logging.getLogger("run_benchmarks")


@dataclass(frozen=True)
class Contest:
    """What is measured in one go.

    Attributes:
        models: name -> `model_type` and `config_overrides`.
        objective: "causal" or "masked".
        vocab_size: of all models.
        length: tokens of a row, or of a prompt.
        tokens: of an update, in rows of the length; one row at least.
        rounds: how often each is timed.
        seconds: after which no further round begins.
        device: what it runs on.
        threads: of a CPU.
        bf16: whether training is timed in bfloat16; decoding is in float32.
    """

    models: Mapping[str, Mapping[str, Any]]
    objective: str
    vocab_size: int
    length: int
    tokens: int
    rounds: int
    seconds: float
    device: str
    threads: int
    bf16: bool


def build(contest: Contest, name: str) -> Any:
    """Return a model with random weights, laid out for the length."""
    auto = AutoModelForCausalLM if contest.objective == "causal" else AutoModelForMaskedLM
    model = contest.models[name]
    fields = {**model["config_overrides"], "max_position_embeddings": contest.length}
    if contest.objective == "causal":
        fields["max_position_embeddings"] += WARM + NEW_TOKENS
    derived: dict[str, Any] = {"vocab_size": contest.vocab_size, "is_causal": contest.objective == "causal"}
    derived |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    torch.manual_seed(0)
    return auto.from_config(config_from_overrides(model["model_type"], fields, derived)).to(contest.device)


def training_costs(contest: Contest) -> dict[str, dict[str, Any]]:
    """Return tokens a second and peak memory of forward and backward passes of each model.

    The optimizer's part is the same for all and left out. Peak memory is that of all tensors alive at once, weights
    and gradients included.

    Returns:
        name -> `tokens_per_second`, `peak_memory_mib`.
    """
    torch.set_num_threads(contest.threads)
    device = torch.device(contest.device)
    rows = max(1, contest.tokens // contest.length)
    ids = torch.randint(contest.vocab_size, (rows, contest.length), generator=torch.Generator().manual_seed(0))
    ids = ids.to(device)
    candidates: dict[str, Timed] = {}
    found: dict[str, dict[str, Any]] = {}
    for name in contest.models:
        model = build(contest, name).train()
        # As pretrain.py trains: a copy head computes no logits beside the loss.
        options = {} if getattr(model, "copy_head", None) is None else {"skip_logits": True}

        def update(model: Any = model, options: Mapping[str, Any] = options) -> None:
            model.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=contest.bf16):
                loss = model(input_ids=ids, labels=ids, **options).loss
            loss.backward()

        def once(clock: Clock, update: Any = update) -> tuple[float, ...]:
            begin = clock.begin()
            update()
            return (clock.between(begin, clock.mark()),)

        own = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        logger.info(f"training at {contest.length} tokens: memory of {name}")
        update()  # what is made once, such as plans of transforms, is not an update's
        found[name] = {"peak_memory_mib": (own + peak_bytes(update, device)) / 2**20}
        model.zero_grad()
        candidates[name] = once
    logger.info(f"training at {contest.length} tokens: timing {', '.join(candidates)}")
    seconds = interleave(candidates, contest.rounds, Clock(device), budget=contest.seconds, drawn=True)
    for name, measured in seconds.items():
        found[name]["tokens_per_second"] = 1e3 * rows * contest.length / medians_ms(measured)[0]
    return found


@torch.inference_mode()
def decoding_costs(contest: Contest) -> dict[str, dict[str, Any]]:
    """Return the milliseconds of a token after a prompt, and the memory of the cache after these tokens, in float32.

    A token takes the mean over `NEW_TOKENS` tokens, of which some cost more than others in Toeplitz layers. The first
    ones do not count: they allocate. The models are measured in turns, and of several rounds the median counts.

    Returns:
        name -> `prompt_ms`, `token_ms`, `cache_mib`.
    """
    torch.set_num_threads(contest.threads)
    device = torch.device(contest.device)
    ids = torch.randint(contest.vocab_size, (1, contest.length), generator=torch.Generator().manual_seed(0))
    ids = ids.to(device)
    models = {name: build(contest, name).eval() for name in contest.models}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    # In turns, so that a slow minute of the machine is no model's own.
    for number in range(contest.rounds):
        logger.info(f"decoding after {contest.length} tokens: round {number + 1} of {contest.rounds}")
        for name, model in models.items():
            measured[name].append(_decoded(model, ids))
    return {
        name: {metric: statistics.median(each[metric] for each in rounds) for metric in rounds[0]}
        for name, rounds in measured.items()
    }


def _decoded(model: Any, ids: torch.Tensor) -> dict[str, float]:
    """Return what a prompt and the tokens after it took once."""
    clock = TokenClock(ids.device, time.perf_counter)
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=WARM + NEW_TOKENS,
        max_new_tokens=WARM + NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    return {
        "prompt_ms": 1e3 * clock.seconds[0],
        "token_ms": 1e3 * sum(clock.seconds[WARM:]) / NEW_TOKENS,
        "cache_mib": cache_bytes(getattr(made, CACHE_NAME)) / 2**20,
    }


def run_costs(arguments: argparse.Namespace) -> Report:
    """Measure training and decoding of all models in turns, a process for each length."""
    log = ResultFile(arguments.output_dir / LOG)
    sizes = (arguments.vocab_size, arguments.times_as_wide, parse_overrides(arguments.data).get("block_size"))
    models = {name: language_recipe(arguments.objective, name, *sizes)["model"] for name in arguments.models}
    measured: list[tuple[str, Callable[[Contest], Any], list[int]]] = [("training", training_costs, arguments.lengths)]
    if arguments.objective == "causal":
        measured.append(("decoding", decoding_costs, arguments.prompts))
    report = Report()
    for kind, function, lengths in [] if arguments.costs else measured:
        for length in lengths:
            contest = Contest(
                models=models,
                objective=arguments.objective,
                vocab_size=arguments.vocab_size,
                length=length,
                tokens=arguments.tokens or (length if arguments.size == "fast" else TOKENS),
                rounds=arguments.rounds,
                seconds=600.0,
                device=arguments.device,
                threads=torch.get_num_threads(),
                bf16=arguments.bf16,
            )
            report.results += _costs(arguments, log, kind, function, contest)
    return report


def _costs(
    arguments: argparse.Namespace, log: ResultFile, kind: str, function: Callable[[Contest], Any], contest: Contest
) -> list[Result]:
    words = json.dumps(
        [contest.models, contest.vocab_size, contest.device, contest.threads, contest.bf16, contest.rounds],
        sort_keys=True,
    )
    key = {
        "benchmark": arguments.benchmark,
        "version": __version__,
        "costs": f"{contest.objective} {kind}",
        "length": contest.length,
        "models": hashlib.sha256(words.encode()).hexdigest()[:12],
    }
    data = {"vocab_size": contest.vocab_size}
    if kind == "training" and contest.tokens != TOKENS:
        key["tokens"] = data["tokens"] = contest.tokens
    results = None if arguments.overwrite else log.get(key)
    if results is not None:
        return results
    found = in_fresh_process(function, contest)
    setting: dict[str, Any] = {"length": contest.length, "objective": contest.objective, "device": contest.device}
    low = kind == "training" and contest.bf16
    setting |= {"threads": contest.threads, "dtype": "bfloat16" if low else "float32"}
    results = []
    for name, values in found.items():
        shared = {"task": kind, "model": name, "size": arguments.size, "setting": setting}
        results += group_results(values, **shared, **origin(arguments.benchmark))
    results = with_run(results, Run(kind, data=data), contest.models)
    log.append(key, results)
    return results
