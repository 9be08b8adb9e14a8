"""What runtimes of several ranks agree on, through the store of their rendezvous: the list of jobs; that a job which
fails or is cancelled on one rank ends on all; suspend, resume and the decisions of `start="auto"`; and that all jobs
end when a rank dies."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from torchshare import _C
from torchshare.context.job_context import JobContext
from torchshare.context.rank import Rank, this_rank
from torchshare.context.results import ENDED

log = logging.getLogger("torchshare")

_JOIN_S = 60.0  # how long a rank waits for the others to start
_POLL_S = 0.05  # how often a rank looks for news: no signal is handled during `Store.wait`, which logs a warning
_BEAT_S = 1.0  # how often a rank says that it is alive
_DEAD_S = 20.0  # a rank that has not said so for this long has died
_LEAVE_S = 10.0  # a job that is blocked for this long after it was to end on all ranks is left behind
_NEWS_S = 1.0  # how long a job whose collective failed waits to hear that it failed on another rank first


class Ranks:
    """This rank's side. A message is for all ranks, its sender included."""

    def __init__(
        self, runtime: _C.Runtime, number: int, jobs: list[JobContext], cancel: Callable[[JobContext], None]
    ) -> None:
        """Waits until all ranks have got here with the same jobs. `number` is the same for runtimes that run together.

        Raises:
            RuntimeError: if a rank has other jobs, or does not come.
        """
        self._rank: Rank = this_rank()
        self._runtime = runtime
        self._jobs = jobs
        self._cancel = cancel
        self._ended_on: dict[str, int] = {}  # job: the rank on which it ended first, unsuccessfully
        self._news = threading.Condition()  # notified of _ended_on
        self._left: set[int] = set()
        self._leaving: dict[JobContext, float] = {}  # jobs that end on all ranks: when they are left behind
        self.failure: str | None = None
        """Why all jobs must end: a rank has died."""
        host = next(rendezvous("env://", timeout=timedelta(seconds=_JOIN_S)))[0]
        prefix = f"torchshare/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}"
        self._store: Any = PrefixStore(prefix, host)
        self._compare()
        if self._rank.is_first:
            runtime.keep_orders()
        else:
            runtime.follow_orders()
        self._watcher = threading.Thread(target=self._watch, name="ts-ranks", daemon=True)
        self._watcher.start()

    def tell(self, job: JobContext, what: str, text: str = "") -> None:
        """Sends "ended", "suspend" or "resume" of a job. From any thread."""
        if what != "ended" or job.name not in self._ended_on:
            self._send(what, job.name, text)

    def newest_common(self, job: JobContext, steps: list[int]) -> int | None:
        """The newest of the checkpoints, by step, that all ranks have. In the job's thread, on all ranks."""
        keys = [f"checkpoints/{job.name}/{rank}" for rank in range(self._rank.count)]
        self._store.set(keys[self._rank.number], json.dumps(steps))
        common = set(steps)
        for key in keys:
            while not self._store.check([key]):
                time.sleep(_POLL_S)  # until the job is cancelled, at most
            common &= set(json.loads(self._store.get(key)))
        return max(common, default=None)

    def ended_elsewhere(self, job: JobContext) -> bool:
        """Whether the job has ended on another rank. Waits a moment for the news: a rank that waits for the job in a
        collective hears of it from the connection, too."""
        with self._news:
            self._news.wait_for(lambda: job.name in self._ended_on or self.failure is not None, _NEWS_S)
            return self._ended_on.get(job.name, self._rank.number) != self._rank.number

    def close(self) -> None:
        """Leaves. A rank that hosts the store stays until all others have left."""
        self._send("left", "", "")
        self._watcher.join(_DEAD_S)
        hosts = self._rank.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        while hosts and self.failure is None and len(self._left) < self._rank.count:
            self._serve()

    def _compare(self) -> None:
        own = ", ".join(f"'{job.name}' {job.handle.priority}" for job in self._jobs)
        self._store.set(f"jobs/{self._rank.number}", own)
        deadline = time.monotonic() + _JOIN_S
        for rank in range(self._rank.count):
            while not self._store.check([f"jobs/{rank}"]):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rank {rank} has not started its jobs within {_JOIN_S:.0f} s")
                time.sleep(_POLL_S)
            others = self._store.get(f"jobs/{rank}").decode()
            if others != own:
                raise RuntimeError(
                    f"ranks must run the same jobs, got {own} on rank {self._rank.number} and {others} on rank {rank}"
                )

    def _send(self, what: str, job: str, text: str) -> None:
        if self.failure is None:
            message = json.dumps([self._rank.number, what, job, text])
            try:
                self._store.set(f"message/{self._store.add('messages', 1)}", message)
            except DistError as error:
                self._fail(f"the store of the ranks is lost: {error}")

    def _watch(self) -> None:
        self._next, self._next_beat = 1, 0.0
        self._beats: dict[int, tuple[Any, float]] = {}  # rank: its last beat, and when it was seen
        self._reader = self._store.clone()  # a connection of its own: `wait` keeps it to itself
        try:
            while self.failure is None and self._rank.number not in self._left:
                self._serve()
        except DistError as error:
            self._fail(f"the store of the ranks is lost: {error}")

    def _serve(self) -> None:
        """Handles the messages that have come, waits a moment, and says that this rank is alive."""
        for order in self._runtime.take_orders() if self._rank.is_first else ():
            self._send("order", "", json.dumps(order))
        while self._reader.check([f"message/{self._next}"]):
            message = self._reader.get(f"message/{self._next}")
            self._next += 1
            self._handle(*json.loads(message))
        self._leave_behind()
        time.sleep(_POLL_S)
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_S
            self._check_beats()

    def _handle(self, rank: int, what: str, name: str, text: str) -> None:
        if what == "left":
            self._left.add(rank)
        if what == "ended":
            with self._news:
                self._ended_on.setdefault(name, rank)
                self._news.notify_all()
        if what == "order" and rank != self._rank.number:
            self._runtime.obey(*json.loads(text))
        for job in self._jobs:
            if job.name != name or job.handle.state in ENDED:
                continue
            if what == "ended":
                self._leaving.setdefault(job, time.monotonic() + _LEAVE_S)
            if rank != self._rank.number:
                self._follow(job, what, f"{text} on rank {rank}")

    def _follow(self, job: JobContext, what: str, text: str) -> None:
        if what == "suspend":
            job.handle.suspend()
        elif what == "resume":
            job.handle.resume()
        elif what == "ended" and not job.handle.cancel_requested:
            log.error("job '%s' ends on rank %d: it %s", job.name, self._rank.number, text)
            self._cancel(job)

    def _leave_behind(self) -> None:
        """A job may wait in C++ for a rank that has not come to the rendezvous, and will not."""
        for job in [job for job, at in self._leaving.items() if at < time.monotonic()]:
            del self._leaving[job]
            if job.handle.state not in ENDED:
                log.warning("job '%s' is blocked on rank %d and is left behind", job.name, self._rank.number)
                job.handle.give_up()

    def _check_beats(self) -> None:
        """Says that this rank is alive. The first rank looks after all others, and they look after it."""
        self._reader.set(f"beat/{self._rank.number}", str(time.monotonic()))
        now = time.monotonic()
        for rank in range(1, self._rank.count) if self._rank.is_first else [0]:
            key = f"beat/{rank}"
            beat = self._reader.get(key) if self._reader.check([key]) else b""
            last, seen = self._beats.get(rank, (None, now))
            if beat != last:
                self._beats[rank] = (beat, now)
            elif now - seen > _DEAD_S and rank not in self._left:
                self._fail(f"rank {rank} has not been heard of for {_DEAD_S:.0f} s")

    def _fail(self, why: str) -> None:
        if self.failure is None:
            self.failure = why
            log.error("all jobs end on rank %d: %s", self._rank.number, why)
            with self._news:
                self._news.notify_all()
            for job in self._jobs:
                self._cancel(job)
