"""A host: the process that has a device, and runs up to two jobs on it, together."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

from torchshare.cluster import gang, job_output
from torchshare.cluster.array import INDEX
from torchshare.cluster.attempt import Attempt, end, save
from torchshare.cluster.host_status import HostStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.queued_job import EndedJob
from torchshare.cluster.storage import Outcome, Storage
from torchshare.context.errors import described, is_disk_full, users_traceback
from torchshare.context.rank import Rank
from torchshare.context.results import ENDED, Result, Results
from torchshare.durable.files import make_folder
from torchshare.runtime import crash_log
from torchshare.runtime.job import Job
from torchshare.runtime.options import JobOptions
from torchshare.runtime.runtime import Runtime
from torchshare.scripts import targets
from torchshare.scripts.output import Output
from torchshare.scripts.script import Script

log = logging.getLogger("torchshare")

_LOAD_S = 300.0  # how long a job's module, or its pickled function, may take to load
_SAVE_S = 60.0  # how long a job has for its checkpoint before it is suspended
_LAST_S = 10.0  # the same, before the process ends
_NEWS_S = 1.0  # how long a rank whose collective failed waits to hear that another rank failed first


class Host:
    """Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        device: str = "auto",
        every: str | int = "5min",
        dumps: Callable[[Any], bytes] = pickle.dumps,
        env: str = "{}",
        address: str = "127.0.0.1",
    ) -> None:
        """`every` is that of Runtime; `dumps` pickles what functions return; `env` is that of the process; `address` is
        the node's. Raises WrongStorage."""
        self.token = secrets.token_hex(8)
        self._storage = storage
        self._device = device
        self._every = every
        self._dumps = dumps
        self._env = env
        self._address = address
        self._runtime: Runtime | None = None
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by module: it is loaded once
        storage.check()  # else nobody would see what the jobs write

    def start(
        self,
        spec: JobSpec,
        number: int,
        rank: int = 0,
        split: int = 1,
        predecessors: tuple[EndedJob, ...] = (),
    ) -> None:
        """Starts a job, or a rank of it, or goes on from its checkpoint, in a thread: its module may never finish
        loading. Its batches run in `split` sub-batches; it gets the results of its `predecessors`. If it cannot start,
        a later status says why."""
        with self._lock:
            known = self._attempts.get(spec.name)
            if known is not None and known.number >= number:
                return
            attempt = self._attempts[spec.name] = Attempt(
                number, spec, rank=rank, split=split, predecessors=predecessors
            )
        before = None if known is None else known.job
        threading.Thread(target=self._begin, args=(attempt, before), daemon=True).start()

    def _begin(self, attempt: Attempt, before: Job | None) -> None:
        try:
            if before is not None:  # the queue took it for lost
                end(before, _SAVE_S)
            attempt.patiently("the storage cannot be used", functools.partial(self._look, attempt))
            if attempt.outcome is None and not attempt.stopped:
                function = self._loaded(attempt.spec)
                environ = self._meet(attempt) if attempt.spec.gpus > 1 else None
                if attempt.spec.array:
                    environ = {**(environ or os.environ), INDEX: str(attempt.spec.index)}
                with self._lock:
                    self._start(attempt, function, environ)
        except BaseException as error:  # a module may raise any exception
            if not attempt.stopped:
                is_ours = isinstance(error, ValueError)  # a module's own is the cause of a CannotLoad
                cause = error.__cause__ if is_ours else error
                self._fail(attempt, error, "" if cause is None else users_traceback(cause), is_ours=is_ours)

    def _look(self, attempt: Attempt) -> None:
        """Finds out whether the job has ended before, and how those did that it has waited for. Raises OSError."""
        self._storage.check()
        make_folder(self._storage.logs(attempt.spec.submission))
        attempt.outcome = self._storage.outcome(attempt.outcome_name)
        for each in attempt.predecessors:
            attempt.awaited[each.name] = self._storage.outcome(each.outcome)

    def _loaded(self, spec: JobSpec) -> Callable[..., Any]:
        """Loads the job's function. A thread that takes too long is left behind. Raises what the module raises."""
        loaded: futures.Future[Callable[..., Any]] = futures.Future()

        def load() -> None:
            crash_log.enter_job(spec.name)
            try:
                with self._loading[spec.target.partition(":")[0]]:
                    loaded.set_result(self._function(spec))
            except BaseException as error:
                loaded.set_exception(error)
            finally:
                crash_log.leave_job(spec.name)

        threading.Thread(target=load, daemon=True).start()
        futures.wait([loaded], _LOAD_S)
        if not loaded.done():
            raise ValueError(f"'{spec.target}' was not loaded within {_LOAD_S:g} s")
        error = loaded.exception()
        if error is not None:
            raise error  # `result` would add frames of its own to the user's traceback
        return loaded.result()

    def _meet(self, attempt: Attempt) -> dict[str, str]:
        spec = attempt.spec
        path = self._storage.gang(spec.submission, attempt.number)
        environ, attempt.store = gang.meet(
            path, self._address, attempt.number, attempt.rank, spec.gpus, _LOAD_S, lambda: attempt.stopped
        )
        return environ

    def _start(self, attempt: Attempt, function: Callable[..., Any], environ: dict[str, str] | None) -> None:
        if attempt.stopped:
            return
        spec = attempt.spec
        options = {"memory_budget": spec.memory_in(attempt.split), "priority": spec.priority, **spec.options}
        if isinstance(function, Script):
            options.setdefault("seed", function.default_seed)
        runtime = self._open_runtime()
        log_of_rank = Rank(attempt.rank, spec.gpus).file(self._storage.log(spec.submission, spec.name))
        job_output.open_for(spec.name, log_of_rank)
        given = JobOptions(name=spec.name, **options)  # type: ignore[typeddict-item]
        attempt.job = runtime._submit(
            self._body(attempt, function), given, environ, spec.submission, has_own_ranks=spec.gpus > 1
        )
        runtime.start()

    def _open_runtime(self) -> Runtime:
        """The runtime of the jobs that run, or a new one: jobs that have ended take memory."""
        jobs = () if self._runtime is None else self._runtime.jobs
        if self._runtime is not None and all(job.state in ENDED for job in jobs):
            self._runtime.close()
            self._runtime = None
        if self._runtime is None:
            self._runtime = Runtime(
                self._device, checkpoint=self._storage.jobs, every=self._every, resume=True, ranks=False, keep=0
            )
        return self._runtime

    def _function(self, spec: JobSpec) -> Callable[..., Any]:
        if spec.pickled:
            pickled = self._storage.function(spec.submission).read_bytes()
            try:
                return pickle.loads(pickled)  # type: ignore[no-any-return]
            except Exception as error:
                raise targets.CannotLoad(spec.target, error) from error
        return targets.load(spec.target, Output(str(self._storage.logs(spec.submission)), append=True), spec.folder)

    def _body(self, attempt: Attempt, function: Callable[..., Any]) -> Callable[[Job], None]:
        is_script = isinstance(function, Script)

        def body(job: Job) -> None:
            job._context.split = attempt.split
            job._after = Results([_result_of(each, attempt.awaited[each.name]) for each in attempt.predecessors])
            try:
                value = function(job)
            except SystemExit as error:
                if error.code:
                    if attempt.may_fail:
                        self._fail(attempt, error)
                    raise
                value = None
            except Exception as error:
                if attempt.spec.gpus > 1 and not attempt.stopped and isinstance(error, RuntimeError):
                    time.sleep(_NEWS_S)
                if attempt.may_fail and is_disk_full(error) and job._context.loop.has_checkpoint:
                    self._put_back(attempt, error)
                elif attempt.may_fail:
                    self._fail(attempt, error, users_traceback(error))
                raise
            if not (attempt.suspends and job._context.is_unwound):  # else it has caught its cancellation
                self._finish(attempt, value)

        functools.update_wrapper(body, function, assigned=("__name__", "__doc__"), updated=())
        if is_script:
            body.cancelled_type = function.cancelled_type  # type: ignore[attr-defined]
        return body

    def _finish(self, attempt: Attempt, value: Any) -> None:
        try:
            outcome = Outcome("finished", self._dumps(value))
        except Exception as error:
            self._fail(attempt, RuntimeError(f"its return value cannot be kept: {described(error)}"))
            raise

        def put() -> None:
            attempt.outcome = self._storage.put_outcome(attempt.outcome_name, outcome)

        attempt.patiently("it has finished, and its outcome cannot be written", put)

    def _put_back(self, attempt: Attempt, error: Exception) -> None:
        attempt.put_back(error)
        with self._lock:
            if not attempt.stopped:
                attempt.stopped = attempt.suspends = True

    def _fail(self, attempt: Attempt, error: BaseException, text: str = "", *, is_ours: bool = False) -> None:
        """Writes the failure to the job's log and as its outcome; with `is_ours`, the message without its type."""
        spec = attempt.spec
        try:
            self._storage.check()
        except OSError as gone:  # it may be the cause
            attempt.refusal = str(gone)
            attempt.stopped = attempt.suspends = True
            return
        outcome = Outcome("failed", None, str(error) if is_ours else described(error))
        try:
            with self._storage.log(spec.submission, spec.name).open("a") as file:
                file.write(f"{text or outcome.error}\n")
            attempt.outcome = self._storage.put_outcome(attempt.outcome_name, outcome)
        except OSError as unwritten:
            log.error("job '%s': its failure cannot be written to %s: %s", spec.name, self._storage.path, unwritten)
            attempt.outcome = outcome

    def stop(self, name: str, number: int, *, suspend: bool) -> None:
        """Cancels a job; with `suspend`, after it has written a checkpoint. Has no effect the second time."""
        with self._lock:
            attempt = self._attempts.get(name)
            if attempt is None or attempt.number != number or attempt.stopped:
                return
            attempt.stopped, attempt.suspends = True, suspend
            job = attempt.job
        if job is None:
            return  # it is not started any more
        if suspend and attempt.spec.gpus == 1:  # ranks would not save at the same step
            save(job, _SAVE_S)
        job.cancel()

    def status(self, forget: Iterable[tuple[str, int]] = ()) -> HostStatus:
        """The jobs that run, and those that have ended, until the caller has told to forget them."""
        with self._lock:
            for name, number in forget:
                known = self._attempts.get(name)
                if known is not None and known.number == number and known.status().state != "running":
                    del self._attempts[name]
                    job_output.close_for(name)
            jobs = [each.status() for each in self._attempts.values()]
            niceness = os.getpriority(os.PRIO_PROCESS, os.getpid())
            refusal = next((each.refusal for each in self._attempts.values() if each.refusal), "")
            return HostStatus(self.token, time.monotonic(), jobs, self._env, refusal, niceness)

    def save_all(self) -> None:
        """Writes the checkpoints of all jobs and cancels them; they go on later. Called before the process ends."""
        with self._lock:
            for attempt in self._attempts.values():
                if not attempt.stopped:
                    attempt.stopped = attempt.suspends = True
            threads = [
                threading.Thread(target=attempt.job.save, args=(_LAST_S,))
                for attempt in self._attempts.values()
                if attempt.job is not None and attempt.spec.gpus == 1
            ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._runtime is not None:
            self._runtime.close()


def _result_of(job: EndedJob, outcome: Outcome | None) -> Result:
    """What is known of it here. If its value cannot be had, `exception` says why."""
    value, exception = None, RuntimeError(job.error) if job.error else None
    if outcome is not None:
        try:
            value = outcome.value
        except Exception as error:  # a pickled value may raise any
            exception = RuntimeError(f"the value of job '{job.name}' cannot be loaded: {described(error)}")
    elif job.state == "finished":
        exception = RuntimeError(f"the value of job '{job.name}' is no longer in the storage")
    return Result(
        name=job.name,
        priority=job.priority,
        state=job.state,
        value=value,
        exception=exception,
        steps=job.steps,
        earlier_steps=0,
        sub_batches=0,
        ops=0,
        ran_s=job.ran_s,
        waited_s=0.0,
        input_s=0.0,
        cpu_s=0.0,
        core_wait_s=0.0,
        memory_peak=0,
        memory_cached=0,
        metrics={},
    )
