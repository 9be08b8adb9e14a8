"""The op profile of a job: FIKIT's SK and SG (arXiv 2311.10359), and the op trace that they are computed from."""

from __future__ import annotations

import os
import zipfile
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from torchshare import _core
from torchshare.durable.files import replacing
from torchshare.profiles.values import Value

_KINDS = {"context": "u", "gap": "f", "idle": "f", "duration": "f", "step_ends": "iu", "kind": "u"}  # numpy's
_MAX_BYTES = 1 << 27
_MAX_THREADS = 4096
_MAX_S = 1e6  # nanoseconds of so long a time are still exact
_MIN_OP_S = 1e-8  # mean; less is no recorded time, and a replay beside a long job would not end
_ROUNDING_S = 1e-9
_LAST_KIND = 2  # see OpKind in csrc/model/op_profile.h
_MAX_REASON = 200  # characters

Number = Annotated[float, Field(ge=0, le=1e18)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{1,16}$")]


class Time(Value):
    """A measured time in nanoseconds: mean, mean absolute deviation, number of measurements."""

    mean: Number
    spread: Number
    count: Annotated[int, Field(ge=0, lt=2**32)]


class Op(Value):
    """An op at its place in the step."""

    op: str
    """Name, shapes and dtypes."""
    signature: Hash
    """Hash of `op`."""
    context: Hash
    """Hash of the op and those before it."""
    duration: Time
    """SK."""
    gap: Time
    """SG: from its end to the beginning of the next op."""


class Ops(Value):
    """The ops of a job that runs alone, in whole batches."""

    per_step: Annotated[int, Field(ge=0)]
    """Period of the sequence of ops; 0 if it is not periodic."""
    measuring_cost: float
    """Step time with every op timed / step time without - 1."""
    ops: list[Op]

    @staticmethod
    def of(per_step: int, measuring_cost: float, ops: list[_core.OpProfile]) -> Ops:
        """Converts the C++ values."""
        return Ops(per_step=per_step, measuring_cost=measuring_cost, ops=[_op(op) for op in ops])

    @property
    def gap_share(self) -> float:
        """Fraction of the job's time that is gaps: the sum of SG / step time."""
        gaps = sum(op.gap.mean * op.duration.count for op in self.ops)
        durations = sum(op.duration.mean * op.duration.count for op in self.ops)
        return gaps / (gaps + durations) if gaps > 0 else 0.0

    @property
    def at_random_s(self) -> float:
        """The mean duration of the op that runs at a random time of those in which one does: long ones more often.
        0 without ops."""
        times = np.array([(op.duration.mean, op.duration.count) for op in self.ops]).reshape(-1, 2)
        total = (times[:, 0] * times[:, 1]).sum()
        return float(1e-9 * (times[:, 0] ** 2 * times[:, 1]).sum() / total) if total > 0 else 0.0

    def op_profiles(self) -> list[_core.OpProfile]:
        return [
            _core.OpProfile(int(op.signature, 16), int(op.context, 16), op.op, _op_time(op.duration), _op_time(op.gap))
            for op in self.ops
        ]


def _op_time(time: Time) -> _core.OpTime:
    return _core.OpTime(time.mean, time.spread, time.count)


def _op(op: _core.OpProfile) -> Op:
    times = [Time(mean=time.mean, spread=time.spread, count=time.count) for time in (op.duration, op.gap)]
    return Op(op=op.text, signature=f"{op.signature:x}", context=f"{op.context:x}", duration=times[0], gap=times[1])


@dataclass(frozen=True)
class OpTrace:
    """The ops of a job that ran alone, in order. One array entry per op, times in seconds. Stored as a .npz file."""

    job: str
    threads: int
    context: NDArray[np.uint64]
    gap: NDArray[np.float64]
    """From the end of the previous op to its beginning."""
    idle: NDArray[np.float64]
    """Part of `gap` spent waiting for input."""
    duration: NDArray[np.float64]
    step_ends: NDArray[np.uint64]
    """Per step, the number of ops that had ended at its end."""
    kind: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """See OpKind in csrc/model/op_profile.h; empty if not recorded."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically."""
        with replacing(path) as file:
            np.savez_compressed(file, **asdict(self))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> OpTrace:
        """Raises ValueError for an invalid file."""
        try:
            columns = _columns(path)
        except OSError as error:
            raise ValueError(f"op trace {path}: {error.strerror or error}") from None
        except MemoryError:
            raise ValueError(f"op trace {path} is too large for the memory") from None
        except Exception as error:  # of a file that someone else has written
            reason = str(error).partition("\n")[0][:_MAX_REASON]
            raise ValueError(f"{path} is not an op trace: {reason or type(error).__name__}") from None
        fault = _fault(columns)
        if fault is not None:
            raise ValueError(f"op trace {path} {fault}")
        values: dict[str, Any] = {**columns, "job": str(columns["job"]), "threads": int(columns["threads"])}
        return OpTrace(**values)


def _columns(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > _MAX_BYTES:
            raise ValueError(f"it must have at most {_MAX_BYTES} bytes, has {size}")
    with np.load(path, allow_pickle=False) as file:
        fields = [name for name in OpTrace.__dataclass_fields__ if name != "kind" or name in file]
        return {name: file[name] for name in fields}


def _fault(columns: dict[str, NDArray[Any]]) -> str | None:
    """What the columns must be and are not; None if they are an op trace."""
    for name, column in columns.items():
        shape, kinds = ((), "U" if name == "job" else "iu") if name in ("job", "threads") else (None, _KINDS[name])
        if column.dtype.kind not in kinds or (column.ndim != 1 if shape is None else column.shape != shape):
            return f"has a column '{name}' of the wrong type or shape: {column.dtype} {list(column.shape)}"
    lengths = {len(columns[name]) for name in ("context", "gap", "idle", "duration")}
    ends, kind = columns["step_ends"], columns.get("kind", ())
    if len(lengths) != 1 or len(ends) < 2 or len(kind) not in (0, *lengths):
        return "must have columns of equal length and at least 2 steps"
    if not 1 <= columns["threads"] <= _MAX_THREADS:
        return f"must have 1 to {_MAX_THREADS} threads, has {columns['threads']}"
    if ends[0] < 1 or ends[-1] > lengths.pop() or (ends[1:] <= ends[:-1]).any():
        return "must have steps that end one after the other, at one of its ops"
    gap, idle, duration = columns["gap"], columns["idle"], columns["duration"]
    if not all((times >= 0).all() and (times <= _MAX_S).all() for times in (gap, idle, duration)):
        return f"must have times from 0 to {_MAX_S:g} s"
    if (idle > gap + _ROUNDING_S).any():
        return "must not have more idle time than gaps"
    if not _MIN_OP_S * len(gap) <= gap.sum() + duration.sum() <= _MAX_S:
        return f"must take at least {_MIN_OP_S:g} s per op, and at most {_MAX_S:g} s"
    if len(kind) and max(kind) > _LAST_KIND:
        return f"must have kinds of ops up to {_LAST_KIND}"
    return None
