#!/bin/sh
# Makes the package of a build folder: link_package.sh BUILD. BUILD/python has the modules of the build and links to the
# Python files, so that it can be imported beside the package in torchshare/, which has the modules of `make build`.
set -eu
package=$1/python/torchshare
mkdir -p "$package"
for entry in torchshare/*; do
  case $entry in *.so | */__pycache__) ;; *) ln -sfn "$PWD/$entry" "$package/" ;; esac
done
cp "$1"/_C.*.so "$1"/_core.*.so "$package"
