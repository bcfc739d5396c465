#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in under eight minutes and without a network: GPU tests, a
# training run of each task, a check that no step waits for the device, a table of throughput.
# Everything goes into one JSON file.
#
#   tools/gpu_check.sh [gpu_check.json]        in an environment with matinee[train,text,dev]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -x .venv/bin/python ] && python=${PYTHON:-.venv/bin/python}
exec "$python" tools/gpu_check.py --json "${1:-gpu_check.json}"
