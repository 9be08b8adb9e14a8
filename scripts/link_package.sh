#!/bin/sh
# Makes BUILD/python/torchshare: link_package.sh BUILD MODULE... It has these modules of the build folder, and links to everything
# else in torchshare/, which has the modules of `make build`.
set -eu
build=$1
package=$build/python/torchshare
shift
rm -rf "$package"
mkdir -p "$package"
for entry in torchshare/*; do
  case $entry in */__pycache__) ;; *) ln -s "$PWD/$entry" "$package/" ;; esac
done
for module in "$@"; do
  cp --remove-destination "$build/$module".*.so "$package"
done
