#!/bin/sh
# On a GPU machine: builds for its own Python and torch, runs the tests marked gpu, then the benchmarks. Stages can be
# named, to run some of them: run_all.sh tests pairs. What fails is said at the end, and the rest goes on. JSON, pictures,
# junit.xml and the stages' logs go to benchmarks/results/gpu; where OUT is set, as results.tgz there after each stage.
# Where a command may run for 10 minutes, and all of them for 30: run_all.sh first, headline-1, headline-2.
#
#   benchmarks/gpu/wheels.sh                      # on a machine with a network: what the GPU machine's Python lacks
#   benchmarks/gpu/run_all.sh --plan [STAGE...]   # what would run, how long it may take, what is missing; runs nothing
#   carry build/gpu-wheels, then run: COMMIT=$(git rev-parse --short HEAD) benchmarks/gpu/run_all.sh
#
# TINY=1 has tiny models and windows, PY another interpreter and RESULTS another folder, to see whether all of it runs.
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON3:-python3}
results=${RESULTS:-$PWD/benchmarks/results/gpu}
stages="build doctor tests sanitizer release timeline alone pairs profiles micro fikit"
export PYTHONUNBUFFERED=1
PY=${PY:-build/gpu-venv/bin/python}
failed=""

# The stages of a group, each of which takes 9 minutes at most; a stage is one of its own.
group() {
  case $1 in
    first) echo build doctor tests sanitizer release ;;
    headline-1) echo pairs profiles micro ;;
    headline-2) echo fikit ;;
    headline) echo pairs profiles micro fikit ;;  # both
    *) echo "$1" ;;
  esac
}

# Beside the packages of the machine's Python, which may be those of a virtual environment itself.
environment() {
  [ "$PY" = build/gpu-venv/bin/python ] && [ ! -e build/gpu-venv/ready ] || return 0
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

# The sizes of a stage.
sizes() {
  if [ -z "${TINY:-}" ]; then
    case $1 in
      pairs) echo --window 2 --limit 40 --pairs shufflenet-512+same ;;
      fikit) echo --window 1 --without timed ;;
    esac
    return
  fi
  case $1 in
    release) echo --seconds 0.3 ;;
    timeline) echo --device cpu --tiny --seconds 0.2 ;;  # CUPTI crashes on the emulated device
    alone) echo --tiny --kinds lstm-64 --rounds 2 --window 0.05 ;;
    pairs) echo --tiny --window 0.3 --pairs mobilenet-64+bert-8 ;;
    profiles) echo --tiny --pairs lstm-64+bert-8 --splits 1 --window 0.1 ;;
    micro) echo --tiny --window 0.2 --repetitions 1 ;;
    fikit) echo --tiny --pairs resnet18+vgg11 --window 1.5 ;;
  esac
}

run() {
  # shellcheck disable=SC2046 # one word each
  case $1 in
    build | tests | sanitizer) "$1" ;;
    doctor) "$PY" -m torchshare doctor ;;
    release | alone | timeline | profiles | micro) "$PY" "benchmarks/gpu/$1.py" --output "$results" $(sizes "$1") ;;
    pairs) "$PY" benchmarks/gpu/pairs.py --repetitions 1 --dtypes fp32 --output "$results" $(sizes pairs) ;;
    fikit) "$PY" benchmarks/fikit.py --device cuda --repetitions 1 --output "$results" $(sizes fikit) ;;
  esac
}

# Seconds until a stage is given up: up to twice what it took on an H200, or is expected to take.
limit() {
  case $1 in
    fikit) echo 540 ;;
    pairs) echo 225 ;;
    profiles) echo 145 ;;
    micro) echo 170 ;;
    build | tests | alone) echo 180 ;;
    *) echo 60 ;;
  esac
}

what() {
  case $1 in
    build) echo "torchshare for this Python and torch, in build/gpu-venv" ;;
    doctor) echo "what torchshare finds on this machine" ;;
    tests) echo "the tests marked gpu that are not slow" ;;
    sanitizer) echo "a pair of jobs under compute-sanitizer's memcheck" ;;
    release) echo "from the gate's release to the end of the first kernel" ;;
    timeline) echo "a picture of two jobs' kernels" ;;
    alone) echo "what torchshare costs a job that is alone" ;;
    pairs) echo "XSched's pair of trainings, in every mode" ;;
    profiles) echo "profiles of six pairs in 1, 2, 4 and 8 sub-batches" ;;
    micro) echo "markers, priorities, launches, multiprocessors, empty_cache, first steps" ;;
    fikit) echo "FIKIT's ten pairs of models that answer requests" ;;
  esac
}

# What the machine lacks, a line each, with what comes of it.
missing() {
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null ||
    echo "$python of version 3.10 to 3.14: nothing can run; PYTHON3=... names another"
  "$python" -c 'import torch, sys; sys.exit(torch.version.cuda is None)' 2>/dev/null ||
    echo "torch for CUDA in $python: nothing can run"
  nvidia-smi -L >/dev/null 2>&1 || echo "a GPU that nvidia-smi lists: only the build can run"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "Python's venv module: nothing can run"
  command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] || echo "nvcc: the build fails"
  command -v cmake >/dev/null || echo "cmake: the build fails"
  command -v "${CXX:-g++}" >/dev/null || echo "${CXX:-g++}: the build fails"
  packages=""
  while read -r package; do
    [ -n "$(find build/gpu-wheels -name "$(echo "$package" | tr - _)-*" 2>/dev/null)" ] ||
      "$python" -c 'import importlib.metadata as m, sys; m.version(sys.argv[1])' "$package" 2>/dev/null ||
      packages="$packages $package"
  done < benchmarks/gpu/packages.txt
  [ -z "$packages" ] || echo "packages of $python: nothing can run; fetch them with benchmarks/gpu/wheels.sh$packages"
  command -v compute-sanitizer >/dev/null || echo "compute-sanitizer: the stage sanitizer is skipped"
  command -v nvidia-cuda-mps-control >/dev/null || echo "nvidia-cuda-mps-control: the stages pairs and fikit have no mode with MPS"
}

plan() {
  total=0
  for stage in "$@"; do
    printf '%-10s at most %3s s  %s\n' "$stage" "$(limit "$stage")" "$(what "$stage")"
    total=$((total + $(limit "$stage")))
  done
  echo "in all at most $(((total + 59) / 60)) min; results in $results"
  missing | sed 's/^/missing: /'
}

only_plan=""
case ${1:-} in
  --one) run "$2"; exit ;;
  --plan) shift; only_plan=yes ;;
esac
[ $# -gt 0 ] || set -- "$stages"
# shellcheck disable=SC2046 # one word each
set -- $(for name in $*; do group "$name"; done)
for stage in "$@"; do
  case " $stages " in
    *" $stage "*) ;;
    *) echo "there is no stage '$stage'; there are $stages, and the groups first, headline-1, headline-2, headline" >&2; exit 2 ;;
  esac
done
[ -z "$only_plan" ] || { plan "$@"; exit; }
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
