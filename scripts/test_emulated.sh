#!/bin/sh
# The tests marked gpu on the emulated CUDA device, once for each SLOTS:JITTER given (kernels at a time; microseconds), and
# those of the device itself with the first, one more at once than there are cores, for they often wait; then a table of
# what ran: test_emulated.sh 4:0 1:200. MARKED is an expression of markers.
set -eu
: "${BUILD:?the build folder}" "${PY:?the interpreter}"
emulator=$PWD/tests/emulator
reports=$BUILD/tests/emulator/reports

# One process runs all tests of a folder, in order: some depend on how much the device's allocator keeps.
run() {
  tests=$2
  report=$3
  echo "emulated device: ${1%:*} slots, jitter up to ${1#*:} us"
  EMULATOR_SLOTS=${1%:*} EMULATOR_JITTER_US=${1#*:} TORCHSHARE_REQUIRE_GPU=1 \
    PYTEST_PLUGINS=emulated_device PYTHONPATH=$emulator:$PWD "$emulator/run.sh" \
    "$PY" -m pytest -m "${MARKED:-gpu and not slow}" -p no:cacheprovider --junitxml "$reports/$report.xml" -rs "$tests"
}

if [ "$1" = --one ]; then
  case $2 in
    device) run "$3" tests/emulator device ;;
    *) run "$2" tests/python "$2" ;;
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
