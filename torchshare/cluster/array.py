"""The indices of an array of jobs, as Slurm writes them: "0-15", "0,3,7-9", "0-15:5", "0-99%4"."""

from __future__ import annotations

import re

EXPECTED = (
    'indices such as "0-15", "0,3,7-9" or "0-15:5", at most 1,000 and each once; with "%4" behind them, at most 4 of '
    "the jobs run at once"
)
INDEX = "TORCHSHARE_ARRAY_INDEX"
"""The variable of a job's environment that has its index."""
_MOST = 1000
_FORM = re.compile(r"([^%]+)(?: ?% ?([1-9][0-9]{0,5}))?")
_RANGE = re.compile(r" ?([0-9]{1,9})(?: ?- ?([0-9]{1,9})(?: ?: ?([1-9][0-9]{0,8}))?)? ?")


def parse_array(text: str) -> tuple[list[int], int]:
    """The indices, and how many of the jobs may run at the same time, 0 for any number. Raises ValueError."""
    indices: list[int] = []
    form = _FORM.fullmatch(text)
    for each in form[1].split(",") if form else ():
        found = _RANGE.fullmatch(each)
        if found is None:
            break
        first = int(found[1])
        indices += range(first, int(found[2] or first) + 1, int(found[3] or 1))[: _MOST + 1]
    else:
        if form and indices and len(set(indices)) == len(indices) <= _MOST:
            return indices, int(form[2] or 0)
    raise ValueError(f"array must be {EXPECTED}, got {text!r}")


def is_array(text: str) -> bool:
    try:
        parse_array(text)
    except ValueError:
        return False
    return True
