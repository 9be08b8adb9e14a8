#!/bin/sh
# On a GPU machine: builds for its own Python and torch, runs the tests marked gpu, then the benchmarks. Stages can be
# named, to run some of them: run_all.sh tests pairs. What fails is said at the end, and the rest goes on. JSON, pictures,
# junit.xml and the stages' logs go to benchmarks/results/gpu; where OUT is set, as results.tgz there after each stage.
#
#   benchmarks/gpu/wheels.sh                      # on a machine with a network: what the GPU machine's Python lacks
#   carry build/gpu-wheels, then run: COMMIT=$(git rev-parse --short HEAD) benchmarks/gpu/run_all.sh
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON3:-python3}
results=$PWD/benchmarks/results/gpu
[ $# -gt 0 ] || set -- build doctor tests sanitizer release timeline alone pairs profiles fikit
export PYTHONUNBUFFERED=1
PY=build/gpu-venv/bin/python
failed=""

# Beside the packages of the machine's Python, which may be those of a virtual environment itself.
environment() {
  [ ! -e build/gpu-venv/ready ] || return 0
  "$python" -m venv build/gpu-venv &&
    "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$(echo build/gpu-venv/lib/*/site-packages)/machine.pth" &&
    "$PY" -m pip install --quiet --no-index --find-links build/gpu-wheels -r benchmarks/gpu/packages.txt &&
    touch build/gpu-venv/ready
}

build() {
  TORCHSHARE_CUDA=ON TORCHSHARE_BUILD_DIR=build/gpu "$PY" -m pip install --quiet --no-build-isolation --no-deps --no-index -e .
}

# Those of tests/python that are marked, file by file; what fails in six processes at once is run again in one.
tests() {
  files=$(grep -lE 'mark\.gpu|on_both' tests/python/test_*.py)
  # shellcheck disable=SC2086 # one word each
  set -- "$PY" -m pytest -m "gpu and not slow" -rfEs --durations 15 $files
  export TORCHSHARE_REQUIRE_GPU=1
  "$@" -n 6 --dist loadfile --timeout 120 --junitxml "$results/junit.xml" || "$@" --last-failed --junitxml "$results/junit-alone.xml"
}

sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "skipped, there is no compute-sanitizer"; return 0; }
  compute-sanitizer --tool memcheck --error-exitcode 1 "$PY" benchmarks/gpu/small_pair.py
}

run() {
  case $1 in
    build | tests | sanitizer) "$1" ;;
    doctor) "$PY" -m torchshare doctor ;;
    release) "$PY" benchmarks/gpu/release.py --output "$results" ;;
    alone) "$PY" benchmarks/gpu/alone.py --output "$results" ;;
    timeline) "$PY" benchmarks/gpu/timeline.py --output "$results" ;;
    pairs)
      "$PY" benchmarks/gpu/pairs.py --window 2 --repetitions 1 --dtypes fp32 --output "$results" \
        --pairs shufflenet-512+same resnet50-4+same
      ;;
    profiles) "$PY" benchmarks/gpu/profiles.py --output "$results" ;;
    fikit) "$PY" benchmarks/fikit.py --device cuda --window 1.5 --repetitions 1 --output "$results" ;;
    *) echo "there is no stage '$1'" >&2 && return 2 ;;
  esac
}

# Seconds until a stage is given up: about twice what it took on an H200.
limit() {
  case $1 in fikit) echo 900 ;; pairs) echo 600 ;; build | tests | alone | profiles) echo 180 ;; *) echo 60 ;; esac
}

if [ "$1" = --one ]; then
  run "$2"
  exit
fi
mkdir -p "$results"
environment || { echo "there is no virtual environment; nothing can run" >&2; exit 1; }
OUT=${OUT:-}
for stage in "$@"; do
  begin=$(date +%s)
  timeout --kill-after 5 "$(limit "$stage")" sh benchmarks/gpu/run_all.sh --one "$stage" > "$results/$stage.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed="$failed $stage ($status)"
  echo "== $stage: status $status, $(($(date +%s) - begin)) s"
  tail -n "${LINES_SHOWN:-25}" "$results/$stage.log"
  [ -z "$OUT" ] || tar -czf "$OUT/results.tgz" -C "$results" .
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
