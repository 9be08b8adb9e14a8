from __future__ import annotations

import re
from dataclasses import dataclass

EXPECTED = 'a number of steps, or a time such as "30s", "5min" or "1h"'
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Interval:
    """How often something is done: after so many steps, or after so many seconds."""

    steps: int | None
    seconds: float | None


def parse(text: str | int) -> Interval:
    """Raises ValueError for a text that is no interval."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?(s|min|h)?", str(text))
    number = 0.0 if match is None else float(match[1])
    if match is None or number == 0 or (match[2] is None and "." in match[1]):
        raise ValueError(f"must be {EXPECTED}, got {text!r}")
    return Interval(int(number), None) if match[2] is None else Interval(None, number * _SECONDS[match[2]])


def is_interval(text: str | int) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True
