"""The profile of a job: step times alone, memory, and slowdowns beside other jobs. Stored as one JSON file.

Note [Profiles of requests]
For a job that answers requests and makes no steps, all that is said of a step is of a request: `step_s` and the ratios
are of service times. It has no sub-batches. `requests` has the rest.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from torchshare import _core
from torchshare.durable.files import replacing
from torchshare.profiles.ops import Ops
from torchshare.profiles.requests import ServedAlone, ServedBeside, largest_share
from torchshare.profiles.values import Count, Seconds, Value, fault

VERSION: Literal[1] = 1  # version of the file's schema
Time = Annotated[float, Field(ge=0, le=1e9)]
Bytes = Annotated[float, Field(ge=0, le=2**53)]
Name = Annotated[str, Field(max_length=1000)]
Ratio = Annotated[float, Field(gt=0, le=1e6)]
Role = Literal["primary", "secondary"]


class Spread(Value):
    """Median and quartiles of measured times."""

    median: Seconds
    q25: Seconds
    q75: Seconds


class Alone(Value):
    """Measurements of a job alone, with `sub_batches` sub-batches per step."""

    sub_batches: Count
    rows: Count
    """Rows of a sub-batch."""
    steps: Count
    """Steps measured, after the warm-up."""
    step_s: Spread
    """From the end of one step to the end of the next, including the wait for input."""
    sub_batch_s: Spread
    memory_bytes: Annotated[int, Field(ge=0, le=2**53)]
    """Peak memory of tensors."""


class Beside(Value):
    """Measurements of two jobs together, each with its number of sub-batches per step."""

    sub_batches: Count
    partner_sub_batches: Count
    ratio: Ratio
    """Interference ratio: step time beside the partner / alone, at the same sub-batch size. Below 1 is noise."""
    partner_ratio: Ratio
    starved: bool = False
    """One of the jobs did no step: its ratio is a lower bound."""


class Partner(Value):
    job: Name
    role: Role
    """The role of the profiled job; the partner had the other role."""
    beside: list[Beside]
    requests: ServedBeside | None = None
    """What its requests took, of a job that answers requests as the primary."""

    @field_validator("beside")
    @classmethod
    def _has_whole_batches(cls, beside: list[Beside]) -> list[Beside]:
        if all((pair.sub_batches, pair.partner_sub_batches) != (1, 1) for pair in beside):
            raise ValueError("must have the pair of whole batches")
        return beside


class Fit(Value):
    """The step-time model of SJF-BSBF (arXiv 2407.13088) and a linear memory model, fitted to `alone`.

    step = (s - 1) c + (c ** delta + communication ** delta) ** (1 / delta), c = alpha + beta * rows of a sub-batch;
    `communication_s` is the time that a step spends once: input, optimizer, all-reduce.
    """

    alpha_s: Time
    beta_s: Time
    communication_s: Time
    delta: Annotated[float, Field(ge=1, le=1000)]
    memory_fixed: Bytes
    memory_per_row: Bytes
    left_out_errors: list[float]
    """Per size: |predicted / measured step time - 1| of a fit without that size. Empty for fewer than three sizes."""


@dataclass(frozen=True)
class SplitCosts:
    """In s sub-batches, a job needs fixed_memory + (1 - fixed_memory) / s of its memory, and its steps take
    1 + fixed_time (s - 1) times as long."""

    fixed_memory: float
    fixed_time: float


class Profile(Value):
    """Measurements of a job on a device. Made by `torchshare.profile`; `load` restores exactly what `save` wrote."""

    schema_version: Literal[1] = VERSION
    job: Name
    code: str
    """Digest of the source file of the job's function; empty if there is none."""
    device: str
    torch: str
    created: str
    threads: Count
    batch: Count
    """Rows of a batch."""
    steps: Annotated[int, Field(ge=0, le=10**12)] | None
    """Steps of the whole job, if known."""
    set_up_s: Time
    """From the job's start to the end of its first step."""
    alone: Annotated[list[Alone], Field(min_length=1)]
    partners: list[Partner] = Field(default_factory=list)
    fit: Fit
    ops: Ops | None = None
    """Used by policy="best_fit"."""
    requests: ServedAlone | None = None
    """See Note [Profiles of requests]."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically."""
        with replacing(path) as file:
            file.write(f"{self.model_dump_json(indent=2)}\n".encode())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Raises ValueError for an invalid file."""
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise ValueError(f"profile {path}: {error.strerror}") from None
        except RecursionError:
            raise ValueError(f"profile {path} is not valid JSON: it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"profile {path} is not valid JSON: {error}") from None
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != VERSION:
            raise ValueError(f"profile {path} must be of version {VERSION}, got {version!r}; measure the job again")
        try:
            return Profile.model_validate(data)
        except ValidationError as error:
            raise ValueError(f"profile {path}: {fault(error)}") from None

    @model_validator(mode="after")
    def _has_an_error_per_size(self) -> Profile:
        if len(self.fit.left_out_errors) not in (0, len(self.alone)):
            raise ValueError("fit.left_out_errors must have one number per size")
        return self

    def refusal(self, function: Callable[..., Any] | None = None) -> str | None:
        """Why this profile does not apply to `function` in this process; None if it applies."""
        here = device_name()
        if self.device != here:
            return f"it was measured on device '{self.device}', this is '{here}'"
        import torch

        if self.torch != torch.__version__:
            return f"it was measured with torch {self.torch}, this is {torch.__version__}"
        code = code_digest(function) if function is not None else ""
        if self.code and code and self.code != code:
            return f"the job's code has changed since {self.created}"
        return None

    def step_s(self, sub_batch: int | None) -> float:
        """Step time alone in sub-batches of `sub_batch` rows: measured, else predicted by the fit."""
        pieces = 1 if sub_batch is None else -(-self.batch // sub_batch)
        measured = {alone.sub_batches: alone.step_s.median for alone in self.alone}
        return measured[pieces] if pieces in measured else predict(self.fit, pieces, self.batch / pieces)

    def rows_at_once(self, sub_batch: int | None) -> int:
        """Rows of the largest sub-batch, in sub-batches of `sub_batch` rows."""
        return min(self.batch, sub_batch or self.batch)

    def memory_budget(self, sub_batch: int | None) -> int:
        """Bytes that the job needs in sub-batches of `sub_batch` rows, measured or predicted by the fit, and an eighth
        more."""
        rows = self.rows_at_once(sub_batch)
        measured = max((alone.memory_bytes for alone in self.alone if alone.rows == rows), default=0)
        needed = max(measured, self.fit.memory_fixed + self.fit.memory_per_row * rows)
        return math.ceil(needed * 9 / 8)

    def split_costs(self, sub_batch: int | None) -> SplitCosts:
        """What smaller sub-batches than those of `sub_batch` rows save and cost, by the fit."""
        rows = self.rows_at_once(sub_batch)
        pieces = -(-self.batch // rows)
        needed = self.fit.memory_fixed + self.fit.memory_per_row * rows
        once, twice = (predict(self.fit, number, self.batch / number) for number in (pieces, 2 * pieces))
        fixed_time = min(1.0, max(0.0, twice / once - 1)) if once > 0 else 0.0
        return SplitCosts(self.fit.memory_fixed / max(1, needed), fixed_time)

    def profiled_job(self, sub_batch: int | None, priority: str, slo: str | None = None) -> _core.ProfiledJob:
        """The part that the coordinator uses, for a job of that priority and promise; by default, its own."""
        pieces = 1 if sub_batch is None else -(-self.batch // sub_batch)
        beside: dict[str, tuple[float, float, float | None]] = {}
        for partner in self.partners:
            if (partner.role == "secondary") == _core.outranks("primary", priority):
                whole = [pair for pair in partner.beside if pair.partner_sub_batches == 1]
                nearest = min(whole, key=lambda pair: abs(pair.sub_batches - pieces))
                share = None
                if self.requests is not None and partner.requests is not None:
                    share = largest_share(self.requests, partner.requests, slo)
                beside[partner.job] = (nearest.ratio, nearest.partner_ratio, share)
        return _core.ProfiledJob(self.job, self.step_s(sub_batch), beside, self.requests is not None)


def step_time(fit: Fit) -> _core.StepTimeModel:
    """The fitted model in the planner's type."""
    return _core.StepTimeModel(fit.alpha_s, fit.beta_s, fit.communication_s, fit.delta)


def predict(fit: Fit, sub_batches: int, rows: float) -> float:
    """Predicted step time in seconds with `sub_batches` sub-batches of `rows` rows; see Fit."""
    return step_time(fit).step(sub_batches * rows, sub_batches)


def as_profile(job: str, profile: Profile | str | os.PathLike[str], function: Callable[..., Any]) -> Profile:
    """The profile, loaded if given as a path. Raises ValueError if it does not apply to the job."""
    try:
        known = profile if isinstance(profile, Profile) else Profile.load(profile)
    except ValueError as error:
        raise ValueError(f"job '{job}': {error}") from None
    refusal = known.refusal(function)
    if refusal is not None:
        raise ValueError(f"job '{job}': its profile cannot be used: {refusal}; measure it again")
    return known


@functools.cache
def device_name() -> str:
    """The name of the device that jobs run on, as stored in profiles."""
    from torchshare.device import devices  # which imports torch

    return devices.name_of(devices.best().kind)


def code_digest(function: Callable[..., Any]) -> str:
    """Digest of the source file of `function`, or of a script; empty if there is none."""
    try:
        file = getattr(function, "script_file", None) or inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # a callable object, a builtin
        return ""
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
