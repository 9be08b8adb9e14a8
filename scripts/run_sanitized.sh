#!/bin/sh
# Runs a build with a sanitizer: run_sanitized.sh thread|address,undefined. The C++ tests with threads, and beside them pairs of
# Python jobs on the CPU and, where it was built, on the emulated CUDA device.
# torch and Python are not instrumented: faults inside them are not reported, nor are locks that only they use.
set -eu
: "${BUILD:?the instrumented build folder}" "${PY:?the interpreter}"
export OMP_NUM_THREADS=1
plain() { setarch "$(uname -m)" -R "$@"; }  # sanitizers' shadow memory and high-entropy ASLR do not agree
emulator=$BUILD/tests/emulator/libtorchshare_emulator.so

case $1 in
  thread)
    export TSAN_OPTIONS="ignore_noninstrumented_modules=1 report_signal_unsafe=0 halt_on_error=0 exitcode=66 allocator_may_return_null=1
      suppressions=$PWD/scripts/thread_sanitizer.supp"
    preload=$(gcc -print-file-name=libtsan.so)
    # A fork acquires every ledger's lock, and ThreadSanitizer supports 64 locks per thread.
    filter='-*ForkedChild*' ;;
  address,undefined)
    export ASAN_OPTIONS="allocator_may_return_null=1" UBSAN_OPTIONS="print_stacktrace=1"
    preload="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libstdc++.so)"
    # A fork copies the page tables of the shadow memory, which takes 0.1 s; these tests fork hundreds of times.
    filter='-*ForkedChildFrees*:*ForkedChildMay*:*ForkedChildFindsNoLock*' ;;
esac

log=$BUILD/cpp_tests.log  # they leave a core free most of the time
setarch "$(uname -m)" -R "$BUILD/tests/cpp/torchshare_tests" --gtest_brief=1 --gtest_filter="$filter" > "$log" 2>&1 &
cpp_tests=$!
trap 'kill $cpp_tests 2>/dev/null || true' EXIT

scripts/link_package.sh "$BUILD" _C
export PYTHONPATH="$BUILD/python" ASAN_OPTIONS="${ASAN_OPTIONS-} detect_leaks=0"  # Python leaks at its exit
plain env LD_PRELOAD="$preload" "$PY" tests/sanitized_pair.py cpu
if [ -e "$emulator" ]; then
  plain "$BUILD/tests/emulator/torchshare_emulator_tests" --gtest_brief=1
  plain env PRELOAD_FIRST="$preload" tests/emulator/run.sh "$PY" tests/sanitized_pair.py cuda
fi
wait $cpp_tests || { cat "$log"; exit 1; }
tail -n 3 "$log"
echo "sanitizers ($1): no fault in the C++ tests, none in pairs of Python jobs"
