from __future__ import annotations

import os
from pathlib import Path


def cache_folder(what: str) -> Path:
    """The folder in which `what` is cached between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchshare" / what
