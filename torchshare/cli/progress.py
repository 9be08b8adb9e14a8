"""Shows the progress of jobs on stderr: on a terminal a table that is rewritten, elsewhere few lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler
from rich.table import Table

from torchshare.context.names import escaped
from torchshare.context.results import ENDED, Result
from torchshare.runtime.runtime import Runtime, log

_FIRST_LINE_S = 60.0  # where there is no terminal; each further one after twice the time
_RAREST_LINE_S = 960.0


class _Escaping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), keep="\n\t")


class Progress:
    """A context manager; call `update` regularly inside it."""

    def __init__(self, runtime: Runtime, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runtime = runtime
        self._console = Console(stderr=True, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._handler: logging.Handler | None = None
        self._states: dict[str, str] = {}
        self._pause = _FIRST_LINE_S
        self._next_line = clock() + self._pause

    def update(self) -> None:
        results = list(self._runtime.results.values())
        if self._live is not None:
            self._live.update(_table(results), refresh=True)
            return
        due = self._clock() >= self._next_line
        for result in results:
            former = self._states.get(result.name)
            if former != result.state or (due and result.state not in ENDED):
                self._states[result.name] = result.state
                self._console.print(_line(result), markup=False, highlight=False, soft_wrap=True)
        if due:
            self._pause = min(2 * self._pause, _RAREST_LINE_S)
            self._next_line = self._clock() + self._pause

    def __enter__(self) -> Progress:
        # Prints log lines above the table. INFO includes compilations, which take long.
        self._handler = RichHandler(console=self._console, show_path=False) if self._live else logging.StreamHandler()
        self._handler.setFormatter(_Escaping())
        log.addHandler(self._handler)
        log.propagate = False
        log.setLevel(logging.INFO)
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.update()
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)
        assert self._handler is not None  # set by __enter__
        log.removeHandler(self._handler)
        log.propagate = True
        log.setLevel(logging.NOTSET)


def _rate(result: Result) -> str:
    return f"{result.steps_per_s:.1f}" if result.steps > 0 and result.steps_per_s is not None else "-"


def _latest(result: Result) -> str:
    """What it has answered, and its metrics."""
    requests = result.requests
    texts = [f"{escaped(name)} {value:.4g}" for name, value in result.metrics.items()]
    if requests:
        late = f", {requests.late} late" if requests.slo else ""
        texts.insert(0, f"{requests.answered} requests, p99 {1e3 * requests.latency.p99:.2f} ms{late}")
    if periods := result.periods:
        late = f", {periods.missed + periods.skipped} missed"
        texts.insert(0, f"{periods.met} deadlines met{late}, response p99 {1e3 * periods.response.p99:.2f} ms")
    if result.deadline_kept:
        texts.append(result.deadline_kept)
    return "  ".join(texts)


def _line(result: Result) -> str:
    answers = result.requests or result.periods
    steps = [] if answers and not result.steps else [f"{result.steps} steps, {_rate(result)} steps/s"]
    return f"{escaped(result.name)}: {result.state}, {'  '.join([*steps, _latest(result)])}".rstrip()


def _table(results: list[Result]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("job", "priority", "state"):
        table.add_column(heading)
    for heading in ("steps", "steps/s"):
        table.add_column(heading, justify="right")
    table.add_column("latest")
    for result in results:
        table.add_row(
            escaped(result.name), result.priority, result.state, str(result.steps), _rate(result), _latest(result)
        )  # fmt: skip
    return table
