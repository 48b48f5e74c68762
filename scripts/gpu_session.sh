#!/usr/bin/env bash
# What a machine with a GPU says of the package, into the folder given: the kernels' tests on the device, the benchmarks of
# products and layers with the goals beside them, and the table of crossovers. About half an hour; each part may be run alone
# (tests, ops, models, tune) and goes on where it was stopped.
#
#     bash scripts/gpu_session.sh runs/gpu [PART ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -eq 0 ]; then
    echo "usage: bash scripts/gpu_session.sh FOLDER [tests] [ops] [models] [tune]" >&2
    exit 2
fi
folder=$1
shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(tests ops models tune)
python=${PYTHON:-python3}
mkdir -p "$folder"
for part in "${parts[@]}"; do
    case $part in
        tests) "$python" -m pytest -q tests/ops 2>&1 | tee "$folder/tests.log" ;;
        ops)
            "$python" scripts/speed/benchmark_ops.py --device cuda --dtype bfloat16 --elements 33554432 --channels 1024 \
                --rounds 15 --seconds 3 --output-dir "$folder/ops"
            ;;
        models)
            "$python" scripts/speed/benchmark_models.py --tables layers transformers \
                --families tnn ski_tnn fd_tnn poly_transformer attention --device cuda --dtype bfloat16 \
                --hidden-size 1024 --tokens 32768 --lengths 512 2048 8192 16384 --seconds 4 --output-dir "$folder/models"
            ;;
        tune)
            "$python" scripts/speed/tune.py --device cuda --elements 33554432 --channels 1024 --seconds 2 --output-dir "$folder/tune"
            ;;
        *)
            echo "$part is no part; they are tests, ops, models, tune." >&2
            exit 2
            ;;
    esac
done
