#!/usr/bin/env bash
# From a bare machine with Python 3.11 or newer to a small language model that was trained, evaluated, made to write, and
# loaded again. Arguments go to scripts/quickstart.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment .venv scripts/constraints.txt eval
exec "$python" scripts/quickstart.py "$@"
