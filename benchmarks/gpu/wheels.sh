#!/bin/sh
# wheels.sh [PACKAGE...]: downloads what the GPU machine's Python lacks, by default all that run_all.sh needs beside torch,
# to build/gpu-wheels. For Python 3.12, or PYTHON_VERSION. Needs a network.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- numpy rich pydantic jinja2 prometheus-client filelock scipy matplotlib setuptools \
  pytest pytest-timeout pytest-xdist hypothesis psutil
# shellcheck disable=SC2046 # one word each
.venv/bin/python -m pip download --quiet --dest build/gpu-wheels --python-version "${PYTHON_VERSION:-3.12}" \
  --only-binary=:all: $(for package in "$@"; do sed -n "s/^$package==/$package==/p" requirements.txt; done)
du -sh build/gpu-wheels
