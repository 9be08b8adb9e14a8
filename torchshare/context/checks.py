from __future__ import annotations

from numbers import Real


def check_count(job: str, what: str, count: object) -> None:
    """Raises ValueError unless `count` is None or a non-negative integer."""
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise ValueError(f"job '{job}': {what} must be a non-negative integer, got {count!r}")


def check_seconds(user: str, what: str, seconds: object) -> None:
    """Raises ValueError unless `seconds` is None or a positive number."""
    if seconds is None:
        return
    if not isinstance(seconds, Real) or isinstance(seconds, bool) or not 0 < float(seconds) < float("inf"):
        raise ValueError(f"{user}: {what} must be a positive number of seconds, got {seconds!r}")
