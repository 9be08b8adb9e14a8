#!/bin/sh
# Downloads what the GPU machine's Python may lack to build/gpu-wheels (under 64 MiB), for run_all.sh. Needs a network.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck disable=SC2046 # one word each
.venv/bin/python -m pip download --quiet --dest build/gpu-wheels --python-version "${1:-3.12}" --only-binary=:all: \
  $(for package in numpy rich pydantic jinja2 prometheus-client filelock setuptools matplotlib pytest pytest-timeout \
    pytest-xdist hypothesis psutil; do sed -n "s/^$package==/$package==/p" requirements.txt; done)
du -sh build/gpu-wheels
