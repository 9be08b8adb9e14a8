"""What runtimes of several ranks agree on, through the store of their rendezvous: the list of jobs; when each job
starts and which are held for another; the pace that keeps the bound; suspend and resume; that a job which fails or is
cancelled on one rank ends on all; and that all jobs end when a rank dies.

The first rank decides about starts, holds and the pace, and the others follow: ranks that started or held different
jobs would wait for each other, and no rank sees in its own steps what its secondary costs another rank's primary. They
follow within 0.1 s, not at the same step. That is enough: a job waits for itself on other ranks, not for other jobs, so
a rank that is ahead waits in its next collective.

Everything else is each rank's own:

- The gate. A job waits only for higher ones. The highest waits for none, so its collectives end; then those of the next
  one do. So ranks cannot wait for each other in a circle.
- Sub-batches. Gradients are averaged once per batch (see `gradient_sync`), so ranks may differ in their number.
- Turns at torch's process-wide state, such as tracing. Nothing in a turn waits for other ranks, unless the user runs
  collectives inside a level of forward-mode differentiation or sets `enable_compiler_collectives`. Two jobs that do may
  wait for each other.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
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


def newest_common(store: Any, job: JobContext, steps: list[int]) -> int | None:
    """The newest of the checkpoints, by step, that all ranks have. In the job's thread, on all ranks."""
    keys = [f"checkpoints/{job.name}/{rank}" for rank in range(job.rank.count)]
    store.set(keys[job.rank.number], json.dumps(steps))
    common = set(steps)
    for key in keys:
        while not store.check([key]):
            time.sleep(_POLL_S)  # until the job is cancelled, at most
        common &= set(json.loads(store.get(key)))
    return max(common, default=None)


def serve(address: str, count: int) -> Any:
    """A store where so many ranks of a job can meet; has its `port`."""
    return TCPStore(address, 0, count, is_master=True, wait_for_workers=False, multi_tenant=True)


def meet(job: JobContext) -> Any:
    """The store of the ranks of a job whose ranks are not the process's. In its thread: it reads the environment."""
    host: Any = next(rendezvous("env://", timeout=timedelta(seconds=_JOIN_S)))[0]
    return PrefixStore(f"torchshare/{job.name}", host)


class Ranks:
    """This rank's side. A message is for all ranks, its sender included."""

    def __init__(
        self,
        runtime: _C.Runtime,
        number: str,
        jobs: list[JobContext],
        cancel: Callable[[JobContext], None],
        forget_unbegun: Callable[[], None],
    ) -> None:
        """Waits until all ranks have got here with the same jobs. `number` is the same for runtimes that run together.

        Raises:
            RuntimeError: if a rank has other jobs, or does not come.
        """
        self._rank: Rank = this_rank()
        self._runtime = runtime
        self._jobs = jobs
        self._cancel = cancel
        self._forget_unbegun = forget_unbegun
        self._ended: dict[str, tuple[int, str]] = {}  # job: on which rank it ended first, unsuccessfully, and how
        self._news = threading.Condition()  # notified of _ended; guards it, and _said
        self._said: set[JobContext] = set()  # jobs of which a line has said why they end here
        self._left: set[int] = set()
        self._leaving: dict[JobContext, float] = {}  # jobs that end on all ranks: when they are left behind
        self._pace: Any = None  # the last one sent or followed
        self.failure: str | None = None
        """Why all jobs must end: a rank has died."""
        host: Any = next(rendezvous("env://", timeout=timedelta(seconds=_JOIN_S)))[0]
        prefix = f"torchshare/{number}"
        self._store: Any = PrefixStore(prefix, host)
        # A connection of the watcher's: a wait keeps one to itself.
        self._reader: Any = PrefixStore(prefix, host.clone())
        self._compare()
        if self._rank.is_first:
            runtime.keep_orders()
        else:
            runtime.follow_orders()
        self._watcher = threading.Thread(target=self._watch, name="ts-ranks", daemon=True)
        self._watcher.start()

    def tell(self, job: JobContext, what: str, text: str = "") -> None:
        """Sends "ended", "suspend" or "resume" of a job. From any thread."""
        if what != "ended" or job.name not in self._ended:
            self._send(what, job.name, text)

    def newest_common(self, job: JobContext, steps: list[int]) -> int | None:
        return newest_common(self._store, job, steps)

    def ended_elsewhere(self, job: JobContext) -> bool:
        """Whether the job has ended on another rank. Waits a moment for the news: a rank that waits for the job in a
        collective hears of it from the connection, too."""
        with self._news:
            self._news.wait_for(lambda: job.name in self._ended or self.failure is not None, _NEWS_S)
        ended = job.name in self._ended and self._ended[job.name][0] != self._rank.number
        if ended:
            self._say_why(job)
        return ended

    def _say_why(self, job: JobContext) -> None:
        """Logs, once, why a job ends on this rank."""
        with self._news:
            if job in self._said:
                return
            self._said.add(job)
        rank, how = self._ended[job.name]
        log.error("job '%s' ends on rank %d: it %s on rank %d", job.name, self._rank.number, how, rank)

    def close(self) -> None:
        """Leaves. A rank that hosts the store stays until all others have left."""
        self._send("left", "", "")
        self._watcher.join(_DEAD_S)
        hosts = self._rank.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        while hosts and self.failure is None and len(self._left) < self._rank.count:
            self._serve()

    def _compare(self) -> None:
        own = ", ".join(f"'{job.name}' {job.handle.priority}" for job in list(self._jobs))
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
        try:
            while self.failure is None and self._rank.number not in self._left:
                self._serve()
            self._send_orders()  # the last ones
        except DistError as error:
            self._fail(f"the store of the ranks is lost: {error}")

    def _serve(self) -> None:
        """Handles the messages that have come, waits a moment, and says that this rank is alive."""
        self._send_orders()
        self._share_pace()
        self._forget_unbegun()
        while self._reader.check([f"message/{self._next}"]):
            message = self._reader.get(f"message/{self._next}")
            self._next += 1
            self._handle(*json.loads(message))
        self._end_jobs()
        time.sleep(_POLL_S)
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_S
            self._check_beats()

    def _send_orders(self) -> None:
        for order in self._runtime.take_orders() if self._rank.is_first else ():
            self._send("order", "", json.dumps(order))

    def _share_pace(self) -> None:
        """The slices of lower jobs lie at the same time on all ranks, or a job that runs on one rank waits for one that
        is held on another. The origin is sent as wall-clock time."""
        if self._rank.is_first:
            share, cycle, age = self._runtime.pace()
            if self._pace != (share, cycle):
                self._pace = (share, cycle)
                self._reader.set("pace", json.dumps([share, cycle, time.time() - age]))
        elif self._reader.check(["pace"]):
            text = self._reader.get("pace")
            if self._pace != text:
                self._pace = text
                share, cycle, origin = json.loads(text)
                self._runtime.set_pace(share, cycle, time.time() - origin)

    def _handle(self, rank: int, what: str, name: str, text: str) -> None:
        if what == "left":
            self._left.add(rank)
        elif what == "ended":
            with self._news:
                self._ended.setdefault(name, (rank, text))
                self._news.notify_all()
        elif what == "order" and rank != self._rank.number:
            self._runtime.obey(*json.loads(text))
        for job in [job for job in list(self._jobs) if job.name == name]:
            # Also if this rank sent it: the last message wins on all ranks.
            if what == "suspend":
                job.suspend(spill=text == "spill")
            elif what == "resume":
                job.resume()

    def _end_jobs(self) -> None:
        """Ends jobs that have ended on another rank, also if they were submitted here after that. A job may wait in C++
        for a rank that has not come to the rendezvous, and will not; it is left behind."""
        now = time.monotonic()
        for job in [job for job in list(self._jobs) if job.name in self._ended and job.handle.state not in ENDED]:
            if job not in self._leaving:
                self._leaving[job] = now + _LEAVE_S
                if self._ended[job.name][0] != self._rank.number and not job.handle.cancel_requested:
                    self._say_why(job)
                    self._cancel(job)
            elif self._leaving[job] < now:
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
            for job in list(self._jobs):
                self._cancel(job)
