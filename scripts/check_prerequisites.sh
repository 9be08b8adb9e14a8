#!/bin/sh
# check_prerequisites.sh build|test|docs|bench|install: lists what is missing in one line, with the command that installs it.
set -u
python=${PYTHON3:-python3}
missing="" packages=""
need() { missing="$missing${missing:+, }$1"; packages="$packages $2"; }
has_header() { echo "#include <$1>" | "${CXX:-g++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

command -v "${CXX:-g++}" >/dev/null || need "a C++ compiler" g++
command -v cmake >/dev/null || need CMake cmake
"$python" -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv module" python3-venv
"$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' \
  2>/dev/null || need "Python's headers" python3-dev
if [ "$1" = install ]; then  # optional: builds are slower without them
  command -v ninja >/dev/null || need Ninja ninja-build
  command -v ccache >/dev/null || need ccache ccache
fi
case $1 in test | install) has_header gmock/gmock.h || need GoogleTest "libgtest-dev libgmock-dev" ;; esac
case $1 in docs | install) command -v doxygen >/dev/null || need Doxygen doxygen ;; esac
case $1 in bench | install)
  has_header benchmark/benchmark.h || need "Google Benchmark" libbenchmark-dev
  has_header valgrind/callgrind.h || need Valgrind valgrind
  ;;
esac

if [ "$1" = install ]; then
  apt-get update -qq
  [ -z "$missing" ] || apt-get install -y -qq $packages || exit 1
  # For the tests of pages, which are skipped without it. Ubuntu has no such package.
  command -v chromium-headless-shell >/dev/null || apt-get install -y -qq chromium-headless-shell ||
    echo "no chromium-headless-shell here: tests of pages in a browser will be skipped" >&2
elif [ -n "$missing" ]; then
  echo "missing: $missing. Install with: sudo apt-get install -y$packages" >&2
  exit 1
fi
version=$("$python" -c 'import sys; print(sys.version.split()[0], (3, 10) <= sys.version_info[:2] <= (3, 14))')
case $version in
  *True) ;;
  *) echo "Python ${version% *} is not supported; give one of 3.10 to 3.14 with: make PYTHON3=python3.11 ..." >&2; exit 1 ;;
esac
