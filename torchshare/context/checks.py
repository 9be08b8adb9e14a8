from __future__ import annotations


def check_count(job: str, what: str, count: object) -> None:
    """Raises ValueError unless `count` is None or a non-negative integer."""
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise ValueError(f"job '{job}': {what} must be a non-negative integer, got {count!r}")
