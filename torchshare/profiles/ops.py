"""The op profile of a job: FIKIT's SK and SG (arXiv 2311.10359), and the op trace that they are computed from."""

from __future__ import annotations

import os
import zipfile
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from torchshare import _core
from torchshare.context.files import replacing

Number = Annotated[float, Field(ge=0)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{1,16}$")]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Time(_Value):
    """A measured time in nanoseconds: mean, mean absolute deviation, number of measurements."""

    mean: Number
    spread: Number
    count: Annotated[int, Field(ge=0, lt=2**32)]


class Op(_Value):
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


class Ops(_Value):
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
            with np.load(path, allow_pickle=False) as file:
                fields = [name for name in OpTrace.__dataclass_fields__ if name != "kind" or name in file]
                columns: dict[str, Any] = {name: file[name] for name in fields}
        except OSError as error:
            raise ValueError(f"op trace {path}: {error.strerror or error}") from None
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not an op trace: {error}") from None
        trace = OpTrace(**{**columns, "job": str(columns["job"]), "threads": int(columns["threads"])})
        lengths = {len(column) for column in (trace.context, trace.gap, trace.idle, trace.duration)}
        if len(lengths) != 1 or len(trace.step_ends) < 2 or len(trace.kind) not in (0, *lengths):
            raise ValueError(f"op trace {path} must have columns of equal length and at least 2 steps")
        return trace
