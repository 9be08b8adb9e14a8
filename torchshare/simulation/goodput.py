"""The goodput of AdaptDL's applications by Pollux's formulas (Qiao et al., OSDI 21, section 3): throughput times
statistical efficiency."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from torchshare.simulation.applications import APPLICATIONS
from torchshare.simulation.job_trace import Row, rows_in

GPUS_PER_NODE = 4  # of AdaptDL's measurements
_BATCHES = 50  # candidates for each number of GPUs, in equal ratios
_FIXED = {"ncf": (1, 32_768)}  # GPUs and batch of an application that AdaptDL does not adapt
_FOLDER = Path(__file__).parent / "traces"
_TINY = 1e-8  # of roundings

Column = NDArray[np.float64]


@dataclass(frozen=True)
class StepModel:
    """Pollux's model of a step's time in seconds, with all GPUs on one node, or whole nodes."""

    alpha_grad: float  # gradient: alpha + beta * rows
    beta_grad: float
    alpha_local: float  # synchronization within a node: alpha + beta * (GPUs - 2)
    beta_local: float
    alpha_node: float  # between nodes
    beta_node: float
    gamma: float  # overlap of the two: 1 none, 10 nearly all

    def gradient(self, rows: Column) -> Column:
        return self.alpha_grad + self.beta_grad * rows

    def last(self, gpus: Column, rows: Column) -> Column:
        """The last sub-batch of a step, which synchronizes."""
        local = self.alpha_local + self.beta_local * (gpus - 2)
        node = self.alpha_node + self.beta_node * (gpus - 2)
        sync = np.where(gpus > GPUS_PER_NODE, node, np.where(gpus > 1, local, 0.0))
        return (self.gradient(rows) ** self.gamma + sync**self.gamma) ** (1 / self.gamma)


def fit(gpus: Column, rows: Column, step_s: Column, gradient_s: Column) -> StepModel:
    """Fits the logarithms of both times by least squares."""

    def model(logs: Column) -> StepModel:
        return StepModel(*np.exp(logs[:6]).tolist(), *logs[6:].tolist())

    def errors(logs: Column) -> Column:
        fitted = model(logs)
        off: Column = np.concatenate([fitted.last(gpus, rows) / step_s, fitted.gradient(rows) / gradient_s])
        return np.log(off)

    first = [*np.log([0.1, step_s.min() / rows.max(), 0.1, 0.01, 0.1, 0.01]), 2.0]
    found = least_squares(errors, first, bounds=([-np.inf] * 6 + [1.0], [np.inf] * 6 + [10.0]), loss="soft_l1")
    return model(found.x)


class Goodput:
    """An application with each number of GPUs that it may have and each batch, which are named by their indices; size 0
    is no GPUs. Rates and progress are in steps of the initial batch."""

    def __init__(self, name: str, steps: Column, batches: Column, noise: Column, ends: Column) -> None:
        """`steps` has columns gpus, rows, step_s, sync_s; `noise[batch, epoch]` is the noise scale of the gradient, in
        rows; `ends` has the progress at which each epoch ends."""
        self.ends: list[float] = ends.tolist()
        self._noise_batches, self._noise = batches, noise
        self._first, largest = float(batches[0]), float(batches[-1])
        gpus, rows, step_s, sync_s = steps.T
        self.model = fit(gpus, rows, step_s, step_s - sync_s)
        fixed_gpus, fixed_batch = _FIXED.get(name, (None, None))
        self.gpus = [0, *(int(count) for count in np.unique(gpus) if fixed_gpus in (None, count))]
        shape = (len(self.gpus), _BATCHES)
        self._batch, self._expected_s, self._real_s = np.full(shape, self._first), *np.full((2, *shape), np.inf)
        for size, count in enumerate(self.gpus[1:], 1):
            least = max(self._first, rows.min() * count)
            wanted = np.full(_BATCHES, fixed_batch) if fixed_batch else np.geomspace(least, largest, _BATCHES)
            further = np.ceil(wanted / count / APPLICATIONS[name].largest_rows - _TINY) - 1
            if count == 1:  # AdaptDL measures the noise of one GPU's gradients between sub-batches
                further = np.where(wanted > self._first, np.maximum(further, 1), further)
            at_once = np.ceil(wanted / count / (further + 1) - _TINY)
            at_once = np.minimum(at_once, largest // (count * (further + 1)))
            here = gpus == count
            step, sync = (np.interp(at_once, rows[here], times[here]) for times in (step_s, sync_s))
            last = self.model.last(np.full(_BATCHES, float(count)), at_once)
            self._batch[size] = count * at_once * (further + 1)
            self._real_s[size] = step + further * (step - sync)
            self._expected_s[size] = last + further * self.model.gradient(at_once)
        self._rates: dict[tuple[int, int, int], float] = {}
        self._best: dict[tuple[int, int, int], tuple[list[float], list[int]]] = {}

    def rate(self, size: int, batch: int, epoch: int) -> float:
        """The goodput as measured, per second."""
        key = (size, batch, epoch)
        if key not in self._rates:
            rows = self._batch[size, batch]
            efficiency = self._efficiency(self._noise_of(epoch, rows), rows)
            self._rates[key] = float(rows / self._first / self._real_s[size, batch] * efficiency)
        return self._rates[key]

    def best(self, size: int, batch: int, epoch: int) -> tuple[list[float], list[int]]:
        """The goodput that the formulas expect of each size with its best batch, and this batch. The noise is that of a
        job which has `size` and `batch` now; size 0 stands for the initial batch."""
        key = (size, batch, epoch)
        if key not in self._best:
            noise = self._noise_of(epoch, self._batch[size, batch])
            expected = self._batch / self._first / self._expected_s * self._efficiency(noise, self._batch)
            self._best[key] = expected.max(axis=1).tolist(), expected.argmax(axis=1).tolist()
        return self._best[key]

    def errors(self) -> Column:
        """The time of a step by the formulas / as measured - 1, for all sizes and batches."""
        off: Column = self._expected_s[1:] / self._real_s[1:] - 1
        return off.ravel()

    def _noise_of(self, epoch: int, rows: float) -> float:
        return float(np.interp(rows, self._noise_batches, self._noise[:, epoch]))

    def _efficiency(self, noise: float, batch: Column) -> Column:
        """Progress per row / that with the initial batch."""
        return (noise + self._first) / (noise + batch)


@functools.cache
def goodput(application: str) -> Goodput:
    """The goodput of one of AdaptDL's applications. Raises ValueError for another."""
    if application not in APPLICATIONS:
        raise ValueError(f"application must be one of {', '.join(APPLICATIONS)}, got '{application}'")
    steps = [
        [row.number(name) for name in ("gpus", "rows", "step_time_s", "sync_time_s")]
        for row in _rows("adaptdl_steps.csv.gz", application)
    ]
    epochs: dict[int, list[tuple[float, float]]] = {}
    for row in _rows("adaptdl_noise.csv.gz", application):
        epochs.setdefault(row.count("batch"), []).append((row.number("progress"), row.number("noise_rows")))
    progress, noise = np.moveaxis(np.array([*epochs.values()]), 2, 0)
    return Goodput(application, np.array(steps), np.array([*epochs], dtype=float), noise, progress.min(axis=0))


def _rows(name: str, application: str) -> Iterator[Row]:
    with gzip.open(_FOLDER / name, "rt", newline="", encoding="utf-8") as file:
        for _, row in rows_in(file, name, ["application"]):
            if row.text("application") == application:
                yield row
