#!/bin/sh
# Runs tests on the emulated CUDA device, and prints a table of what ran: test_emulated.sh 4:0 1:200. Each argument is
# SLOTS:JITTER, kernels at a time and microseconds. With the first run all tests marked gpu, and those of the device itself; with
# each other one those of the files in AGAIN, by default what depends on the order of kernels. One more runs at once than there
# are cores, for tests often wait. MARKED is an expression of markers.
set -eu
: "${BUILD:?the build folder}" "${PY:?the interpreter}"
emulator=$PWD/tests/emulator
reports=$BUILD/tests/emulator/reports

# One process runs all tests of a folder, in order: some depend on how much the device's allocator keeps.
run() {
  settings=$1
  report=$2
  shift 2
  echo "emulated device: ${settings%:*} slots, jitter up to ${settings#*:} us"
  EMULATOR_SLOTS=${settings%:*} EMULATOR_JITTER_US=${settings#*:} TORCHSHARE_REQUIRE_GPU=1 \
    PYTEST_PLUGINS=emulated_device PYTHONPATH=$emulator:$PWD "$emulator/run.sh" \
    "$PY" -m pytest -m "${MARKED:-gpu and not slow}" -p no:cacheprovider --junitxml "$reports/$report.xml" -rs "$@"
}

if [ "$1" = --one ]; then
  case $2 in
    device) run "$3" device tests/emulator ;;
    "$3") run "$2" "$2" tests/python ;;
    *) run "$2" "$2" ${AGAIN:-tests/python/test_gpu*.py tests/python/test_spill.py tests/python/test_step_forms.py -k "not compiled_models"} ;;
  esac > "$reports/$2.log" 2>&1
  exit
fi
if [ ! -e "$BUILD/tests/emulator/libtorchshare_emulator.so" ]; then
  echo "skipped: the emulated CUDA device needs the CUDA toolkit (nvcc and headers) of torch's CUDA version"
  exit 0
fi
"$BUILD/tests/emulator/torchshare_emulator_tests" --gtest_brief=1
rm -rf "$reports" && mkdir -p "$reports"
failed=0
printf '%s\n' "$@" device | xargs -P $(($(nproc) + 1)) -I{} "$0" --one {} "$1" || failed=1
cat "$reports"/*.log
"$PY" "$emulator/report.py" "$reports"
exit $failed
