"""TOML files that users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the text and what it says. Raises ValueError for a file that cannot be read."""
    try:
        import tomllib
    except ImportError:
        raise ValueError(f"{path}: TOML files need Python 3.11 or later") from None
    try:
        text = path.read_text()
        return text, tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
