#!/usr/bin/env bash
# Runs format, lint, types and the whole test suite. Arguments go to pytest.
# --floor, first, runs the suite on the lowest versions that pyproject.toml admits.
# --ecosystem, first, installs the tools of others that the package is tested with and runs those tests alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
export HF_HUB_OFFLINE=1
unset PYTHONDONTWRITEBYTECODE # each of the processes that tests start would compile the package
if [ "${1:-}" = --floor ]; then
    shift
    make_environment .venv-floor scripts/constraints-floor.txt dev
elif [ "${1:-}" = --ecosystem ]; then
    shift
    make_environment .venv-ecosystem scripts/constraints.txt ecosystem
    exec "$python" -m pytest -n auto --dist loadgroup -m "ecosystem and not slow" "$@"
else
    make_environment .venv scripts/constraints.txt dev
    "$python" -m ruff format --check .
    "$python" -m ruff check .
    # The types are checked on one processor. Meanwhile another compiles the tests, which each of pytest's processes would.
    "$python" -m pytest --collect-only -q >/dev/null 2>&1 &
    "$python" -m mypy
    wait
fi
# One worker more than processors: some tests wait for other processes, and for the disk.
exec "$python" -m pytest -n "$("$python" -c 'import os; print(1 + (os.cpu_count() or 1))')" --dist loadgroup "$@"
