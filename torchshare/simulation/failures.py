"""Failures of a simulated cluster: GPUs and nodes that leave and return."""

from __future__ import annotations

import math
from pathlib import Path

from torchshare import _core
from torchshare.context.durations import parse_duration
from torchshare.simulation.job_trace import BadValue, Row, read_rows

_Outage = tuple[int, int, float, float]  # first GPU, GPUs, begin, end
_FORM = "mtbf=TIME,repair=TIME[,nodes=SHARE] or a CSV file"
_COLUMNS = ["leaves_s", "returns_s", "gpu", "node"]
_MIN_S = 1.0  # mean time between failures


def parse_failures(text: str, gpus: int, gpus_per_node: int, seed: int) -> _core.Failures:
    """The failures that --failures describes: `mtbf=1h,repair=10m,nodes=0.2` are drawn, with the mean time between two
    failures of the cluster, the mean time until what has failed returns, and the share of failures that take a whole
    node; another text is a CSV file of `leaves_s,returns_s,gpu,node`, seconds from the beginning and a number from 0
    on. Raises ValueError with the value, of a file with its line."""
    if text.startswith(("mtbf=", "repair=", "nodes=")):
        return _drawn(text, gpus, gpus_per_node, seed)
    path = Path(text)
    outages: list[_Outage] = []
    for line, row in read_rows(path, _COLUMNS):
        try:
            outages.append(_outage(row, gpus, gpus_per_node))
        except BadValue as error:
            raise ValueError(f"{path}:{line}: {error}") from None
    return _core.Failures(outages)


def _drawn(text: str, gpus: int, gpus_per_node: int, seed: int) -> _core.Failures:
    given = dict(part.partition("=")[::2] for part in text.split(","))
    if not {"mtbf", "repair"} <= given.keys() <= {"mtbf", "repair", "nodes"} or len(given) != text.count(",") + 1:
        raise ValueError(f"--failures must be {_FORM}, got {text}")
    times = {}
    for name in ("mtbf", "repair"):
        try:
            times[name] = parse_duration(given[name])
        except ValueError as error:
            raise ValueError(f"{name} of --failures {error}") from None
    if times["mtbf"] < _MIN_S:
        raise ValueError(f"mtbf of --failures must be at least {_MIN_S:g} s, got {given['mtbf']}")
    try:
        share = float(given.get("nodes", "0"))
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ValueError(f"nodes of --failures must be from 0 to 1, got {given['nodes']}")
    return _core.Failures(times["mtbf"], times["repair"], share, gpus, gpus_per_node, seed)


def _outage(row: Row, gpus: int, gpus_per_node: int) -> _Outage:
    begin = row.number("leaves_s")
    end = row.number("returns_s", above=begin, default=math.inf)
    if row.has_any("gpu") == row.has_any("node"):
        got = f"gpu '{row.optional('gpu')}' and node '{row.optional('node')}'"
        raise BadValue(f"one of the columns 'gpu' and 'node' must have a number, got {got}")
    if row.has_any("gpu"):
        return _number(row, "gpu", gpus), 1, begin, end
    return gpus_per_node * _number(row, "node", gpus // gpus_per_node), gpus_per_node, begin, end


def _number(row: Row, column: str, count: int) -> int:
    value = row.text(column)
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) >= count:
        raise BadValue(f"column '{column}' must be from 0 to {count - 1}, got '{value[:60]}'")
    return int(value)
