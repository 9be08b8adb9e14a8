#!/bin/sh
# The tests marked gpu on the emulated CUDA device, once for each SLOTS:JITTER given (kernels at a time; microseconds), then
# a table of what ran: test_emulated.sh 4:0 1:200. MARKED is an expression of markers.
set -eu
: "${BUILD:?the build folder}" "${PYTEST:?the command of pytest: an interpreter, and options}"
if [ ! -e "$BUILD/tests/emulator/libtorchshare_emulator.so" ]; then
  echo "skipped: the emulated CUDA device needs the CUDA toolkit (nvcc and headers) of torch's CUDA version"
  exit 0
fi
"$BUILD/tests/emulator/torchshare_emulator_tests" --gtest_brief=1

folder=$BUILD/tests/emulator/reports
rm -rf "$folder" && mkdir -p "$folder"
failed=0
here=$PWD/tests/emulator
tests="tests/python tests/emulator"
for pair in "$@"; do
  echo "emulated device: ${pair%:*} slots, jitter up to ${pair#*:} us"
  EMULATOR_SLOTS=${pair%:*} EMULATOR_JITTER_US=${pair#*:} TORCHSHARE_REQUIRE_GPU=1 \
    PYTEST_PLUGINS=emulated_device PYTHONPATH=$here:$PWD "$here/run.sh" \
    $PYTEST -m "${MARKED:-gpu and not slow}" -p no:cacheprovider --junitxml "$folder/$pair.xml" -rs $tests || failed=1
  tests=tests/python  # of the device itself once is enough
done
"${PYTEST%% *}" "$here/report.py" "$folder"
exit $failed
