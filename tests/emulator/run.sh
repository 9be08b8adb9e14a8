#!/bin/sh
# run.sh COMMAND...: runs it on the emulated CUDA device that `make build-emulator` built. README.md lists its settings.
set -eu
build=${BUILD:?the build folder, as build/cpython-311}
TORCHSHARE_EMULATOR=$(cd "$build/tests/emulator" && pwd)
export TORCHSHARE_EMULATOR
export TRITON_LIBCUDA_PATH="$TORCHSHARE_EMULATOR" LIBRARY_PATH="$TORCHSHARE_EMULATOR"
export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$TORCHSHARE_EMULATOR/libtorchshare_emulator.so:$TORCHSHARE_EMULATOR/libcuda.so.1"
exec "$@"
