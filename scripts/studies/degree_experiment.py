r"""Does a layer of degree 3 learn more from the same parameters than layers of degree 2 and 4?

    python scripts/studies/degree_experiment.py train --form fully-connected --output-dir runs/degree/fully-connected
    python scripts/studies/degree_experiment.py train --form sequence --token-width 2 --width 10 --batch-size 64 \
        --output-dir runs/degree/sequence
    python scripts/studies/degree_experiment.py ranks --output-dir runs/degree/ranks
    python scripts/studies/degree_experiment.py log-ranks --output-dir runs/degree/log-ranks
    python scripts/studies/degree_experiment.py effective-ranks --output-dir runs/degree/effective-ranks

`train` fits products of pairs of tokens, whose separation rank between the halves of the input is large or, with
other pairs, 1, or polynomials of the largest rank that their degree allows, with residual nets of layers of degree 2,
3 and 4 and of fractional degrees: polynomials with static norms, or layers with batch norms, tanh and heads. Depths
are equal in parameters; the learning rate is chosen on seeds of its own. All nets of an architecture are trained side
by side. Each line of results.jsonl is an architecture at a task; a killed run goes on where it stopped when the
command is given again. Writes table.md and plots at the end. `ranks` prints exact separation ranks modulo a prime
beside what they are said to be. `log-ranks` prints how these ranks grow with depth, degree and width, and the share
of random sums of monomials whose rank is the number of monomials. `effective-ranks` prints how many products suffice
for nets of random weights within an error.
"""

import argparse
import dataclasses
import logging
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from degree.effective import write_effective_rank_tables
from degree.log_ranks import write_log_rank_tables
from degree.nets import WHOLE, Architecture, Layers, architectures, build_net, draw_rows, rank_of
from degree.options import LEGENDRE, parse_arguments
from degree.report import results_of, run_of, write_report
from degree.tables import write_rank_tables
from degree.training import Schedule, clipped, train_nets

from hf_seqmix.data import SeparationTask, separation_task
from hf_seqmix.training import prepare_run_folder
from hf_seqmix.training.command import explained
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import ResultFile
from hf_seqmix.training.run import run_of as run_of_arguments

logger = logging.getLogger("degree_experiment")


class Experiment:
    """The runs of one form: trained when they are first asked for, read from results.jsonl after that."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder = prepare_run_folder(arguments.output_dir, resume=True)
        self.tasks = {name: self._task(name) for name in arguments.tasks}
        self.layers = Layers(arguments.norm_type, arguments.activation, arguments.num_heads)
        self.schedule = Schedule(steps=arguments.steps, batch_size=arguments.batch_size)
        self.log = ResultFile(self.folder / "results.jsonl")
        self.nets = [
            net
            for kind in arguments.projections
            for net in architectures(arguments.form, arguments.width, arguments.budget, kind == "affine")
            if net.depth >= arguments.min_depth
        ]

    def _task(self, name: str) -> SeparationTask:
        if name.startswith(LEGENDRE):
            return separation_task("legendre_products", degree=int(name.removeprefix(LEGENDRE)))
        return separation_task(name, num_tokens=self.arguments.num_tokens, width=self.arguments.token_width)

    def key(self, net: Architecture, task: str) -> dict[str, Any]:
        """Return everything that the run of an architecture at a task depends on."""
        arguments = self.arguments
        names = ("learning_rates", "sweep_seeds", "seeds", "steps", "batch_size")
        settings = {"num_tokens": self.tasks[task].num_tokens, "token_width": self.tasks[task].width}
        settings |= {name: getattr(arguments, name) for name in names}
        # Lines of before have no such settings, and are of the default ones.
        default = dataclasses.asdict(Layers())
        changed = {name: value for name, value in dataclasses.asdict(self.layers).items() if value != default[name]}
        degrees = [float(degree) for degree in net.degrees]
        return (
            {
                "form": net.form,
                "kind": net.kind,
                "degrees": degrees,
                "width": net.width,
                "affine": net.affine,
                "overhead": net.overhead,
                "task": task,
            }
            | settings
            | changed
        )

    def plan(self) -> list[tuple[str, Architecture]]:
        """Return tasks and nets, what matters most first.

        These are the budget's nets of whole degrees at every task, nets of other degrees, and at the first task
        nets of other sizes.
        """
        budget = self.arguments.budget * self.arguments.width**2
        equal = [
            net
            for net in self.nets
            if abs(net.projections / budget - 1) < 0.08 and net.overhead == (net.form == "sequence")
        ]
        whole = [net for net in equal if net.kind in WHOLE]
        tasks = self.arguments.tasks
        if self.arguments.whole_only:
            return [(task, net) for task in tasks for net in whole]
        first = [
            (task, net)
            for part in (whole, [net for net in equal if net not in whole])
            for task in tasks
            for net in part
        ]
        return first + [(tasks[0], net) for net in self.nets if net not in equal]

    def run(self, net: Architecture, name: str) -> dict[str, Any]:
        """Return the result of an architecture at a task."""
        key, task = self.key(net, name), self.tasks[name]
        found = self.log.get(key)
        if found is None:
            begin = time.monotonic()
            result = self._train(net, task) | {"train_seconds": round(time.monotonic() - begin, 2)}
            origin = {"command": portable_command(self.folder.name), "environment": environment_of()}
            found = results_of(key, result, **origin)
            self.log.append(key, found)
        return run_of(found)

    def _train(self, net: Architecture, task: SeparationTask) -> dict[str, Any]:
        arguments = self.arguments
        rates, seeds = arguments.learning_rates, arguments.sweep_seeds
        swept = self._fit(net, task, [rate for rate in rates for _ in seeds], list(seeds) * len(rates))
        # On validation rows; the errors that are reported are of others.
        reached = [curve[-1] for curve in swept["curves"]]
        # A rate at which a seed diverged or was stuck counts as the geometric mean says; 1 is the error of the mean.
        scores = [
            sum(math.log(clipped(error)) for error in reached[i * len(seeds) : (i + 1) * len(seeds)]) / len(seeds)
            for i in range(len(rates))
        ]
        best = rates[min(range(len(rates)), key=scores.__getitem__)]
        final = self._fit(net, task, [best] * len(arguments.seeds), arguments.seeds)
        rank = rank_of(net, task, (task.rank or 0) + 1) if self.layers.is_dense_polynomial else None
        degree = math.inf if rank is None else math.prod(net.degrees)
        return {
            "projections": net.projections,
            "with_overhead": net.with_overhead,
            "depth": net.depth,
            "rate": best,
            "best_at_edge": best in (min(rates), max(rates)),
            "sweep": [[rate, math.exp(score)] for rate, score in zip(rates, scores, strict=True)],
            "separation_rank": rank,
            "task_rank": task.rank,
            "bound": 0.0 if rank is None else task.mse_bound(rank, degree),
            **final,
        }

    def _fit(self, net: Architecture, task: SeparationTask, rates: list[float], seeds: list[int]) -> dict[str, Any]:
        built = {seed: build_net(net, task, seed, self.layers) for seed in set(seeds)}
        done = train_nets([built[seed] for seed in seeds], rates, seeds, draw_rows(task), self.schedule)
        return {
            "errors": [_finite(error) for error in done.errors.tolist()],
            "curve_steps": done.curve_steps,
            "curves": [[_finite(error) for error in curve] for curve in done.curves.tolist()],
        }


def _finite(error: float) -> float | None:
    return float(f"{error:.6g}") if math.isfinite(error) else None


@explained("degree_experiment.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line and return what the tables show; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv, __doc__)
        torch.set_num_threads(arguments.threads)
        if arguments.command != "train" and arguments.output_dir is not None:
            arguments.output_dir.mkdir(parents=True, exist_ok=True)  # refused before minutes of computing
        if arguments.command == "ranks":
            return write_rank_tables(arguments.output_dir, arguments.max_size, run_of_arguments(arguments, "ranks"))
        if arguments.command == "log-ranks":
            run = run_of_arguments(arguments, "log-ranks")
            return write_log_rank_tables(arguments.output_dir, arguments.max_size, arguments.draws, run)
        if arguments.command == "effective-ranks":
            run = run_of_arguments(arguments, "effective-ranks")
            return write_effective_rank_tables(arguments.output_dir, arguments.draws, run)
        experiment = Experiment(arguments)
    except ValueError as error:
        sys.exit(f"degree_experiment.py: {error}")
    results: list[dict[str, Any]] = []
    for name, net in experiment.plan():
        if arguments.report_only and experiment.log.get(experiment.key(net, name)) is None:
            continue
        result = experiment.run(net, name)
        results.append(experiment.key(net, name) | result)
        logger.info(
            "%s, degree %s, depth %d, %s: rate %g, median error %.3g, %.0f s",
            name,
            net.kind,
            net.depth,
            "affine" if net.affine else "linear",
            result["rate"],
            statistics.median(map(clipped, result["errors"])),
            result["train_seconds"],
        )
    if not results:
        then = "leave --report-only out" if arguments.report_only else "they leave no net to train"
        sys.exit(f"degree_experiment.py: {experiment.folder} has no runs with these arguments: {then}.")
    return write_report(experiment.folder, arguments, results)


if __name__ == "__main__":
    main()
