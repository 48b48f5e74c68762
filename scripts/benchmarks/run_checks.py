"""Whether a script would take the arguments of a run: asked in this process, before any other starts."""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_seqmix._files import write_json
from hf_seqmix.training.run import Run


def check_runs(scripts: Mapping[str, Any], runs: Iterable[tuple[str, str, Run]]) -> None:
    """Refuse the first run that its script would refuse to read.

    Args:
        scripts: name of a script -> the module with its `parse_arguments`.
        runs: each with its name and its script; equal ones are read once.

    Raises:
        ValueError: an argument is unknown, contradicts another, or has a value that makes no sense.
    """
    known: set[tuple[str, str]] = set()
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.json")
        for name, script, run in runs:
            if (script, run.digest) in known:
                continue
            known.add((script, run.digest))
            write_json(path, run.to_json())
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said):
                    scripts[script].parse_arguments(["--recipe", str(path), "--output-dir", folder])
            except ValueError as error:
                raise ValueError(f"{name}: {str(error).replace(f' {path}', '')}") from error
            except SystemExit as error:  # of argparse
                reason = said.getvalue().strip().rpartition("error: ")[2]
                raise ValueError(f"{name}: {reason}") from error
            finally:
                # The library leaves variables for a process that trains, which would reach all processes from here.
                os.environ.clear()
                os.environ.update(environment)
