#!/bin/sh
# Runs the build of `make test-tsan` under ThreadSanitizer: the C++ tests with threads, then a pair of Python jobs.
# torch and Python are not instrumented: races inside them are not reported, nor are locks that only they use.
set -eu
: "${BUILD:?the instrumented build folder}" "${PY:?the interpreter}"
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 report_signal_unsafe=0 halt_on_error=0 exitcode=66"
export OMP_NUM_THREADS=1
no_aslr() { setarch "$(uname -m)" -R "$@"; }  # TSan's shadow memory and high-entropy ASLR do not agree

# Excludes tests that fork: a fork acquires every ledger's lock, and ThreadSanitizer supports 64 locks per thread.
no_aslr "$BUILD/tests/cpp/torchshare_tests" --gtest_brief=1 --gtest_filter='-*ForkedChild*'

package=$BUILD/python/torchshare
mkdir -p "$package"
for entry in torchshare/*; do
  case $entry in *.so | */__pycache__) ;; *) ln -sfn "$PWD/$entry" "$package/" ;; esac
done
cp "$BUILD"/_C.*.so "$BUILD"/_core.*.so "$package"
LD_PRELOAD=$(gcc -print-file-name=libtsan.so) PYTHONPATH=$BUILD/python no_aslr "$PY" tests/tsan_pair.py
echo "ThreadSanitizer: no race in the C++ tests, none in a pair of Python jobs"
