"""Shows on a terminal how many of the simulated jobs have ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Result = TypeVar("Result")


def with_progress(jobs: int, work: Callable[[Callable[[int, int], object]], Result]) -> Result:
    """The result of `work(progress)`, where `progress(index of a case, number of its ended jobs)` moves a bar, on a
    terminal."""
    if not sys.stderr.isatty():
        return work(lambda index, ended: None)
    ended: dict[int, int] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("jobs simulated", total=jobs)

        def progress(index: int, jobs: int) -> None:
            ended[index] = jobs
            bar.update(task, completed=sum(ended.values()))

        return work(progress)
