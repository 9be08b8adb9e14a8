"""The package's version. setup.py makes it of RELEASE, the commit and the torch that it is built for."""

from __future__ import annotations

from importlib import metadata

RELEASE = "0.2.0.dev0"

try:
    __version__ = metadata.version("torchshare")
except metadata.PackageNotFoundError:  # not installed
    __version__ = RELEASE
