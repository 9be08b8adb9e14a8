#!/bin/sh
# run.sh COMMAND...: runs it on the emulated CUDA device that `make build-emulator` built. README.md lists its settings.
set -eu
build=${BUILD:?the build folder, as build/cpython-311}
TORCHSHARE_EMULATOR=$(cd "$build/tests/emulator" && pwd)
export TORCHSHARE_EMULATOR
export TRITON_LIBCUDA_PATH="$TORCHSHARE_EMULATOR" LIBRARY_PATH="$TORCHSHARE_EMULATOR"
# PRELOAD_FIRST: a sanitizer's library, which this shell itself does not survive.
export LD_PRELOAD="${PRELOAD_FIRST:+$PRELOAD_FIRST:}${LD_PRELOAD:+$LD_PRELOAD:}$TORCHSHARE_EMULATOR/libtorchshare_emulator.so:$TORCHSHARE_EMULATOR/libcuda.so.1"
exec "$@"
