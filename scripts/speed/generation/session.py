"""What is measured of models that generate, all in turn, each after it was checked; and what was measured before."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from timing.parameters import count
from timing.protocol import Time, machine

from hf_seqmix.cache.size import cache_bytes
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.results import Result
from hf_seqmix.training.timing import peak_bytes

from .costs import CostCounter, kernel_bytes
from .models import Contender, Sizes, Text, check, logits_error, ready, text_after

__all__ = ["Session"]

PEAK_STEPS = 4

Figures = dict[str, float]
Measure = Callable[[Contender, int, int, int], Figures | None]
"""Takes model, batch, and the tokens from which and to which; None for what takes too long."""


class Session:
    """Models, built and checked when they are first needed, and what has been measured of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.left = Time(arguments.minutes)
        self.log = ResultFile(Path(arguments.output_dir) / "stretches.jsonl")
        self.dtype = getattr(torch, arguments.dtype)
        longest = max(arguments.tokens, *arguments.marks)
        own = (arguments.prompt, arguments.order, arguments.tolerance)
        self.sizes = Sizes(arguments.hidden_size, arguments.layers, longest, *own)
        names = ("hidden_size", "layers", "prompt", "dtype", "device", "threads")
        self._setting = {name: getattr(arguments, name) for name in names}
        self._setting |= {"longest": longest, **machine(arguments.device)}
        self._models: dict[Contender, Any] = {}
        self._texts: dict[tuple[Contender, int], Text] = {}

    @property
    def results(self) -> list[Result]:
        """What has been measured under the settings of this command."""
        own = {str(of): self._setting_of(of).items() for of in self.arguments.models}
        return [
            result
            for result in self.log.results
            if result.model in own and own[result.model] <= result.setting.items()
        ]

    def _setting_of(self, of: Contender) -> dict[str, Any]:
        distilled = {"order": self.sizes.order, "tolerance": self.sizes.tolerance}
        return self._setting | (distilled if of.way == "distilled" else {})

    def _model(self, of: Contender) -> Any:
        """Return a model that was checked, or None where there is none."""
        if of not in self._models:
            try:
                model = ready(of, self.sizes).to(self.arguments.device)
            except ValueError as error:
                print(f"left out: {error}", file=sys.stderr)
                model = None
            if model is not None:
                longest = max(self.sizes.longest, self.arguments.checked, *self.arguments.check_at)
                room = self.sizes._replace(longest=longest)  # a check may be longer than what is timed
                check(of, model, self.arguments.checked, self.arguments.check_at, room)
                model.to(self.dtype)
                text_after(model, of.way, 1, 0, self.sizes).turn(2)  # allocates
            self._models[of] = model
        return self._models[of]

    def text(self, of: Contender, batch: int, start: int) -> Text:
        """Return a text after some tokens."""
        return text_after(self._model(of), of.way, batch, start, self.sizes)

    def each(self, part: str, places: Sequence[tuple[int, int, int]], measure: Measure, recompute: bool) -> None:
        """Measure what has not been measured, all models in turn at each place.

        Args:
            part: of the command.
            places: batch, and the tokens from which and to which.
            measure: returns the figures.
            recompute: whether the models without a cache are measured, or the others.
        """
        begin = time.monotonic()
        models = [of for of in self.arguments.models if (of.way == "recompute") == recompute]
        for turn, (batch, start, stop) in enumerate(places):
            place = {"part": part, "batch": batch, "start": start, "stop": stop}
            known = {result.model for result in self.results if place.items() <= result.setting.items()}
            lacking = [of for of in models if str(of) not in known]
            first = turn % max(1, len(lacking))
            found: list[Result] = []
            for of in lacking[first:] + lacking[:first]:
                if self.left.is_over() or self._model(of) is None:
                    continue
                try:
                    figures = measure(of, batch, start, stop)
                except torch.OutOfMemoryError:
                    print(f"{of}: out of memory at batch {batch}, {stop} tokens", file=sys.stderr)
                    continue
                setting: dict[str, Any] = place | self._setting_of(of)
                found += [Result("decoding", str(of), *figure, setting=setting) for figure in (figures or {}).items()]
            if found:
                names = list(dict.fromkeys(result.model for result in found))
                self.log.append(place | self._setting | {"models": names}, found)
                print(f"{part}, batch {batch}, {stop} tokens: {', '.join(names)}", file=sys.stderr)
        print(f"{part}: {(time.monotonic() - begin) / 60:.1f} minutes", file=sys.stderr)

    def _timed(self, text: Text, start: int, tokens: int, logits: bool = False) -> tuple[Figures, torch.Tensor]:
        seconds, kept = text.turn(tokens, logits)
        # The first token of a text pays for the prompt: it is not the worst.
        worst = max(seconds[1:] if start == 0 and tokens > 1 else seconds)
        figures = {"seconds": sum(seconds), "median_ms": 1e3 * statistics.median(seconds), "worst_ms": 1e3 * worst}
        return figures | {"parameters": count(text.model)}, kept

    def whole(self, of: Contender, batch: int, start: int, stop: int) -> Figures:
        """Time the next turn of a text that lives on."""
        text = self._texts.get((of, batch))
        if text is None or text.new != start:
            text = self._texts[of, batch] = self.text(of, batch, start)
        compared = self.dtype == torch.float32 and stop in self.arguments.check_at
        figures, logits = self._timed(text, start, stop - start, compared)
        return figures | ({"error": logits_error(of, text, logits)} if compared else {})

    def window(self, of: Contender, batch: int, start: int, stop: int) -> Figures:
        """Time the tokens before a mark, after a prompt."""
        return self._timed(self.text(of, batch, start), start, stop - start)[0]

    def recompute(self, of: Contender, batch: int, start: int, stop: int) -> Figures | None:
        """Do as `window`, unless a token is expected to take too long, after the longest text so far."""
        timed = [result for result in self.results if (result.model, result.metric) == (str(of), "median_ms")]
        of_batch = [result for result in timed if result.setting["batch"] == batch and result.value is not None]
        last: Any = max(of_batch, key=lambda result: int(result.setting["stop"] or 0), default=None)
        if last is not None and 1e-3 * last.value * stop / last.setting["stop"] > self.arguments.longest_token:
            return None
        return self.window(of, batch, start, stop)

    def costs(self, of: Contender, batch: int, start: int, stop: int) -> Figures:
        """Count what the tokens before a mark cost, without compiling."""
        start = stop - 1 if of.way == "recompute" else start
        text = text_after(self._model(of), of.way, batch, start, self.sizes, compiles=False)
        with torch.no_grad(), CostCounter() as counter:
            text.turn(stop - start)
        if counter.others:
            print(f"{of}: kernels counted by their tensors: {', '.join(sorted(counter.others))}", file=sys.stderr)
        million = 1e6 * batch * (stop - start)
        figures = {"mflop": counter.flops / million, "mb": counter.bytes / million}
        figures |= {"cache_mib": cache_bytes(text.cache) / 2**20, "kernel_mib": kernel_bytes(text.cache) / 2**20}
        figures["parameters"] = count(text.model)
        steps = 1 if of.way == "recompute" else PEAK_STEPS
        return figures | {"peak_mib": peak_bytes(lambda: text.turn(steps), text.ids.device) / 2**20}

    def forget_texts(self) -> None:
        """Let the texts and caches go."""
        self._texts.clear()
