"""AdaptDL's workloads, which come with torchshare (traces/README.md)."""

from __future__ import annotations

import functools
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from torchshare.simulation.job_trace import (
    Format,
    Limits,
    Row,
    Trace,
    TraceJob,
    adaptdl_key,
    adaptdl_run,
    rows_in,
    trace_of,
)

JOBS = (80, 160, 240, 320)
WORKLOADS = 8  # of each number of jobs
_FILE = Path(__file__).parent / "traces" / "adaptdl.csv.gz"
_PREFIX = "adaptdl:"
_FORM = f"{_PREFIX}JOBS or {_PREFIX}JOBS/N with JOBS one of {', '.join(map(str, JOBS))} and N from 1 to {WORKLOADS}"


def is_packaged(name: str) -> bool:
    """Whether this names traces that come with torchshare, not a file."""
    return name.startswith(_PREFIX)


def read_packaged(name: str, limits: Limits, *, skip_bad_rows: bool = False) -> list[Trace]:
    """The trace `adaptdl:JOBS/N`, or for `adaptdl:JOBS` all eight. Raises ValueError for another name, and if a job
    does not fit the cluster, unless these are skipped and listed in `bad_rows`."""
    match = re.fullmatch(rf"{_PREFIX}(\d{{1,9}})(?:/(\d{{1,9}}))?", name, re.ASCII)
    jobs, workload = (int(match[1]), int(match[2] or 0)) if match else (0, 0)
    if match is None or jobs not in JOBS or not (match[2] is None or 1 <= workload <= WORKLOADS):
        raise ValueError(f"--trace must be a file, {_FORM}, got {name}")
    chosen = [workload] if workload else range(1, WORKLOADS + 1)
    return [
        trace_of(f"{_PREFIX}{jobs}/{each}", _rows(jobs, each), _FORMAT, limits, skip_bad_rows=skip_bad_rows)
        for each in chosen
    ]


def _job(row: Row, line: int) -> TraceJob:
    return adaptdl_run(adaptdl_key(row), row)._replace(name=row.text("name"), arrival=row.number("time"))


_FORMAT = Format(["jobs", "workload"], _job, "time", "num_replicas")


def _rows(jobs: int, workload: int) -> Iterator[tuple[int, Row]]:
    """The rows of one workload, with their lines in AdaptDL's own file."""
    return enumerate(_rows_by_workload()[jobs, workload], 2)


@functools.cache
def _rows_by_workload() -> dict[tuple[int, int], list[Row]]:
    found: dict[tuple[int, int], list[Row]] = {}
    with gzip.open(_FILE, "rt", newline="", encoding="utf-8") as file:
        for _, row in rows_in(file, str(_FILE), _FORMAT.columns):
            found.setdefault((row.count("jobs"), row.count("workload")), []).append(row)
    return found
