from __future__ import annotations

import logging
import threading
import time
import traceback
from dataclasses import dataclass

from torchshare import _C
from torchshare.context.errors import users_part
from torchshare.context.job_context import JobContext
from torchshare.context.names import Lines

log = logging.getLogger("torchshare")

_LOOKS = 10  # per `stuck_after`


@dataclass
class _Seen:
    """A job at its last sign of life."""

    at: float
    progress: tuple[int, float] = (-1, 0.0)
    """Ops, and seconds that it waited for input."""
    is_named: bool = False


class Watchdog:
    """Names each job that for `stuck_after` seconds neither ran ops nor waited for input, at the gate or to be resumed,
    in a warning with its Python stack; once, until it goes on. Such a job may be blocked by a lock, asleep, or busy in
    Python. A job whose functions other threads call (`Job.serve`) waits for calls unless one has begun; the stack is of
    that. Reads counters of the jobs, in its own thread, from `start` to `close`."""

    def __init__(self, jobs: list[JobContext], stuck_after: float) -> None:
        """`jobs` may change. `stuck_after` 0: never."""
        self._jobs = jobs
        self._stuck_after = stuck_after
        self._seen: dict[JobContext, _Seen] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ts-watchdog", daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if it cannot be created."""
        if self._stuck_after > 0 and not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _serve(self) -> None:
        while not self._closed.wait(min(self._stuck_after / _LOOKS, threading.TIMEOUT_MAX)):
            jobs = list(self._jobs)
            self._seen = {job: seen for job, seen in self._seen.items() if job in jobs}
            for job in jobs:
                self._look(job)

    def _look(self, job: JobContext) -> None:
        now = time.monotonic()
        seen = self._seen.setdefault(job, _Seen(now))
        stats = job.handle.stats()
        progress = (stats.ops, stats.input_s)
        calls = job.serving.calls if job.serving is not None else None
        threads = [job.thread] if calls is None or not calls.may_come else calls.threads()
        if job.handle.state != "running" or job.handle.is_waiting or progress != seen.progress or not threads:
            self._seen[job] = _Seen(now, progress)
        elif now - seen.at >= self._stuck_after and not seen.is_named:
            seen.is_named = True
            log.warning(
                "job '%s' is stuck%s: for %.3g s it ended no op and did not wait for input; %s",
                job.name,
                "" if threads[0] == job.thread else " in a request",
                now - seen.at,
                _stack_of(threads[0]),
            )


def _stack_of(thread: int) -> str:
    places = _C.stack_of(thread)
    if not places:
        return "it is not in Python"
    stack = traceback.StackSummary.from_list((*place, None) for place in places)
    return Lines("it is in\n" + "".join((users_part(stack) or stack).format()).rstrip())
