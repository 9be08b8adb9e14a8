#!/bin/sh
# Everything that the README's tables show, and more, in hours on 2 cores. `make bench` builds first and calls this.
set -eu
: "${BUILD:?the C++ build folder}" "${PY:?the interpreter}"
cd "$(dirname "$0")/.."
"$PY" benchmarks/hook.py "$BUILD/benchmarks/cpp/torchshare_benchmarks"
"$PY" benchmarks/instructions.py "$BUILD/benchmarks/cpp/torchshare_instructions"
"$PY" benchmarks/overhead.py
"$PY" benchmarks/watch.py
"$PY" benchmarks/memory.py
"$PY" benchmarks/out_of_memory.py
"$PY" benchmarks/pairs.py
"$PY" benchmarks/allocator.py
"$PY" benchmarks/compiled.py
"$PY" benchmarks/gaps.py
"$PY" benchmarks/fikit.py
"$PY" benchmarks/inference.py
"$PY" benchmarks/replay.py
"$PY" benchmarks/fit.py
"$PY" benchmarks/auto.py
"$PY" benchmarks/bound.py
"$PY" benchmarks/inversion.py
"$PY" benchmarks/priority.py
"$PY" benchmarks/deadlines.py sets
"$PY" benchmarks/deadlines.py camera
"$PY" benchmarks/simulator/study.py
"$PY" benchmarks/simulator/speed.py
"$PY" benchmarks/simulator/optimum.py
"$PY" benchmarks/simulator/live.py
"$PY" benchmarks/simulator/deadlines.py
"$PY" benchmarks/simulator/failures.py
"$PY" benchmarks/simulator/workflows.py
"$PY" benchmarks/stages.py
"$PY" benchmarks/table.py
