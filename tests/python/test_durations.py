"""Times as text."""

from __future__ import annotations

import re

import pytest

from torchshare.context.durations import EXPECTED, duration_text, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("90min", 5400),
        ("1h30m", 5400),
        ("1h 30 min", 5400),
        ("1.5h", 5400),
        ("1d12h", 129_600),
        ("45s", 45),
        ("7200", 7200),
        (0.5, 0.5),
        (10, 10),
    ],
)
def test_a_duration_is_read_as_seconds(value: str | float, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["", "h", "30m1h", "-5", "0", "0h", "nan", "inf", "2 hours", "1e13", True, "1" * 99])
def test_what_is_no_duration_is_named(value: str | float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"must be {EXPECTED}, got {value!r}")):
        parse_duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25s"), (59.4, "59.4s"), (60, "1m"), (90, "1m30s"), (7200, "2h"), (5400, "1h30m"), (90_061, "1d1h")],
)
def test_a_duration_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_no_end_is_for_ever() -> None:
    assert duration_text(float("inf")) == "for ever"
