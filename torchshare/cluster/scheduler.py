"""The scheduler of a cluster. Reaches Ray through RayNodes alone."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchshare.cluster.host_actor import CannotStart, ShutDown
from torchshare.cluster.job_queue import JobQueue
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Journal
from torchshare.cluster.queued_job import Action, Span, key_of
from torchshare.cluster.remote_host import FailedStart, HostDied, HostUnavailable, RemoteHost, last_line
from torchshare.cluster.settings import ClusterSettings
from torchshare.cluster.storage import Storage, WrongStorage
from torchshare.runtime.crashes import crash_in

if TYPE_CHECKING:
    from torchshare.cluster.host_status import AttemptStatus, HostStatus
    from torchshare.cluster.ray_nodes import RayNodes

log = logging.getLogger("torchshare")

_AGAIN_S = 1.0  # until the next try to start
_POLL_S = 0.1  # how often hosts are asked for their status
_NODES_S = 1.0  # how often the nodes are looked at
_METRICS_S = 5.0
_CHUNK = 2**20  # bytes of a log that are sent at once
_SILENT = "has not answered"
_SILENT_S = 300.0  # a process that does not answer for so long hangs
_START_S = 60.0  # a job that its host does not know by then was not told to it
_STOP_S = 120.0  # a job that was told to stop and has not done so: its host's process is ended
_SAVE_S = 20.0  # for the jobs' last checkpoints
_FIRST_WAIT_S = 1.0  # until a host that ended before its first answer is started again; doubled each time
_LONGEST_WAIT_S = 60.0
_NOT_OF_THE_JOB = (WrongStorage.__name__, os.strerror(errno.ENOSPC))  # reasons why its process cannot start
_STARTS = 3  # of a process with an `env`, before the job that needs it has failed


class Scheduler:
    """Holds the queue, and tells the hosts what to do. A new one goes on from the journal."""

    def __init__(self, settings: ClusterSettings, nodes: RayNodes, *, is_restarted: bool = False) -> None:
        """If the storage cannot be used, `check` raises, and `run` tries again."""
        self._settings = settings
        self._nodes = nodes
        self._is_restarted = is_restarted
        self._storage = Storage(Path(settings.storage))
        self._lock = threading.Lock()
        self._hosts: dict[tuple[str, int], RemoteHost] = {}
        self._gpus: dict[str, int] = {}  # by node
        self._nodes_due = self._metrics_due = 0.0
        self._failed_starts: dict[tuple[str, int], FailedStart] = {}  # by node and index
        self._killed_starts: dict[str, int] = {}  # by job: how often the process of its env was killed at its start
        self._refusal: Exception | None = None
        self._stopped = threading.Event()
        self._open()

    def _open(self) -> None:
        try:
            self._queue, self._mark = self._opened()
            self._refusal = None
        except (ValueError, RuntimeError, OSError) as error:
            self._refusal = error

    def _opened(self) -> tuple[JobQueue, str]:
        """The queue in the storage, and the mark there."""
        path = self._storage.journal
        if self._is_restarted and not path.exists():
            raise FileNotFoundError(f"{path}: there is no journal any more; is the storage there?")
        journal = Journal(path, is_new=not self._storage.is_used)
        try:
            return JobQueue(journal, self._settings.queue), self._storage.put_mark()
        except BaseException:
            journal.close()
            raise

    def run(self) -> None:
        """Serves until the queue is shut down."""
        self._wait_for_storage()
        if self._refusal is None:
            self._serve()

    def _wait_for_storage(self) -> None:
        """A disk may have been full, or an earlier scheduler not have ended yet. A ValueError is final."""
        while isinstance(self._refusal, (RuntimeError, OSError)) and not self._stopped.wait(_AGAIN_S):
            self._open()

    # For clients

    def check(self) -> ClusterSettings:
        """Raises CannotStart if the scheduler could not start, or not yet, and ShutDown after `shut_down`."""
        if self._stopped.is_set():
            raise ShutDown
        if self._refusal is not None:
            raise CannotStart(str(self._refusal))
        return self._settings

    def submit(self, jobs: list[tuple[JobSpec, bool]], functions: dict[str, bytes]) -> list[str]:
        """Accepts all jobs or none; see NewJobs. `functions`: those of pickled jobs, by submission. Once
        this has returned, the jobs are kept."""
        with self._lock:
            self.check()
            checked = self._queue.check(jobs)
            for spec in checked.specs.values():
                if spec.submission in functions:
                    self._storage.put_function(spec.submission, functions[spec.submission])
            self._queue.add(checked)
            return checked.names

    def cancel(self, name: str) -> list[dict[str, Any]]:
        """Cancels a job, or all of an array. Returns their rows."""
        with self._lock:
            self.check()
            return list(map(self._queue.row, self._queue.cancel(name)))

    def rows(self, name: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            self.check()
            return self._queue.rows() if name is None else [self._queue.row(self._queue.find(name))]

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts that have been up, and those that cannot be started, with the reason."""
        with self._lock:
            self.check()
            rows: list[dict[str, Any]] = [
                {"device": gpu, "node": host.node, "index": host.index, "up": host.up, "jobs": list(host.jobs)}
                for gpu, host in self._queue.hosts.items()
            ]
            notes = {host.gpu: host.note for host in self._hosts.values()}
            failed = {device: start.reason for device, start in self._failed_starts.items()}
        known = [
            {**row, "error": failed.pop((row["node"], row["index"]), ""), "note": notes.get(row["device"], "")}
            for row in rows
        ]
        return known + [
            {"device": None, "node": node, "index": index, "up": False, "jobs": [], "error": error, "note": ""}
            for (node, index), error in failed.items()
        ]

    def spans(self) -> list[Span]:
        """The times that each job has spent on each device."""
        with self._lock:
            self.check()
            return self._queue.spans()

    def outcome(self, name: str) -> bytes | None:
        with self._lock:
            self.check()
            job = self._queue.find(name)
            outcome = job.spec.outcome_of(job.attempt)
        return self._storage.outcome_data(outcome)

    def log(self, name: str, offset: int) -> bytes:
        with self._lock:
            self.check()
            submission = self._queue.find(name).spec.submission
        try:
            with self._storage.log(submission, name).open("rb") as file:
                file.seek(offset)
                return file.read(_CHUNK)
        except FileNotFoundError:
            return b""

    def shut_down(self) -> None:
        """Ends the hosts, after their jobs have written checkpoints, and this actor: its client may not live to do so.
        The queue stays in the journal."""
        if not self._stopped.is_set():  # a client that got no answer calls again
            self.check()
        try:
            with self._lock:  # until the end: calls that wait for it are refused
                self._stopped.set()
                self._end_hosts()
        finally:
            self._nodes.end_scheduler()

    def _end_hosts(self) -> None:
        hosts, self._hosts = list(self._hosts.values()), {}
        up = {host.gpu: host.actor.save_all.remote() for host in hosts if host.gpu is not None}
        self._nodes.wait(list(up.values()), _SAVE_S)
        for host in hosts:
            self._nodes.kill(host.actor)
        for gpu in up:
            self._lose(gpu, "the queue was shut down", crashed=False)

    # The loop

    def _serve(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                self._find_nodes()
                self._poll()
                with self._lock:
                    self._act()
                    if time.monotonic() >= self._metrics_due:
                        self._metrics_due = time.monotonic() + _METRICS_S
                        self._nodes.publish(self._queue)
            except Exception:
                if self._stopped.is_set():
                    return
                # The state may be ahead of the journal. Ray starts the actor again.
                log.exception("torchshare's scheduler ends")
                os._exit(1)

    def _find_nodes(self) -> None:
        if time.monotonic() < self._nodes_due:
            return
        self._nodes_due = time.monotonic() + _NODES_S
        self._gpus = self._nodes.living()
        with self._lock:
            if self._stopped.is_set():
                return  # nobody would end a host that is started now
            failed_starts = self._failed_starts.items()
            self._failed_starts = {device: each for device, each in failed_starts if device[0] in self._gpus}
            for node, gpus in self._gpus.items():
                for index in range(gpus or self._settings.hosts_per_node):
                    failed = self._failed_starts.get((node, index))
                    is_due = failed is None or failed.due <= time.monotonic()
                    if is_due and (node, index) not in self._hosts:
                        self._hosts[node, index] = RemoteHost(node, index, self._start(node, index))
            for gpu, known in self._queue.hosts.items():
                if known.up and (known.node, known.index) not in self._hosts:
                    self._lose(gpu, "its node is gone", crashed=False)

    def _start(self, node: str, index: int, env: str = "{}") -> Any:
        return self._nodes.start(self._settings, node, index, self._mark, has_gpu=self._gpus[node] > 0, env=env)

    def _poll(self) -> None:
        """Asks all hosts for their status, and takes those that have come."""
        for host in self._hosts.values():
            if host.status is None and not host.error:
                forget, host.forget = host.forget, []
                host.status, host.asked = host.actor.status.remote(forget), time.monotonic()
        waiting = {host.status: host for host in self._hosts.values() if host.status is not None}
        for reference in self._nodes.wait(list(waiting), 0.0):
            host = waiting[reference]
            host.status = None
            try:
                status = self._nodes.answer(reference)
            except HostUnavailable:
                continue
            except HostDied as error:
                host.error = str(error)
            else:
                if host.blamed:  # all is saved
                    host.error = _not_stopped(host)
                    continue
                with self._lock:
                    self._failed_starts.pop((host.node, host.index), None)
                    self._take(host, status)
        for host in list(self._hosts.values()):
            waited = time.monotonic() - host.asked if host.status is not None else 0.0
            if host.blamed and waited > _SAVE_S:
                host.error = _not_stopped(host)
            elif host.token and waited > _SILENT_S:
                host.error = f"it {_SILENT} for {_SILENT_S:g} s"
            if host.error:
                self._bury(host)

    def _take(self, host: RemoteHost, status: HostStatus) -> None:
        queue = self._queue
        if self._stopped.is_set():
            return  # closing cancels its jobs, which must not reach the queue
        is_new = host.token != status.token
        if is_new:
            replaced = queue.replaced(host.node, host.index, status.token)
            if replaced is not None:
                self._lose(replaced, "its process was replaced", crashed=True)
            host.gpu, host.token = queue.host_up(host.node, host.index, status.token, status.env), status.token
            host.replaced_for = ""
        host.error, host.niceness = status.refusal, status.niceness
        if host.gpu is not None:
            queue.heard(host.gpu)
        known = {(job.name, job.attempt) for job in status.jobs}
        for job in queue.placed(host.gpu) if host.gpu is not None else ():
            is_due = is_new or time.time() - job.began > _START_S
            if is_due and (job.spec.name, job.attempt) not in known:  # its start was lost, or an earlier scheduler
                queue.left(job.spec.name, job.attempt, "suspended", gpu=host.gpu, heard=job.began)
        for each in status.jobs:
            if each.state != "running":
                queue.left(each.name, each.attempt, each.state, each.error, each.steps, host.gpu)
                host.forget.append((each.name, each.attempt))
            elif not queue.progress(each, status.time, host.gpu):
                self._stop(host, each, host.strays.setdefault((each.name, each.attempt), time.time()))
            elif queue.jobs[each.name].stopping:
                job = queue.jobs[each.name]
                self._stop(host, each, job.stopped, suspend=not job.cancelled)

    def _stop(self, host: RemoteHost, job: AttemptStatus, since: float, *, suspend: bool = False) -> None:
        """Stops a job that should not run. Called again until the host has received it, since a call may be lost."""
        if not job.stops:
            host.actor.stop.remote(job.name, job.attempt, suspend)
        elif time.time() - since > _STOP_S and not host.blamed:  # it may catch Cancelled, or be blocked
            host.blamed = job.name
            host.status, host.asked = host.actor.save_all.remote(), time.monotonic()

    def _bury(self, host: RemoteHost) -> None:
        """Removes a host whose process is dead; its jobs wait again."""
        del self._hosts[host.node, host.index]
        self._nodes.kill(host.actor)
        killed = "worker process has died" in host.error
        with self._lock:
            is_nodes_fault = any(each in host.error for each in _NOT_OF_THE_JOB)
            if host.replaced_for and not is_nodes_fault and host.node in self._nodes.living():
                starts = self._killed_starts[host.replaced_for] = self._killed_starts.get(host.replaced_for, 0) + 1
                if not killed or starts >= _STARTS:
                    self._queue.refuse(host.replaced_for, f"its env cannot be set up: {last_line(host.error)}")
            elif not host.token:
                self._put_off(host)
            if host.gpu is not None:
                crashed = killed or bool(host.blamed) or _SILENT in host.error
                self._lose(host.gpu, last_line(host.error), crashed=crashed, blamed=host.blamed or None)

    def _put_off(self, host: RemoteHost) -> None:
        device, reason = (host.node, host.index), last_line(host.error)
        known = self._failed_starts.get(device)
        wait = _FIRST_WAIT_S if known is None else min(2 * known.wait, _LONGEST_WAIT_S)
        self._failed_starts[device] = FailedStart(reason, wait, time.monotonic() + wait)
        log.warning("host %s:%d cannot start: %s; the next try is in %g s", host.node, host.index, reason, wait)

    def _lose(self, gpu: int, reason: str, *, crashed: bool, blamed: str | None = None) -> None:
        host = self._queue.hosts[gpu]
        for job in self._queue.placed(gpu):
            outcome = self._storage.outcome(job.spec.outcome_of(job.attempt, job.devices.index(gpu)))
            if outcome is not None:  # it had ended before its host could report it
                self._queue.left(job.spec.name, job.attempt, outcome.state, outcome.error, gpu=gpu, heard=host.heard)
        crash = crash_in(self._storage.take_crash(host.token))
        if crashed and blamed is None and crash is not None:
            blamed, reason = crash.job, crash.how
        self._queue.host_lost(gpu, reason, crashed=crashed, blamed=blamed)

    def _act(self) -> None:
        if self._stopped.is_set():
            return
        if self._queue.compact():
            jobs = self._queue.jobs.values()
            needed = {job.spec.submission for job in jobs if not job.outcome}
            tokens = {host.token for host in self._queue.hosts.values()}
            self._storage.prune({job.spec.submission for job in jobs}, needed, tokens)
        hosts = {host.gpu: host for host in self._hosts.values() if host.gpu is not None and host.is_reachable}
        for action in self._queue.actions(hosts.keys()):
            self._do(action, hosts[action.gpu])

    def _do(self, action: Action, host: RemoteHost) -> None:
        if action.what == "start":
            host.actor.start.remote(action.job, action.attempt, action.rank, action.split, action.predecessors)
        elif action.what == "replace":
            self._nodes.kill(host.actor)
            host.token, host.status, host.replaced_for = "", None, action.job.name
            try:
                host.actor = self._start(host.node, host.index, key_of(action.job.env))
            except Exception as error:  # Ray checks some environments at once
                host.error = str(error)
        else:
            host.actor.stop.remote(action.job.name, action.attempt, action.what == "suspend")


def _not_stopped(host: RemoteHost) -> str:
    return f"job '{host.blamed}' had not stopped {_STOP_S:g} s after it was told to"
