#!/bin/sh
# Makes the package of a build folder: link_package.sh BUILD MODULE... BUILD/python has these modules of the build and links to the
# rest of torchshare/, so that it can be imported beside that package, which has the modules of `make build`.
set -eu
build=$1
package=$build/python/torchshare
shift
rm -rf "$package"
mkdir -p "$package"
for entry in torchshare/*; do
  case $entry in */__pycache__) ;; *) ln -sfn "$PWD/$entry" "$package/" ;; esac
done
for module in "$@"; do
  cp --remove-destination "$build/$module".*.so "$package"
done
