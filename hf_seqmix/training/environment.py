"""What a result depends on besides its run: command, versions of packages, device, threads, date."""

import datetime
import importlib.metadata
import platform
import shlex
import sys
from typing import Any

import torch

__all__ = ["environment_of", "run_environment"]

_PACKAGES = ("hf-seqmix", "torch", "transformers", "datasets", "evaluate", "accelerate", "scikit-learn")


def run_environment() -> dict[str, Any]:
    """Return what a result depends on besides its arguments: command, versions, device, threads, date (UTC)."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def environment_of() -> dict[str, Any]:
    """Return `run_environment` without the command, which holds paths of the machine."""
    return {name: value for name, value in run_environment().items() if name != "command"}
