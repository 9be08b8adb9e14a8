#!/bin/sh
# The tests marked gpu on the emulated CUDA device, once for each SLOTS:JITTER given (kernels at a time; microseconds), as
# many at once as there are cores, then a table of what ran: test_emulated.sh 4:0 1:200. MARKED is an expression of markers.
set -eu
: "${BUILD:?the build folder}" "${PY:?the interpreter}"
emulator=$PWD/tests/emulator
reports=$BUILD/tests/emulator/reports

# One process runs all tests, in order: some depend on how much the device's allocator keeps.
run() {
  tests=$2
  echo "emulated device: ${1%:*} slots, jitter up to ${1#*:} us"
  EMULATOR_SLOTS=${1%:*} EMULATOR_JITTER_US=${1#*:} TORCHSHARE_REQUIRE_GPU=1 \
    PYTEST_PLUGINS=emulated_device PYTHONPATH=$emulator:$PWD "$emulator/run.sh" \
    "$PY" -m pytest -m "${MARKED:-gpu and not slow}" -p no:cacheprovider --junitxml "$reports/$1.xml" -rs $tests
}

if [ "$1" = --one ]; then  # the first also tests the device itself: once is enough
  run "$2" "tests/python$([ "$2" != "$3" ] || echo " tests/emulator")" > "$reports/$2.log" 2>&1
  exit
fi
if [ ! -e "$BUILD/tests/emulator/libtorchshare_emulator.so" ]; then
  echo "skipped: the emulated CUDA device needs the CUDA toolkit (nvcc and headers) of torch's CUDA version"
  exit 0
fi
"$BUILD/tests/emulator/torchshare_emulator_tests" --gtest_brief=1
rm -rf "$reports" && mkdir -p "$reports"
failed=0
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} "$0" --one {} "$1" || failed=1
cat "$reports"/*.log
"$PY" "$emulator/report.py" "$reports"
exit $failed
