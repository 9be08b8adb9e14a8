"""Times as text, such as "2h" or "1h30m"."""

from __future__ import annotations

import math
import re

EXPECTED = 'a time such as "2h", "90m" or "1h30m", or a positive number of seconds'
_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"\d{1,12}(?:\.\d{1,6})?"
_FORM = re.compile("".join(rf"(?:({_NUMBER}) ?{unit} ?)?" for unit in ("d", "h", "m(?:in)?", "s")))


def parse_duration(value: str | float) -> float:
    """Seconds. Raises ValueError for a value that is no duration above 0."""
    if isinstance(value, str) and (match := _FORM.fullmatch(value.strip())) and any(match.groups()):
        seconds = sum(float(number) * unit for number, unit in zip(match.groups("0"), _UNITS.values(), strict=True))
    else:
        try:
            seconds = math.nan if isinstance(value, bool) else float(value)
        except ValueError:
            seconds = math.nan
    if not 0 < seconds <= 1e12:
        raise ValueError(f"must be {EXPECTED}, got {value!r}")
    return seconds


def is_duration(value: str | float) -> bool:
    try:
        parse_duration(value)
    except ValueError:
        return False
    return True


def duration_text(seconds: float) -> str:
    """A duration as `parse_duration` reads it, in its two largest units: "1h30m"."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < 60:
        return f"{seconds:.3g}s"
    left = round(seconds)
    counts = {}
    for unit, size in _UNITS.items():
        counts[unit], left = divmod(left, int(size))
    largest = next(place for place, count in enumerate(counts.values()) if count)
    shown = list(counts.items())[largest : largest + 2]
    return "".join(f"{count}{unit}" for unit, count in shown if count)
