#!/usr/bin/env bash
# What a machine with a GPU says of the package, into the folder given: see scripts/speed/gpu_session.py.
#
#     bash scripts/gpu_session.sh runs/gpu [PART ...] [--minutes MINUTES] [--device cpu]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/scripts/speed/gpu_session.py" "$@"
