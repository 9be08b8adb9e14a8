#!/bin/sh
# Makes the package of a build folder: link_package.sh BUILD. BUILD/python has the modules of the build and links to the rest of
# torchshare/, so that it can be imported beside that package, which has the modules of `make build`.
set -eu
package=$1/python/torchshare
mkdir -p "$package"
for entry in torchshare/*; do
  case $entry in */__pycache__) ;; *) ln -sfn "$PWD/$entry" "$package/" ;; esac
done
cp --remove-destination "$1"/_*.so "$package"
