#!/bin/sh
# Downloads what the GPU machine's Python may lack to build/gpu-wheels (under 64 MiB), for run_all.sh. Needs a network.
set -eu
cd "$(dirname "$0")/../.."
version() { sed -n "s/^$1==/$1==/p" requirements.txt; }
# shellcheck disable=SC2046 # one word each
.venv/bin/python -m pip download --quiet --dest build/gpu-wheels --python-version "${1:-3.12}" --only-binary=:all: \
  $(for package in numpy rich pydantic setuptools matplotlib pytest pytest-timeout psutil; do version "$package"; done)
du -sh build/gpu-wheels
