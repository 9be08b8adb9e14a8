#!/bin/sh
# wheels.sh [PACKAGE...]: downloads what the GPU machine's Python lacks, by default all of packages.txt, which run_all.sh
# needs beside torch, to build/gpu-wheels. For Python 3.12, or PYTHON_VERSION. Needs a network.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck disable=SC2046 # one word each
[ $# -gt 0 ] || set -- $(cat benchmarks/gpu/packages.txt)
# shellcheck disable=SC2046
.venv/bin/python -m pip download --quiet --dest build/gpu-wheels --python-version "${PYTHON_VERSION:-3.12}" \
  --only-binary=:all: $(for package in "$@"; do sed -n "s/^$package==/$package==/p" requirements.txt; done)
du -sh build/gpu-wheels
