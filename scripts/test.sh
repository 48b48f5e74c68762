#!/usr/bin/env bash
# Runs format, lint, types and the whole test suite. Arguments go to pytest.
# --floor, first, runs the suite on the lowest versions that pyproject.toml admits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
export HF_HUB_OFFLINE=1
if [ "${1:-}" = --floor ]; then
    shift
    make_environment .venv-floor scripts/constraints-floor.txt dev
else
    make_environment .venv scripts/constraints.txt dev
    "$python" -m ruff format --check .
    "$python" -m ruff check .
    "$python" -m mypy
fi
exec "$python" -m pytest -n auto "$@"
