#!/bin/sh
# Everything on the GPU machine, in under 8 minutes: build for its own Python and torch, the gpu tests, compute-sanitizer
# on a small pair, then pairs x modes, the timeline's picture and the gate's latency. What fails is said at the end, and
# the rest goes on. JSON and pictures go to benchmarks/results/h200, and to $OUT where that is set.
#
#   benchmarks/gpu/wheels.sh                      # on a machine with a network: what the GPU machine's Python may lack
#   carry build/gpu-wheels, then run: benchmarks/gpu/run_all.sh
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON3:-python3}
results=benchmarks/results/h200
mkdir -p "$results"
failed=""
stage() { # name, seconds, command...
  name=$1 limit=$2
  shift 2
  echo "== $name"
  begin=$(date +%s)
  timeout --kill-after 5 "$limit" "$@" || failed="$failed '$name' ($?)"
  echo "== $name: $(($(date +%s) - begin)) s"
}

build() {
  [ -x build/gpu-venv/bin/python ] || "$python" -m venv --system-site-packages build/gpu-venv || return
  build/gpu-venv/bin/python -m pip install --quiet --no-index --find-links build/gpu-wheels \
    rich pydantic pytest pytest-timeout setuptools matplotlib numpy psutil || return
  TORCHSHARE_CUDA=ON TORCHSHARE_BUILD_DIR=build/gpu build/gpu-venv/bin/python -m pip install --quiet \
    --no-build-isolation --no-deps --no-index -e .
}
begin=$(date +%s)
build || { echo "the build failed; nothing else can run" >&2; exit 1; }
echo "== build: $(($(date +%s) - begin)) s"
PY=build/gpu-venv/bin/python
export PYTHONUNBUFFERED=1
stage doctor 30 "$PY" -m torchshare doctor
stage "gpu tests" 170 env TORCHSHARE_REQUIRE_GPU=1 "$PY" -m pytest -q -m "gpu and not slow" tests/python
stage release 30 "$PY" benchmarks/gpu/release.py
stage "pairs, fp32" 120 "$PY" benchmarks/gpu/pairs.py --window 2 --repetitions 1 --dtypes fp32 \
  --pairs shufflenet-512+same resnet50-4+same
stage fikit 90 "$PY" benchmarks/fikit.py --device cuda --window 2 --repetitions 1 --pairs resnet50+bert --output "$results"
stage timeline 40 "$PY" benchmarks/gpu/timeline.py
for tool in memcheck racecheck; do
  if command -v compute-sanitizer >/dev/null; then
    stage "$tool" 45 compute-sanitizer --tool "$tool" --error-exitcode 1 "$PY" benchmarks/gpu/small_pair.py
  else
    echo "== $tool: skipped, there is no compute-sanitizer"
  fi
done
[ -z "${OUT:-}" ] || cp -r "$results" "$OUT"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
