"""What was measured of a job, and the profile that it makes."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

import numpy as np
import torch

from torchshare.profiles.ops import Ops
from torchshare.profiles.profile import Alone, Beside, Profile, Spread, code_digest, device_name
from torchshare.profiles.requests import RequestTimes, ServedAlone
from torchshare.profiling.fit import fit
from torchshare.profiling.kept import Kept
from torchshare.profiling.measurement import Candidate, Measurement

_SPLIT = 1.1  # sub-batches per step, of a loop that splits its batches; it may have small ones, too


@dataclass
class Subject:
    """A job, and what was measured of it alone."""

    candidate: Candidate
    kept: Kept
    batch: int = 0
    splits: bool = True
    """Its loop runs in sub-batches where it is given a size."""
    alone: dict[int, list[Measurement]] = field(default_factory=dict)
    """The measurements at each number of sub-batches."""
    recorded: list[Measurement] = field(default_factory=list)
    """In whole batches, with every op timed."""

    def pieces(self, splits: int) -> list[int]:
        """Numbers of sub-batches: 1, 2, 4, ...; at most `splits` of them, and at most the rows of a batch."""
        return [2**k for k in range(splits) if k == 0 or (self.splits and 2**k <= self.batch)]

    def sub_batch(self, pieces: int) -> int | None:
        return None if pieces == 1 else -(-self.batch // pieces)

    def add(self, pieces: int, found: Measurement) -> bool:
        """Returns whether it ran in that many sub-batches; a loop that splits nothing is measured in one only."""
        if pieces > 1 and found.per_step < _SPLIT:
            self.splits = False
            return False
        if abs(found.per_step - pieces) > 0.5 * pieces:
            raise ValueError(
                f"job '{self.candidate.name}' must not pass sub_batch to job.batches: it ran {found.per_step:.1f} "
                f"sub-batches per step instead of {pieces}"
            )
        self.batch = max(self.batch, found.rows)
        self.splits = self.splits and found.uses_batches
        self.alone.setdefault(pieces, []).append(found)
        return True

    def profile(self) -> Profile:
        """Makes the profile from what was measured so far, which must include whole batches."""
        alone = [self._alone(pieces) for pieces in sorted(self.alone)]
        candidate = self.candidate
        return Profile(
            job=candidate.name,
            code=code_digest(candidate.function),
            device=device_name(),
            torch=torch.__version__,
            created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            threads=candidate.threads,
            batch=max(1, self.batch),
            steps=candidate.steps,
            set_up_s=float(np.median([run.set_up for run in self.alone[1]])),
            alone=alone,
            fit=fit(alone),
            ops=self._ops() if self.recorded else None,
            requests=self._requests(),
        )

    def _requests(self) -> ServedAlone | None:
        times = together(self.alone[1])
        return None if times is None else ServedAlone(slo=self.alone[1][-1].slo, times=times)

    def _alone(self, pieces: int) -> Alone:
        runs = self.alone[pieces]
        steps = [step for run in runs for step in run.steps]
        return Alone(
            sub_batches=pieces,
            rows=max(1, -(-self.batch // pieces)),
            steps=len(steps),
            step_s=_spread(steps),
            sub_batch_s=_spread([piece for run in runs for piece in run.sub_batches] or steps),
            memory_bytes=max(run.memory for run in runs),
        )

    def _ops(self) -> Ops:
        """The ops of the last recorded run. The cost of recording compares the two runs of each round."""
        rounds = zip(self.recorded, self.alone[1], strict=False)  # the last round may not be over
        costs = [recorded.step_s / plain.step_s - 1 for recorded, plain in rounds]
        ops = self.recorded[-1].ops
        assert ops is not None
        return ops.model_copy(update={"measuring_cost": float(np.median(costs))})


def together(runs: list[Measurement]) -> RequestTimes | None:
    """What requests took in all runs; None if they answered none."""
    latencies = [time for run in runs for time in run.latencies]
    if not latencies:
        return None
    services = [time for run in runs for time in run.steps]
    window, inputs = sum(run.window for run in runs), [run.input for run in runs if run.input is not None]
    parallel = max(run.parallel for run in runs)
    return RequestTimes.of(
        latencies, services, len(services) / window, parallel, sum(inputs) / window if inputs else None
    )


def _spread(values: list[float]) -> Spread:
    q25, median, q75 = np.quantile(values, [0.25, 0.5, 0.75])
    return Spread(median=median, q25=q25, q75=q75)


def beside(combination: tuple[int, int], ratios: list[tuple[float, float, bool]]) -> Beside:
    return Beside(
        sub_batches=combination[0],
        partner_sub_batches=combination[1],
        ratio=float(np.median([first for first, _, _ in ratios])),
        partner_ratio=float(np.median([second for _, second, _ in ratios])),
        starved=any(starved for _, _, starved in ratios),
    )
