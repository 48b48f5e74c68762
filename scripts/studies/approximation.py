"""Which relationships between sequences models learn: the experiments of Jiang and Li (arXiv 2305.18475), and more.

    python scripts/studies/approximation.py order --output-dir runs/order              # tables 2 and 3 of the paper
    python scripts/studies/approximation.py rate --output-dir runs/rate                # error against the head size
    python scripts/studies/approximation.py order --models rnn transformer tnn --seeds 0 1 2 --output-dir runs/order

order  trains models on a convolution, on the same with its inputs or its kernel in another order, and on mixed inputs,
       beside the least error that is possible, and beside a linear recurrent network whose readout is the optimum
rate   trains the paper's transformer, with one head size after another, on a coupling of known singular values, and
       fits how the error falls
"""

import argparse
import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from hf_seqmix.analysis.figures import draw_row, legend_below, line
from hf_seqmix.analysis.rates import (
    CouplingTarget,
    LinearRNN,
    LinearTarget,
    MixerRegressor,
    SingleHeadTransformer,
    Target,
    TrainedModel,
    TrainSettings,
    altered_targets,
    error_floors,
    train_on_target,
)
from hf_seqmix.analysis.spectra import fit_power_law
from hf_seqmix.training import explain_write_error
from hf_seqmix.training.environment import environment_of, portable_command
from hf_seqmix.training.result_files import ResultFile, write_report
from hf_seqmix.training.results import Result

MIXERS: dict[str, dict[str, Any]] = {
    "tnn": {},
    "fd_tnn": {},
    "ski_tnn": {"num_inducing_points": 8},
    "ipa": {"num_centers": 4, "kernel_norm": "prod"},
    "poly_transformer": {"degree": 3, "num_attention_heads": 4},
    "attention": {"num_heads": 4},
    "short_conv": {"taps": 5},
}
"""Mixers of this package, and their fields."""
MODELS = ("rnn", "rnn, solved", "transformer", *MIXERS)
KERNELS = ("exponential", "uniform")
FLOORS = ("time_dependent_mean", "causal_filter", "causal_linear", "bidirectional_linear")

logger = logging.getLogger("approximation")

Rows = list[dict[str, Any]]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="approximation.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    experiments = parser.add_subparsers(dest="experiment", required=True, metavar="experiment")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--output-dir", type=Path, required=True, help="where results, table and plot go")
    shared.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    shared.add_argument("--max-steps", type=int, default=TrainSettings.max_steps, help="updates of a run, at most")
    shared.add_argument("--rows", type=int, default=TrainSettings.rows, help="training rows of a run")
    shared.add_argument("--test-rows", type=int, default=TrainSettings.test_rows, help="held-out rows")
    order = experiments.add_parser("order", parents=[shared], allow_abbrev=False, description=run_order.__doc__)
    order.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    order.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    order.add_argument("--length", type=int, default=32, help="tokens of a row")
    order.set_defaults(run=run_order)
    rate = experiments.add_parser("rate", parents=[shared], allow_abbrev=False, description=run_rate.__doc__)
    rate.add_argument("--exponents", type=float, nargs="+", default=[0.55, 1.0], help="a of sigma_k = k^-a")
    rate.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 6, 64], help="of the coupling; 64 is beyond every head"
    )
    rate.add_argument("--head-sizes", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16])
    rate.add_argument("--num-heads", type=int, default=1)
    rate.add_argument("--num-layers", type=int, default=1)
    rate.set_defaults(run=run_rate)
    return parser


def settings_of(arguments: argparse.Namespace) -> TrainSettings:
    """Return how models are trained."""
    return TrainSettings(rows=arguments.rows, test_rows=arguments.test_rows, max_steps=arguments.max_steps)


class Log:
    """Trains models that the results file does not have yet, and shows how far training is."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.file = ResultFile(arguments.output_dir / f"{arguments.experiment}.jsonl")
        self.shared: dict[str, Any] = {"command": portable_command("approximation"), "environment": environment_of()}

    def train(self, make: Callable[[], nn.Module], target: Target, model: str, **setting: Any) -> list[Result]:
        """Return the errors of a model on a target, a result a seed: read, or measured and written."""
        settings = settings_of(self.arguments)
        words = {"model": model, **{name: str(value) for name, value in setting.items()}}
        key = {**words, "seeds": list(self.arguments.seeds), "training": dataclasses.asdict(settings)}
        done = self.file.get(key)
        if done is None:
            label = ", ".join(words.values())
            with tqdm(total=settings.max_steps, desc=label, unit=" updates", leave=False) as bar:

                def show(_: str, step: int, errors: list[float]) -> None:
                    bar.update(step - bar.n)
                    bar.set_postfix_str(f"{min(errors):.1e} to {max(errors):.1e}")

                trained = train_on_target(make, target, settings, self.arguments.seeds, show)
            done = [result for each in trained for result in self._results(each, model, setting)]
            self.file.append(key, done)
            logger.info(f"{label}: {', '.join(f'{each.test_error:.2e}' for each in trained)}")
        return done

    def note(self, model: str, value: float, kind: str = "measured", seed: int | None = None, **setting: Any) -> float:
        """Write an error that nothing was trained for, unless the file has it, and return the error."""
        key = {"model": model, "seed": seed, **{name: str(entry) for name, entry in setting.items()}}
        found = self.file.get(key)
        if found is None:
            found = [self._result(model, "test_error", value, seed, setting, kind=kind)]
            self.file.append(key, found)
        assert found[0].value is not None
        return found[0].value

    def _results(self, trained: TrainedModel, model: str, setting: Mapping[str, Any]) -> Iterator[Result]:
        figures = {"test_error": trained.test_error, "train_error": trained.train_error, "updates": trained.steps}
        for metric, value in (figures | {"has_stalled": float(trained.has_stalled)}).items():
            yield self._result(model, metric, value, trained.seed, setting)

    def _result(
        self, model: str, metric: str, value: float, seed: int | None, setting: Mapping[str, Any], **fields: Any
    ) -> Result:
        task = f"approximation-{self.arguments.experiment}"
        return Result(task, model, metric, value, seed, setting=dict(setting), **fields, **self.shared)


def run_order(arguments: argparse.Namespace) -> Rows:
    """Train models on convolutions whose inputs or kernel are in another order, or whose inputs are mixed."""
    log, rows = Log(arguments), []
    for kernel in arguments.kernels:
        target = LinearTarget.from_kernel(kernel, arguments.length)
        for alteration, version in altered_targets(target).items():
            setting = {"kernel": kernel, "alteration": alteration}
            row: dict[str, Any] = {**setting, "causal": "yes" if version.is_causal else "no"}
            limits = error_floors(version)
            for name in FLOORS:
                row[name] = log.note(f"best {name.replace('_', ' ')}", limits[name].mse, "baseline", **setting)
            for name in arguments.models:
                if name == "ski_tnn" and version.is_causal:
                    continue  # bidirectional only
                if name == "rnn, solved":
                    errors = [_solved(log, version, seed, setting) for seed in arguments.seeds]
                else:
                    make = functools.partial(_model, name, version, arguments.length)
                    errors = _values(log.train(make, version, name, **setting))
                row[name] = _median(errors)
            rows.append(row)
    columns = {"kernel": "kernel", "alteration": "target", "causal": "causal"}
    columns |= {name: f"({name.replace('_', ' ')}):.1e" for name in FLOORS}
    columns |= {name: f"{name}:.1e" for name in arguments.models}
    title = (
        f"Mean square errors on held-out rows of {arguments.length} tokens, medians of {len(arguments.seeds)} seeds"
    )
    write_report(arguments, "order", [(title, rows, columns)])
    return rows


def _model(name: str, target: Target, length: int) -> nn.Module:
    """Build a model; mixers of this package are causal where the target is."""
    if name == "rnn":
        return LinearRNN()
    if name == "transformer":
        return SingleHeadTransformer(max_length=length)
    return MixerRegressor(name, max_length=length, is_causal=target.is_causal, **MIXERS[name])


def _solved(log: Log, target: Target, seed: int, setting: Mapping[str, Any]) -> float:
    """Return the error of a random linear RNN of 128 states whose readout is the least squares solution."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = LinearRNN().double()
    generator = torch.Generator().manual_seed(seed)
    net.fit_readout(*target.draw(2048, generator, torch.float64))
    inputs, outputs = target.draw(2048, generator, torch.float64)
    with torch.no_grad():
        error = (net(inputs) - outputs).square().mean().item()
    return log.note("rnn, solved", error, seed=seed, **setting)


def run_rate(arguments: argparse.Namespace) -> Rows:
    """Train the paper's transformer on couplings of known singular values, with one head size after another."""
    log, rows, fits = Log(arguments), [], []
    shape = {"num_heads": arguments.num_heads, "num_layers": arguments.num_layers}
    for exponent in arguments.exponents:
        for rank in arguments.ranks:
            target = CouplingTarget.power_law(rank, exponent)
            table = []
            for size in arguments.head_sizes:
                make = functools.partial(SingleHeadTransformer, head_size=size, positions="none", **shape)
                setting = {"exponent": exponent, "rank": rank, "head_size": size, **shape}
                results = log.train(make, target, "transformer", **setting)
                errors = _values(results, "train_error")
                table.append(errors)
                row = {"exponent": exponent, "rank": rank, "head_size": size, "train_error": _median(errors)}
                rows.append({**row, "test_error": _median(_values(results)), "errors": errors})
            fits += _fit(exponent, rank, arguments.head_sizes, table)
    columns = {
        "exponent": "a of k^-a",
        "rank": "rank",
        "head_size": "head size",
        "train_error": "error on training rows:.2e",
        "test_error": "held out:.2e",
    }
    of_fit = {
        "exponent": "a of k^-a",
        "rank": "rank",
        "sizes": "head sizes",
        "expected": "2a - 1:.2f",
        "measured": "exponent of the squared error:.2f",
        "low": "95 % from:.2f",
        "high": "to:.2f",
        "r2": "R²:.2f",
    }
    title = f"Mean square errors of {len(arguments.seeds)} seeds, medians"
    write_report(arguments, "rate", [(title, rows, columns), ("Fitted exponents", fits, of_fit)])
    _plot_rate(rows, arguments.output_dir / "rate.png")
    return rows


def _fit(exponent: float, rank: int, sizes: Sequence[int], table: Sequence[Sequence[float]]) -> Rows:
    """Fit the errors of head sizes below the rank; none where there are fewer than three."""
    below = [place for place, size in enumerate(sizes) if size < rank]
    if len(below) < 3:
        return []
    errors = torch.tensor([table[place] for place in below], dtype=torch.float64).T  # (seeds, sizes)
    found = fit_power_law([sizes[place] for place in below], errors)
    shown = {"measured": found.exponent, "low": found.low, "high": found.high, "r2": found.r2}
    ends = f"{sizes[below[0]]} to {sizes[below[-1]]}"
    return [{"exponent": exponent, "rank": rank, "sizes": ends, "expected": 2 * exponent - 1, **shown}]


def _plot_rate(rows: Rows, path: Path) -> None:
    """Draw errors against the head size, a panel an exponent and a line a rank."""
    exponents = list(dict.fromkeys(row["exponent"] for row in rows))
    with draw_row(path, 5.2 * len(exponents), 4.2, len(exponents)) as (figure, panels):
        for exponent, axes in zip(exponents, panels, strict=True):
            shown = [row for row in rows if row["exponent"] == exponent]
            for index, rank in enumerate(dict.fromkeys(row["rank"] for row in shown)):
                own = [row for row in shown if row["rank"] == rank]
                sizes = [row["head_size"] for row in own]
                axes.plot(sizes, [row["train_error"] for row in own], label=f"rank {rank}", **line(index))
                low, high = [min(row["errors"]) for row in own], [max(row["errors"]) for row in own]
                axes.fill_between(sizes, low, high, color=line(index)["color"], alpha=0.15, linewidth=0)
            first = max(row["train_error"] for row in shown)
            sizes = sorted({row["head_size"] for row in shown})
            law = [first * size ** -(2 * exponent - 1) for size in sizes]
            axes.plot(sizes, law, color="#888888", linestyle="--", label="m^-(2a - 1)")
            axes.set(
                xscale="log", yscale="log", xlabel="head size m", ylabel="mean square error", title=f"a = {exponent:g}"
            )
        legend_below(figure, panels)


def _values(results: Sequence[Result], metric: str = "test_error") -> list[float]:
    return [result.value for result in results if result.metric == metric and result.value is not None]


def _median(errors: Sequence[float]) -> float | None:
    return torch.tensor(errors, dtype=torch.float64).median().item() if errors else None


def main(argv: Sequence[str] | None = None) -> Rows:
    """Run the command line and return the rows of its table; exit with a message on wrong input."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logger.setLevel(logging.INFO)
    arguments = build_parser().parse_args(argv)
    try:
        arguments.output_dir.mkdir(parents=True, exist_ok=True)
        return arguments.run(arguments)
    except ValueError as error:
        sys.exit(f"approximation.py: {error}")
    except OSError as error:
        message = explain_write_error(error, arguments.output_dir)
        if message is None:
            raise
        sys.exit(f"approximation.py: {message}")


if __name__ == "__main__":
    main()
