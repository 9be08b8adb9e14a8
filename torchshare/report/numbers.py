"""Numbers, and how reports write them."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

Numbers = NDArray[Any]

_UNKNOWN = "-"


def number(value: float | None, digits: int = 3) -> str:
    """A number with that many significant digits, and all digits of an integer."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    if isinstance(value, int) or abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """A time in its unit, such as 1.23 ms."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= factor * (1 - 5e-4):  # not 1,000 of the next
            return f"{number(value / factor)} {unit}"
    return "0 s" if value == 0 else f"{number(value / 1e-9)} ns"


def size(value: float | None) -> str:
    """Bytes as MiB."""
    return _UNKNOWN if value is None else f"{number(value / 2**20)} MiB"


def percent(value: float | None) -> str:
    return _UNKNOWN if value is None or not math.isfinite(value) else f"{value:.1%}"
