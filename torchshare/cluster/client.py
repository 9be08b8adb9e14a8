"""Submits jobs to a cluster, and asks for them. Public as torchshare.cluster."""

from __future__ import annotations

import codecs
import json
import os
import pickle
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchshare import _core
from torchshare.cluster.connection import call, up
from torchshare.cluster.job_spec import JobSpec
from torchshare.context.results import ENDED
from torchshare.runtime.options import JobOptions, check
from torchshare.scripts import targets

if TYPE_CHECKING:
    from torchshare.cluster.queued_job import Span
    from torchshare.cluster.storage import Outcome

_POLL_S = 0.2
OF_QUEUE = ("name", "priority", "start", "memory_budget")  # options of Runtime.submit that are given otherwise


class JobError(RuntimeError):
    """A job of the cluster failed or was cancelled."""


class Handle:
    """A job on a cluster. Made by `submit` or `job`; any number of clients may have one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def status(self) -> dict[str, Any]:
        """The job's row in `torchshare cluster list`."""
        rows: list[dict[str, Any]] = call("rows", self.name)
        return rows[0]

    @property
    def state(self) -> str:
        """ "pending", "running", "suspending", "suspended", "cancelling", "finished", "failed" or "cancelled"."""
        return str(self.status()["state"])

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the job and returns what its function returned; None for a script.

        Raises:
            JobError: if the job failed or was cancelled; the message says why.
            TimeoutError: after `timeout` seconds; the job continues.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while (row := self.status())["state"] not in ENDED:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job '{self.name}' has not ended after {timeout} s: it is {row['state']}")
            time.sleep(_POLL_S)
        if row["state"] != "finished":
            because = f": {row['error']}" if row["error"] else ""
            how = "was cancelled" if row["state"] == "cancelled" else "failed"
            raise JobError(f"job '{self.name}' {how}{because}")
        data = call("outcome", self.name)
        if data is None:
            raise JobError(f"job '{self.name}' has finished, but its outcome is no longer in the storage")
        outcome: Outcome = pickle.loads(data)
        return outcome.value

    def cancel(self) -> None:
        """Cancels the job, whatever its state; has no effect if it has ended."""
        call("cancel", self.name)

    def logs(self, follow: bool = False) -> Iterator[str]:
        """What the job has printed so far, in pieces; with `follow`, until it has ended."""
        offset = 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end inside a character
        while True:
            ended = not follow or self.state in ENDED
            while data := call("log", self.name, offset):
                offset += len(data)
                yield decoder.decode(data)
            if ended:
                yield decoder.decode(b"", final=True)
                return
            time.sleep(_POLL_S)

    def __repr__(self) -> str:
        return f"<cluster job '{self.name}'>"


def submit(
    target: str | Callable[..., Any],
    *,
    gpus: int = 1,
    name: str | None = None,
    priority: str = "secondary",
    memory: int | None = None,
    duration: float | None = None,
    model: str | None = None,
    env: dict[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    address: str | None = None,
    **options: Any,
) -> Handle:
    """Adds a job to the queue of a cluster. Once this returns, the job is kept: it ends, or is reported as failed.

    Args:
        target: a script with its arguments ("train.py --epochs 3", "-m pkg.train"), a function of a file or module
            ("file.py:function"), or a function that takes a Job, which is pickled.
        gpus: number of devices. With several, the job runs on each as a rank of its own, with the environment that
            torchrun gives its processes; what its first rank returns is its result.
        name: unique in the cluster. Default: the script's or function's, with a number if it is taken.
        priority: as for Runtime.submit. Higher jobs leave the queue first, and are protected beside lower ones.
        memory: bytes that the job needs on its device; its budget there.
        duration: seconds that it would take alone, as far as known. Default: that of its `profile`, else as long as the
            last one of its model.
        model: jobs of one model have the same interference ratios. Default: the script's or function's name. The names
            in profiles are models.
        env: Ray's runtime_env. Only jobs with equal ones share a device.
        folder: the working folder of scripts, on every node. Default: this process's.
        address: of the Ray cluster; see `connect`. Default: that of RAY_ADDRESS, or of this machine.
        **options: further options of Runtime.submit: sub_batch, threads, seed, profile, ...

    Raises:
        ValueError: for invalid arguments, a name that is taken, or more devices than there are.
    """
    send = prepared(
        target,
        gpus=gpus,
        name=name,
        priority=priority,
        memory=memory,
        duration=duration,
        model=model,
        env=env,
        folder=folder,
        **options,
    )
    up(address)
    return send()


def prepared(
    target: str | Callable[..., Any],
    *,
    name: str | None = None,
    model: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    gpus: int = 1,
    priority: str = "secondary",
    memory: int | None = None,
    duration: float | None = None,
    env: dict[str, Any] | None = None,
    **options: Any,
) -> Callable[[], Handle]:
    """Checks the arguments of `submit`. What it returns submits the job to the cluster that is connected then."""
    wrong = [option for option in options if option in OF_QUEUE]
    if wrong:
        raise TypeError(f"submit() got an unknown option '{wrong[0]}'")
    is_text = isinstance(target, str)
    if not is_text and not callable(target):
        raise TypeError(f"target must be a script, or a function that takes a Job; got {target!r}")
    if isinstance(target, str):
        targets.check_form(target, None if folder is None else str(folder))
    base = targets.default_name(target) if isinstance(target, str) else getattr(target, "__name__", "job")
    profiled = _profiled(options.get("profile"))
    spec = JobSpec(
        name=base if name is None else name,
        submission=secrets.token_hex(16),
        target=target if isinstance(target, str) else base,
        folder=str(Path(folder or os.getcwd()).absolute()),
        model=base if model is None else model,
        pickled=not is_text,
        gpus=gpus,
        priority=priority,
        memory=memory,
        duration=profiled.duration if duration is None else duration,
        ratios=profiled.ratios,
        env={} if env is None else env,
        options=options,
    )
    _check(spec)

    def send() -> Handle:
        function = None if isinstance(target, str) else _pickled(target)
        return Handle(call("submit", spec, function, name is None))

    return send


@dataclass(frozen=True)
class _Profiled:
    duration: float | None = None
    ratios: dict[str, list[float]] = field(default_factory=dict)


def _profiled(path: str | None) -> _Profiled:
    """What the queue needs of a job's profile. Raises ValueError if it cannot be read."""
    if path is None:
        return _Profiled()
    from torchshare.profiles.profile import Profile

    profile = Profile.load(path)
    ratios: dict[str, list[float]] = {}
    for partner in profile.partners:  # maybe in both roles: the larger ratios
        whole = next(pair for pair in partner.beside if pair.sub_batches == pair.partner_sub_batches == 1)
        known = ratios.get(partner.job, [1.0, 1.0])
        ratios[partner.job] = [max(known[0], whole.ratio), max(known[1], whole.partner_ratio)]
    return _Profiled(profile.steps * profile.step_s(None) if profile.steps else None, ratios)


def job(name: str) -> Handle:
    """A job that was submitted earlier. Raises ValueError if there is no such job."""
    handle = Handle(name)
    handle.status()
    return handle


def jobs() -> list[dict[str, Any]]:
    """The state of every job of the cluster, in order of submission."""
    rows: list[dict[str, Any]] = call("rows")
    return rows


def hosts() -> list[dict[str, Any]]:
    """The devices of the cluster, and the jobs on each."""
    found: list[dict[str, Any]] = call("hosts")
    return found


def spans() -> list[Span]:
    """The times that each job has spent on each device: name, device, begin and end, in seconds since 1970."""
    found: list[Span] = call("spans")
    return found


def _check(spec: JobSpec) -> None:
    options = {"name": spec.name, "priority": spec.priority, "memory_budget": spec.memory, **spec.options}
    check(JobOptions, options, "submit", spec.name)
    _core.priority_level(spec.priority)  # raises ValueError
    if not isinstance(spec.env, dict):
        raise ValueError(f"job '{spec.name}': env must be a dict, got {spec.env!r}")
    try:
        json.dumps(vars(spec), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"job '{spec.name}': the options must be values of JSON: {error}") from None
    duration = spec.duration
    if duration is not None and not (isinstance(duration, (int, float)) and 0 < duration < float("inf")):
        raise ValueError(f"job '{spec.name}': duration must be a positive number, got {duration!r}")
    if not isinstance(spec.gpus, int) or spec.gpus < 1:
        raise ValueError(f"job '{spec.name}': gpus must be a positive integer, got {spec.gpus!r}")
    if not spec.name:
        raise ValueError("name must not be empty")


def _pickled(function: Callable[..., Any]) -> bytes:
    """Pickles a function with the code of its module, which the nodes may not have. Raises ValueError."""
    from ray import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise ValueError(f"target cannot be pickled: {error}") from None
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return data
