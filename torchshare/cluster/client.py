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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from torchshare import _core
from torchshare.cluster.array import EXPECTED, parse_array
from torchshare.cluster.connection import call, up
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.options import ArrayOptions, SubmitOptions
from torchshare.context.durations import parse_duration
from torchshare.context.results import ENDED
from torchshare.runtime.declared import check, documented
from torchshare.scripts import targets

if TYPE_CHECKING:
    from torchshare.cluster.queued_job import Span
    from torchshare.cluster.storage import Outcome
    from torchshare.profiles.profile import Profile

_POLL_S = 0.2


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


@documented(SubmitOptions)
def submit(target: str | Callable[..., Any], *, address: str | None = None, **options: Unpack[SubmitOptions]) -> Handle:
    """Adds a job to the queue of a cluster. Once this returns, the job is kept: it ends, or is reported as failed.

    Args:
        target: a script with its arguments ("train.py --epochs 3", "-m pkg.train"), a function of a file or module
            ("file.py:function"), or a function that takes a Job, which is pickled.
        address: of the Ray cluster; see `connect`. Default: that of RAY_ADDRESS, or of this machine.
        {options}

    Raises:
        ValueError: for invalid arguments, a name that is taken, more devices than there are, a deadline that would be
            missed or make another job miss its own, or a job in `after` that had to finish and has not.
    """
    job = prepared(target, **options)
    up(address)
    return send([job])[0]


@documented(ArrayOptions)
def submit_array(
    target: str | Callable[..., Any], *, address: str | None = None, **options: Unpack[ArrayOptions]
) -> list[Handle]:
    """Adds a job to the queue of a cluster once for each index of `array`, all or none; see `submit`.

    Args:
        target: as of `submit`. Each job finds its index in os.environ["TORCHSHARE_ARRAY_INDEX"].
        address: of the Ray cluster; see `connect`. Default: that of RAY_ADDRESS, or of this machine.
        {options}

    Raises:
        ValueError: as `submit`; also without an `array`, and for a `deadline` where only some of the jobs run at once.
    """
    jobs = prepared_array(target, **options)
    if not jobs[0].spec.array:
        raise ValueError(f"job '{jobs[0].spec.name}': array must be {EXPECTED}, got None")
    up(address)
    return send(jobs)


@dataclass(frozen=True)
class Prepared:
    """A job whose options are valid, but for what only the queue knows."""

    spec: JobSpec
    target: str | Callable[..., Any]
    is_named: bool
    """Otherwise its name gets a number if it is taken."""


def send(jobs: list[Prepared]) -> list[Handle]:
    """Adds all jobs to the queue of the cluster that is connected, or none. A job must come after those of them that it
    waits for, and name them by their submissions."""
    functions: dict[str, bytes] = {}
    pickled: dict[int, bytes] = {}  # by the function, which the jobs of an array share
    for job in jobs:
        if not isinstance(job.target, str):
            if id(job.target) not in pickled:
                pickled[id(job.target)] = _pickled(job.target)
            functions[job.spec.submission] = pickled[id(job.target)]
    return [Handle(name) for name in call("submit", [(job.spec, not job.is_named) for job in jobs], functions)]


def prepared_array(target: str | Callable[..., Any], **options: Unpack[ArrayOptions]) -> list[Prepared]:
    """Checks the arguments of `submit_array`. Without an array, there is one job."""
    given: dict[str, Any] = dict(options)
    check(ArrayOptions, {"array": given.get("array")}, "submit_array", given.get("name") or default_name(target))
    array = given.pop("array", None)
    job = prepared(target, **given)
    if array is None:
        return [job]
    indices, at_once = parse_array(array)
    name = job.spec.name
    common = replace(job.spec, array=name, array_id=secrets.token_hex(16), at_once=at_once)
    common.check()
    return [
        replace(job, spec=replace(common, name=f"{name}_{index}", submission=secrets.token_hex(16), index=index))
        for index in indices
    ]


def default_name(target: str | Callable[..., Any]) -> str:
    return targets.default_name(target) if isinstance(target, str) else getattr(target, "__name__", "job")


def prepared(target: str | Callable[..., Any], **options: Unpack[SubmitOptions]) -> Prepared:
    """Checks the arguments of `submit`."""
    if not isinstance(target, str) and not callable(target):
        raise TypeError(f"target must be a script, or a function that takes a Job, got {target!r}")
    base = default_name(target)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    check(SubmitOptions, given, "submit", given.get("name", base))
    if isinstance(target, str):
        targets.check_form(target, given.get("folder"))
    profile = given.pop("profile", None)  # the hosts do not need it
    profiled = _profiled(profile, given.get("sub_batch"))
    if profiled.memory:
        given.setdefault("memory", profiled.memory)
    if given.get("sub_batches", 1) > 1:
        if profile is None:
            name = given.get("name", base)
            raise ValueError(
                f"job '{name}': sub_batches must come with a profile, which says how much memory they need"
            )
        if profiled.rows % given["sub_batches"] != 0:
            raise ValueError(
                f"job '{given.get('name', base)}': sub_batches must divide the {profiled.rows} rows that run at once, "
                f"got {given['sub_batches']}"
            )
    own = {each.name: given.pop(each.name) for each in fields(JobSpec) if each.name in given}
    if "after" in own:
        own["after"] = [own["after"]] if isinstance(own["after"], str) else list(own["after"])
    if "deadline" in own:
        own["deadline"] = parse_duration(own["deadline"])
    own["folder"] = str(Path(own.get("folder", os.getcwd())).absolute())
    spec = JobSpec(
        **{"name": base, "model": base, "duration": profiled.duration, **own, **profiled.split},
        submission=secrets.token_hex(16),
        target=target if isinstance(target, str) else base,
        pickled=not isinstance(target, str),
        ratios=profiled.ratios,
        options=given,
    )
    _core.priority_level(spec.priority)  # raises ValueError
    spec.with_awaited({})  # raises ValueError
    try:
        json.dumps(vars(spec), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"job '{spec.name}': the options must be values of JSON: {error}") from None

    return Prepared(spec, target, options.get("name") is not None)


@dataclass(frozen=True)
class _Profiled:
    duration: float | None = None
    ratios: dict[str, list[float]] = field(default_factory=dict)
    memory: int | None = None
    rows: int = 1
    """That run at once."""
    split: dict[str, float] = field(default_factory=dict)


def _profiled(given: Profile | str | os.PathLike[str] | None, sub_batch: int | None) -> _Profiled:
    """What the queue needs of a job's profile. Raises ValueError if it cannot be read."""
    if given is None:
        return _Profiled()
    from torchshare.profiles.profile import Profile

    profile = given if isinstance(given, Profile) else Profile.load(given)
    ratios: dict[str, list[float]] = {}
    for partner in profile.partners:  # maybe in both roles: the larger ratios
        whole = next(pair for pair in partner.beside if pair.sub_batches == pair.partner_sub_batches == 1)
        known = ratios.get(partner.job, [1.0, 1.0])
        ratios[partner.job] = [max(known[0], whole.ratio), max(known[1], whole.partner_ratio)]
    duration = profile.steps * profile.step_s(None) if profile.steps else None
    costs = vars(profile.split_costs(sub_batch))
    return _Profiled(duration, ratios, profile.memory_budget(sub_batch), profile.rows_at_once(sub_batch), costs)


def job(name: str) -> Handle:
    """A job that was submitted earlier. Raises ValueError if there is no such job."""
    handle = Handle(name)
    handle.status()
    return handle


def cancel(name: str) -> list[dict[str, Any]]:
    """Cancels a job, or all of an array. Returns their rows in `torchshare cluster list`. Raises ValueError if there is
    none of that name."""
    rows: list[dict[str, Any]] = call("cancel", name)
    return rows


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
