"""Job traces for the simulator, read from CSV and checked row by row."""

from __future__ import annotations

import csv
import math
import sys
from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchshare import _core
from torchshare.simulation.applications import APPLICATIONS

Column = NDArray[np.float64]
_MAX_NUMBER = 1e12  # beyond, times are no longer exact
_DIGITS = 9
LARGEST_SPLIT = 8  # maximum number of sub-batches, unless a job has fewer rows
_SHOWN = 60  # characters of a value in a message
_LONGEST_PATH = 12  # jobs of a cycle in a message
_Key = tuple[str, int, int]  # application, GPUs, global batch


@dataclass(frozen=True)
class Trace:
    """Jobs in order of arrival, one entry of every column per job. Times in seconds from the beginning."""

    source: str
    names: list[str]
    arrival: Column
    duration: Column  # alone, on its GPUs
    gpus: NDArray[np.int32]
    memory_gib: Column  # per GPU; 0 if unknown
    models: list[str]  # names in the interference table; "" if unknown
    # How a job runs in sub-batches; None: not known of any job, NaN: not of this one.
    fixed_memory: Column | None = None  # fraction of its memory that does not scale with the sub-batch
    fixed_time: Column | None = None  # cost of each further sub-batch / step time in whole batches
    sub_batches: NDArray[np.int32] | None = None  # their maximum number
    deadline: Column | None = None  # seconds after its arrival, infinite without one; None: no job has one
    after: list[tuple[str, ...]] | None = None  # the jobs whose ends it waits for; None: no job waits for another
    users: list[str] | None = None  # whose job it is; "": not known; None: of no job
    bad_rows: list[str] = field(default_factory=list)  # error messages of the skipped rows
    load: float | None = None  # GPU time of the jobs / of the cluster while they arrive, if generated for this load
    left_out: float = 0.0  # share of the jobs that were to be generated, but do not fit the cluster


COLUMNS = ("arrival", "duration", "gpus", "memory_gib", "fixed_memory", "fixed_time", "sub_batches", "deadline")
"""The fields of a trace that are numbers of each job."""


@dataclass(frozen=True)
class Limits:
    """The resources of the cluster that bound a job's request."""

    gpus: int
    memory_gib: float = math.inf


class TraceJob(NamedTuple):
    """One job of a trace; see `Trace` for units."""

    name: str
    arrival: float
    duration: float
    gpus: int
    memory_gib: float = 0.0
    model: str = ""
    fixed_memory: float = math.nan
    fixed_time: float = math.nan
    sub_batches: int = LARGEST_SPLIT
    deadline: float = math.inf
    after: tuple[str, ...] = ()
    user: str = ""


class BadValue(ValueError):
    """An invalid value in a row; the message does not name the file and line yet."""


class Row:
    """One row of a CSV file, with checked access to its values."""

    __slots__ = ("_places", "_values")

    def __init__(self, values: list[str], places: dict[str, int]) -> None:
        self._values = values
        self._places = places  # of the columns

    def text(self, column: str) -> str:
        value = self.optional(column)
        if not value:
            raise BadValue(f"column '{column}' must not be empty")
        return value

    def optional(self, column: str) -> str:
        place = self._places.get(column, len(self._values))
        return self._values[place].strip() if place < len(self._values) else ""

    def number(
        self, column: str, *, least: float = 0.0, above: float | None = None, default: float | None = None
    ) -> float:
        """A finite number, at least `least` or more than `above`."""
        if default is not None and not self.optional(column):
            return default
        value = self.text(column)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if number > _MAX_NUMBER and math.isfinite(number):
            raise BadValue(f"column '{column}' must be at most {_MAX_NUMBER:g}, got '{value[:_SHOWN]}'")
        if not math.isfinite(number) or (number < least if above is None else number <= above):
            wanted = f">= {least:g}" if above is None else f"> {above:g}"
            raise BadValue(f"column '{column}' must be a number {wanted}, got '{value[:_SHOWN]}'")
        return number

    def has_any(self, *columns: str) -> bool:
        return any(self.optional(column) for column in columns)

    def count(self, column: str) -> int:
        value = self.text(column)
        if not value.isascii() or not value.isdigit() or len(value) > _DIGITS or int(value) < 1:
            raise BadValue(f"column '{column}' must be a positive integer, got '{value[:_SHOWN]}'")
        return int(value)

    def instant(self, column: str) -> float:
        value = self.text(column)
        try:
            return datetime.fromisoformat(value).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            raise BadValue(f"column '{column}' must be YYYY-MM-DD HH:MM:SS, got '{value[:_SHOWN]}'") from None


@dataclass(frozen=True)
class Format:
    """How the rows of a kind of file become jobs."""

    columns: list[str]  # required in the header
    job: Callable[[Row, int], TraceJob]  # from a row and its line number
    arrival: str  # name of the column, for messages
    gpus: str
    sorted: bool = True


def most_sub_batches(rows: float) -> int:
    """The maximum number of sub-batches of a job: a power of two, so that each has at least one row."""
    return int(min(LARGEST_SPLIT, 2 ** math.floor(math.log2(max(1.0, rows)))))


def _plain(row: Row, line: int) -> TraceJob:
    job = TraceJob(
        name=row.text("job"),
        arrival=row.number("arrival_s"),
        duration=row.number("duration_s", above=0),
        gpus=row.count("gpus"),
        memory_gib=row.number("memory_gib", default=0.0),
        model=row.optional("model"),
        deadline=row.number("deadline_s", above=0, default=math.inf),
        after=_names_in(row.optional("after")),
        user=row.optional("user"),
    )
    if row.has_any("memory_fixed_gib", "memory_per_row_gib"):
        if job.memory_gib > 0:
            raise BadValue(f"column 'memory_gib' must be empty beside memory by rows, got {job.memory_gib:g}")
        fixed = row.number("memory_fixed_gib")
        memory = fixed + row.number("memory_per_row_gib") * row.number("rows", least=1)
        job = job._replace(memory_gib=memory, fixed_memory=fixed / memory if memory > 0 else math.nan)
    if row.has_any("alpha_s", "beta_s"):
        alpha = row.number("alpha_s")
        job = job._replace(fixed_time=alpha / (alpha + row.number("beta_s", above=0) * row.number("rows", least=1)))
    if row.optional("rows"):
        job = job._replace(sub_batches=most_sub_batches(row.number("rows", least=1)))
    return job


def _names_in(text: str) -> tuple[str, ...]:
    """Names of jobs, separated by semicolons or, if there is none, by spaces."""
    names = map(str.strip, text.split(";")) if ";" in text else text.split()
    return tuple(dict.fromkeys(filter(None, names)))


def _philly(row: Row, line: int) -> TraceJob:
    return TraceJob(
        name=f"philly-{line}",
        arrival=row.instant("timestamp"),
        duration=row.number("duration", above=0),
        gpus=row.count("num_gpus"),
    )


def adaptdl_run(key: _Key, row: Row) -> TraceJob:
    """A job of AdaptDL without its name and arrival, from a row with its run time alone and, if known, the times of its
    step, of `accum_steps` sub-batches and one that synchronizes."""
    application, gpus, batch = key
    job = TraceJob("", 0.0, row.number("exclusive_runtime_s", above=0), gpus, model=application)
    known = APPLICATIONS.get(application)
    if known is None or not row.optional("step_time_s"):
        return job
    further = row.number("accum_steps")
    last = row.number("step_time_s", above=0)
    sync = row.number("sync_time_s")
    if sync > last:
        raise BadValue(f"column 'sync_time_s' must be at most 'step_time_s', {last:g}, got {sync:g}")
    step = last + further * (last - sync)
    rows = batch / gpus / (1 + further)
    memory = known.fixed_gib + known.per_row_gib * rows
    return job._replace(
        memory_gib=memory,
        fixed_memory=known.fixed_gib / memory,
        fixed_time=min(1.0, (1 + further) * known.alpha_s / step),
        sub_batches=most_sub_batches(rows),
    )


def adaptdl_key(row: Row) -> _Key:
    return row.text("application"), row.count("num_replicas"), row.count("batch_size")


def _adaptdl(runs: dict[_Key, TraceJob]) -> Callable[[Row, int], TraceJob]:
    def job(row: Row, line: int) -> TraceJob:
        key = adaptdl_key(row)
        if key not in runs:
            application, gpus, batch = key
            raise BadValue(
                f"application '{application}' has no runtime for {gpus} GPUs and batch {batch} in --runtimes"
            )
        return runs[key]._replace(name=row.text("name"), arrival=row.number("time"))

    return job


FORMATS = ("csv", "adaptdl", "philly")
_PLAIN_COLUMNS = ["job", "arrival_s", "gpus", "duration_s"]


def read_trace(
    path: Path, kind: str, limits: Limits, *, runtimes: Path | None = None, skip_bad_rows: bool = False
) -> Trace:
    """Reads a trace; `kind` is one of FORMATS. Raises ValueError with file, line, column and value of the first bad
    row, or skips bad rows and lists their errors in `bad_rows`."""
    form = _format(kind, runtimes)
    return trace_of(str(path), read_rows(path, form.columns), form, limits, skip_bad_rows=skip_bad_rows)


def trace_of(
    source: str, rows: Iterable[tuple[int, Row]], form: Format, limits: Limits, *, skip_bad_rows: bool = False
) -> Trace:
    """The trace that these rows with their line numbers are. Raises ValueError as `read_trace` does."""
    # A trace may have millions of rows: columns of numbers take a tenth of an object per job.
    names: dict[str, None] = {}  # in order
    models: list[str] = []
    users: list[str] = []
    arrival, duration, memory_gib, gpus = array("d"), array("d"), array("d"), array("i")
    fixed_memory, fixed_time, sub_batches, deadline = array("d"), array("d"), array("i"), array("d")
    after: dict[str, tuple[int, tuple[str, ...]]] = {}  # line and predecessors, of the jobs that have any
    bad: list[str] = []
    for line, row in rows:
        try:
            job = form.job(row, line)
            _check(job, arrival[-1] if form.sorted and arrival else 0.0, names, limits, form)
        except BadValue as error:
            bad.append(f"{source}:{line}: {error}")
            if not skip_bad_rows:
                raise ValueError(bad[-1]) from None
        else:
            names[job.name] = None
            models.append(sys.intern(job.model))
            users.append(sys.intern(job.user))
            arrival.append(job.arrival)
            duration.append(job.duration)
            gpus.append(job.gpus)
            memory_gib.append(job.memory_gib)
            fixed_memory.append(job.fixed_memory)
            fixed_time.append(job.fixed_time)
            sub_batches.append(job.sub_batches)
            deadline.append(job.deadline)
            if job.after:
                after[job.name] = line, job.after
    if not names:
        raise ValueError(f"{source} must have at least one valid job, got {len(bad)} bad rows")
    for name, (line, others) in after.items():
        for other in others:
            if other not in names:
                raise ValueError(f"{source}:{line}: job '{name}' waits for '{other}', which is not in the trace")
    trace = Trace(
        source=source,
        names=list(names),
        arrival=np.array(arrival),
        duration=np.array(duration),
        gpus=np.array(gpus, dtype=np.int32),
        memory_gib=np.array(memory_gib),
        models=models,
        fixed_memory=np.array(fixed_memory),
        fixed_time=np.array(fixed_time),
        sub_batches=np.array(sub_batches, dtype=np.int32),
        deadline=np.array(deadline) if min(deadline) < math.inf else None,
        after=[after[name][1] if name in after else () for name in names] if after else None,
        users=users if any(users) else None,
        bad_rows=bad,
    )
    _check_for_cycles(trace)
    return trace if form.sorted else _by_arrival(trace)


def _by_arrival(trace: Trace) -> Trace:
    """The jobs in order of arrival, the first one at 0."""
    order = np.argsort(trace.arrival, kind="stable")
    ordered = pick(trace, order)
    return replace(ordered, arrival=ordered.arrival - ordered.arrival[0])


def predecessors(trace: Trace) -> list[list[int]]:
    """The jobs that each job waits for, by their numbers; empty if no job waits for another."""
    if trace.after is None:
        return []
    numbers = {name: number for number, name in enumerate(trace.names)}
    return [[numbers[name] for name in names] for names in trace.after]


def _check_for_cycles(trace: Trace) -> None:
    cycle = [trace.names[job] for job in _core.find_cycle(predecessors(trace))]
    if cycle:
        path = [f"'{name}'" for name in [*cycle, cycle[0]]]
        shown = path if len(path) <= _LONGEST_PATH else [*path[: _LONGEST_PATH - 2], "...", path[-1]]
        raise ValueError(f"{trace.source}: jobs must not wait for each other, got {' after '.join(shown)}")


def pick(trace: Trace, jobs: NDArray[np.intp]) -> Trace:
    """These jobs of the trace, in this order."""
    picked: dict[str, Any] = {
        name: None if (column := getattr(trace, name)) is None else column[jobs] for name in COLUMNS
    }
    names, models = ([texts[job] for job in jobs] for texts in (trace.names, trace.models))
    after = None if trace.after is None else [trace.after[job] for job in jobs]
    users = None if trace.users is None else [trace.users[job] for job in jobs]
    return replace(trace, names=names, models=models, after=after, users=users, **picked)


def _format(kind: str, runtimes: Path | None) -> Format:
    if kind == "csv":
        return Format(_PLAIN_COLUMNS, _plain, "arrival_s", "gpus")
    if kind == "philly":
        return Format(["timestamp", "duration", "num_gpus"], _philly, "timestamp", "num_gpus", sorted=False)
    if runtimes is None:
        raise ValueError("--trace-format adaptdl needs --runtimes FILE: its traces have no durations")
    columns = ["name", "time", "application", "num_replicas", "batch_size"]
    return Format(columns, _adaptdl(_read_runtimes(runtimes)), "time", "num_replicas")


def _check(job: TraceJob, former: float, names: Container[str], limits: Limits, form: Format) -> None:
    if job.name in names:
        raise BadValue(f"job names must be unique, got '{job.name}' twice")
    if form.sorted and job.arrival < former:
        raise BadValue(f"column '{form.arrival}' must ascend, got {job.arrival:g} after {former:g}")
    if job.gpus > limits.gpus:
        raise BadValue(f"column '{form.gpus}' must be at most {limits.gpus}, the GPUs of the cluster, got {job.gpus}")
    if job.memory_gib > limits.memory_gib:
        raise BadValue(f"memory must be at most {limits.memory_gib:g} GiB, that of a GPU, got {job.memory_gib:.4g} GiB")


def _read_runtimes(path: Path) -> dict[_Key, TraceJob]:
    columns = ["application", "num_gpus", "global_batch", "exclusive_runtime_s"]
    runs: dict[_Key, TraceJob] = {}
    for line, row in read_rows(path, columns):
        try:
            key = (row.text("application"), row.count("num_gpus"), row.count("global_batch"))
            runs[key] = adaptdl_run(key, row)
        except BadValue as error:
            raise ValueError(f"{path}:{line}: {error}") from None
    return runs


def read_rows(path: Path, columns: list[str]) -> Iterator[tuple[int, Row]]:
    """The rows of a CSV file with their line numbers. Raises ValueError for an invalid file or a missing column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from rows_in(file, str(path), columns)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None


def rows_in(lines: Iterable[str], source: str, columns: list[str]) -> Iterator[tuple[int, Row]]:
    """The rows of the CSV text `lines` with their line numbers. Raises ValueError for a missing column."""
    reader = csv.reader(lines)
    places = {column: place for place, column in enumerate(next(reader, []))}
    missing = [column for column in columns if column not in places]
    if missing:
        raise ValueError(f"{source}:1: the header must have the columns {','.join(columns)}, '{missing[0]}' is missing")
    for values in reader:
        if values:  # not an empty line
            yield reader.line_num, Row(values, places)
