"""A host: the process that has a device, and runs up to two jobs on it, together."""

from __future__ import annotations

import functools
import logging
import pickle
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from torchshare.cluster import gang, job_output
from torchshare.cluster.host_report import HostReport, JobReport
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.storage import Outcome, Storage
from torchshare.context.errors import described, users_traceback
from torchshare.context.rank import Rank
from torchshare.context.results import ENDED
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
_POLL_S = 0.02


@dataclass(eq=False)
class _Attempt:
    number: int
    spec: JobSpec
    job: Job | None = None
    outcome: Outcome | None = None
    stopped: bool = False
    suspends: bool = False
    """If stopped: to go on later."""
    rank: int = 0
    store: Any = None
    """Of a gang's rendezvous, on its first rank."""

    @property
    def outcome_name(self) -> str:
        return self.spec.outcome_of(self.number, self.rank)

    @property
    def may_fail(self) -> bool:
        """Whether its failure is the job's: not if it follows from the stop, or from that of another rank."""
        return not self.suspends and not (self.stopped and self.spec.gpus > 1)


class Host:
    """Called from several threads."""

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
        the node's."""
        self.token = secrets.token_hex(8)
        self._storage = storage
        self._device = device
        self._every = every
        self._dumps = dumps
        self._env = env
        self._address = address
        self._runtime: Runtime | None = None
        self._attempts: dict[str, _Attempt] = {}
        self._lock = threading.Lock()
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by module: it is loaded once
        storage.jobs.mkdir(parents=True, exist_ok=True)  # a host without its storage must not fail jobs

    def start(self, spec: JobSpec, number: int, rank: int = 0) -> None:
        """Starts a job, or a rank of it, or goes on from its checkpoint, in a thread: its module may never finish
        loading. What prevents it is in a later report."""
        with self._lock:
            known = self._attempts.get(spec.name)
            if known is not None and known.number >= number:
                return
            attempt = self._attempts[spec.name] = _Attempt(number, spec, rank=rank)
        before = None if known is None else known.job
        threading.Thread(target=self._begin, args=(attempt, before), daemon=True).start()

    def _begin(self, attempt: _Attempt, before: Job | None) -> None:
        try:
            if before is not None:  # the queue believed it lost
                _end(before)
            self._storage.logs(attempt.spec.submission).mkdir(parents=True, exist_ok=True)
            attempt.outcome = self._storage.outcome(attempt.outcome_name)
            if attempt.outcome is None:
                function = self._loaded(attempt.spec)
                environ = self._meet(attempt) if attempt.spec.gpus > 1 else None
                with self._lock:
                    self._start(attempt, function, environ)
        except BaseException as error:  # a module may raise any
            if not attempt.stopped:
                self._fail(attempt, error, users_traceback(error))

    def _loaded(self, spec: JobSpec) -> Callable[..., Any]:
        """Its function. The thread that loads it is left behind if that takes too long."""
        loaded: futures.Future[Callable[..., Any]] = futures.Future()

        def load() -> None:
            try:
                with self._loading[spec.target.partition(":")[0]]:
                    loaded.set_result(self._function(spec))
            except BaseException as error:
                loaded.set_exception(error)

        threading.Thread(target=load, daemon=True).start()
        futures.wait([loaded], _LOAD_S)
        if not loaded.done():
            raise ValueError(f"'{spec.target}' was not loaded within {_LOAD_S:g} s")
        error = loaded.exception()
        if error is not None:
            raise error  # `result` would add frames of its own to the user's traceback
        return loaded.result()

    def _meet(self, attempt: _Attempt) -> dict[str, str]:
        spec = attempt.spec
        place = self._storage.gang(spec.submission, attempt.number)
        environ, attempt.store = gang.meet(
            place, self._address, attempt.number, attempt.rank, spec.gpus, _LOAD_S, lambda: attempt.stopped
        )
        return environ

    def _start(self, attempt: _Attempt, function: Callable[..., Any], environ: dict[str, str] | None) -> None:
        if attempt.stopped:
            return
        spec = attempt.spec
        options = {"memory_budget": spec.memory, "priority": spec.priority, **spec.options}
        if isinstance(function, Script):
            options.setdefault("seed", function.default_seed)
        runtime = self._open_runtime()
        log_of_rank = Rank(attempt.rank, spec.gpus).file(self._storage.log(spec.submission, spec.name))
        job_output.open_for(spec.name, log_of_rank)
        given = JobOptions(name=spec.name, **options)  # type: ignore[typeddict-item]
        attempt.job = runtime._submit(self._body(attempt, function), given, environ, spec.submission)
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
            return pickle.loads(self._storage.function(spec.submission).read_bytes())  # type: ignore[no-any-return]
        return targets.load(spec.target, Output(str(self._storage.logs(spec.submission)), append=True), spec.folder)

    def _body(self, attempt: _Attempt, function: Callable[..., Any]) -> Callable[[Job], None]:
        is_script = isinstance(function, Script)

        def body(job: Job) -> None:
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
                if attempt.may_fail:
                    self._fail(attempt, error, users_traceback(error))
                raise
            if not (attempt.suspends and job._context.is_unwound):  # else it has caught its cancellation
                self._finish(attempt, value)

        functools.update_wrapper(body, function, assigned=("__name__", "__doc__"), updated=())
        if is_script:
            body.cancelled_type = function.cancelled_type  # type: ignore[attr-defined]
        return body

    def _finish(self, attempt: _Attempt, value: Any) -> None:
        try:
            outcome = Outcome("finished", self._dumps(value))
            attempt.outcome = self._storage.put_outcome(attempt.outcome_name, outcome)
        except Exception as error:
            self._fail(attempt, RuntimeError(f"its return value cannot be kept: {described(error)}"))
            raise

    def _fail(self, attempt: _Attempt, error: BaseException, text: str = "") -> None:
        spec = attempt.spec
        outcome = Outcome("failed", None, str(error) if isinstance(error, ValueError) else described(error))
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
            job.save(_SAVE_S)
        job.cancel()

    def report(self, forget: Iterable[tuple[str, int]] = ()) -> HostReport:
        """The jobs that run, and those that have ended, until the caller has told to forget them."""
        with self._lock:
            for name, number in forget:
                known = self._attempts.get(name)
                if known is not None and known.number == number and _report(known).state != "running":
                    del self._attempts[name]
                    job_output.close_for(name)
            jobs = [_report(each) for each in self._attempts.values()]
            return HostReport(self.token, time.monotonic(), jobs, self._env)

    def save_all(self) -> None:
        """Called before the process ends. Jobs write their checkpoints, and are cancelled, to go on later."""
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


def _end(job: Job) -> None:
    """Raises ValueError if the job does not stop."""
    job.cancel()
    deadline = time.monotonic() + _SAVE_S
    while job.state not in ENDED and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if job.state not in ENDED:
        raise ValueError(f"its attempt before had not stopped {_SAVE_S:g} s after it was told to")


def _report(attempt: _Attempt) -> JobReport:
    job, outcome = attempt.job, attempt.outcome
    steps = 0 if job is None else job.result.steps
    ended = attempt.stopped or outcome is not None if job is None else job.state in ENDED
    if not ended:
        can_save = job is not None and job._context.loop.can_save
        return JobReport(attempt.spec.name, attempt.number, "running", steps, can_save, stops=attempt.stopped)
    if outcome is not None:
        return JobReport(attempt.spec.name, attempt.number, outcome.state, steps, error=outcome.error)
    state = "suspended" if attempt.suspends else "cancelled" if job is None else job.state
    exception = None if job is None or attempt.suspends else job.result.exception
    error = "" if exception is None else described(exception)
    return JobReport(attempt.spec.name, attempt.number, state, steps, error=error)
