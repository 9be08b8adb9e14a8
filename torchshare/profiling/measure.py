"""Measures jobs for their profiles: each alone with 1, 2, 4, ... sub-batches, then beside another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from torchshare.context.checks import check_count
from torchshare.profiles.ops import OpTrace
from torchshare.profiles.profile import Partner, Profile, code_digest
from torchshare.profiles.requests import ServedBeside
from torchshare.profiling.kept import Kept
from torchshare.profiling.measurement import Candidate, Measurement, measured
from torchshare.profiling.subject import Subject, beside, together
from torchshare.runtime.job import Job


def profile(
    function: Callable[[Job], Any],
    partner: Callable[[Job], Any] | None = None,
    *,
    name: str | None = None,
    partner_name: str | None = None,
    threads: int | None = None,
    partner_threads: int | None = None,
    steps: int | None = None,
    splits: int = 3,
    window: float = 2.0,
    rounds: int = 2,
    seed: int = 0,
) -> Profile:
    """Measures a job alone and, as the primary, beside a secondary `partner`.

    Each measurement starts the job again and cancels it at the end. The job must not pass `sub_batch` to `batches`.
    A job without batches that have rows is measured in one sub-batch, one that answers requests by these, without its
    promise; something must send them. A periodic job is measured by its units, which count as requests.

    Args:
        function: as for `Runtime.submit`.
        name, partner_name: default: the functions' names.
        threads, partner_threads: intra-op threads. Default: `torch.get_num_threads()`.
        steps: steps of the whole job, for plans.
        splits: number of sub-batch sizes to measure: the whole batch, 1/2, 1/4, ...
        window: seconds of each measurement, after the warm-up.
        rounds: repetitions of all measurements; ratios compare runs of the same round.

    Raises:
        ValueError: for invalid arguments, a job that is too short, or one that splits its own batches.
        JobFailed: if the job fails.
    """
    candidates = [_candidate(function, name, threads, seed, steps)]
    if partner is not None:
        candidates.append(_candidate(partner, partner_name, partner_threads, seed, None))
    profiles, _ = measure(candidates, splits=splits, window=window, rounds=rounds)
    return profiles[0]


def _candidate(
    function: Callable[[Job], Any], name: str | None, threads: int | None, seed: int, steps: int | None
) -> Candidate:
    name = getattr(function, "__name__", "job") if name is None else name
    check_count(name, "steps", steps)
    return Candidate(name, function, torch.get_num_threads() if threads is None else threads, seed, steps)


def measure(
    candidates: list[Candidate], *, splits: int, window: float, rounds: int
) -> tuple[list[Profile], list[OpTrace]]:
    """Measures one job, or a primary and a secondary; the first profile has the pair's ratios. See `profile`."""
    measuring = Measuring(candidates, splits=splits, window=window, rounds=rounds)
    for _ in measuring:
        pass
    return [each for each in measuring.profiles() if each is not None], measuring.traces()


_SHORT_OP_S = 1e-6  # of a job whose ops are not known


class Measuring:
    """Measures one job, or a primary and a secondary, while it is iterated over: an item after each measurement, a line
    about it. The first profile has the pair's ratios. See `profile`."""

    def __init__(
        self,
        candidates: list[Candidate],
        *,
        splits: int,
        window: float,
        rounds: int,
        files: list[Path | None] | None = None,
        go_on: bool = False,
        around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """
        Args:
            files: where the measurements of each candidate are kept until all are done.
            go_on: whether those that are there count.
            around: a context for each run.
        """
        if not 1 <= splits <= 16:
            raise ValueError(f"splits must be from 1 to 16, got {splits}")
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        if not 0 < window < float("inf"):
            raise ValueError(f"window must be a positive number of seconds, got {window}")
        if len({candidate.name for candidate in candidates}) < len(candidates):
            raise ValueError(f"job names must differ, both are '{candidates[0].name}'")
        self._splits, self._window, self._rounds, self._around = splits, window, rounds, around
        self._subjects = [
            Subject(candidate, Kept(file, candidate, window, go_on=go_on))
            for candidate, file in zip(candidates, files or [None] * len(candidates), strict=True)
        ]
        self._pairs: dict[tuple[int, int], list[tuple[float, float, bool]]] = {}
        self._whole: list[Measurement] = []
        """The first job beside the other, both in whole batches."""
        self._round = 0

    @property
    def kept(self) -> int:
        """How many measurements are in the files."""
        return sum(subject.kept.count for subject in self._subjects)

    @property
    def runs(self) -> tuple[int, int]:
        """How often each job runs in all, at least and at most."""
        pairs = (1, 2 * self._splits - 1) if len(self._subjects) == 2 else (0, 0)
        return self._rounds * (2 + pairs[0]), self._rounds * (self._splits + 1 + pairs[1])

    def __iter__(self) -> Iterator[str]:
        for number in range(1, self._rounds + 1):
            self._round = number
            for subject in self._subjects:  # first each once: what cannot be measured is found soon
                yield from self._measure_alone(subject, 1)
            for subject in self._subjects:
                for pieces in subject.pieces(self._splits)[1:]:
                    if subject.splits:
                        yield from self._measure_alone(subject, pieces)
                yield from self._measure_ops(subject)
            if len(self._subjects) == 2:
                for combination in self._combinations():
                    yield from self._measure_pair(combination)
        for subject in self._subjects:
            subject.kept.remove()

    def missing(self) -> str:
        """What was not measured yet."""
        missing = [
            f"the ops of '{each.candidate.name}'" if each.alone else f"'{each.candidate.name}' alone"
            for each in self._subjects
            if not each.recorded
        ]
        if len(self._subjects) == 2 and not self._pairs:
            missing.append(" beside ".join(f"'{each.candidate.name}'" for each in self._subjects))
        return ", ".join(missing) or f"the rest of round {self._round} of {self._rounds}"

    def profiles(self) -> list[Profile | None]:
        """Profiles from what was measured so far; None for a job that was not measured."""
        found = [each.profile() if each.alone else None for each in self._subjects]
        if found[0] is not None and self._pairs:
            ratios = [beside(combination, ratios) for combination, ratios in self._pairs.items()]
            other = self._subjects[1]
            partner = Partner(job=other.candidate.name, role="primary", beside=ratios, requests=self._requests(other))
            found[0] = found[0].model_copy(update={"partners": [partner]})
        return found

    def _requests(self, other: Subject) -> ServedBeside | None:
        """What those of the first job took beside the other; None if it answers none."""
        times = together(self._whole)
        ops = other.recorded[-1].ops if other.recorded else None
        return (
            None if times is None else ServedBeside(times=times, op_s=max(ops.at_random_s if ops else 0.0, _SHORT_OP_S))
        )

    def traces(self) -> list[OpTrace]:
        """The traces of the last runs with every op timed, in this process."""
        return [subject.recorded[-1].trace for subject in self._subjects]

    def _measure_alone(self, subject: Subject, pieces: int) -> Iterator[str]:
        what = f"{subject.candidate.name} alone in {pieces}"
        (found,) = self._measured(what, [subject], [pieces])
        did = subject.add(pieces, found)
        yield self._line(what, str(found) if did else "it does not split its batches")

    def _measure_ops(self, subject: Subject) -> Iterator[str]:
        what = f"{subject.candidate.name} alone, every op timed"
        (found,) = self._measured(what, [subject], [1], record_ops=True)
        subject.recorded.append(found)
        yield self._line(what, str(found))

    def _combinations(self) -> list[tuple[int, int]]:
        """Each job in 1, 2, 4, ... sub-batches beside the other in whole batches."""
        first, second = (subject.pieces(self._splits) for subject in self._subjects)
        return [*((pieces, 1) for pieces in first), *((1, pieces) for pieces in second[1:])]

    def _measure_pair(self, combination: tuple[int, int]) -> Iterator[str]:
        names = [subject.candidate.name for subject in self._subjects]
        what = f"{names[0]} in {combination[0]} beside {names[1]} in {combination[1]}"
        found = self._measured(what, self._subjects, list(combination))
        own, other = (
            each.ratio(subject.alone[pieces][-1])
            for each, subject, pieces in zip(found, self._subjects, combination, strict=True)
        )
        if combination == (1, 1):
            self._whole.append(found[0])
        starved = any(not each.steps for each in found)
        self._pairs.setdefault(combination, []).append((own, other, starved))
        yield self._line(what, f"ratios {own:.2f} and {other:.2f}")

    def _line(self, what: str, found: str) -> str:
        return f"round {self._round}: {what}: {found}"

    def _measured(
        self, what: str, subjects: list[Subject], pieces: list[int], record_ops: bool = False
    ) -> list[Measurement]:
        """The measurements, from the first job's file if they are there."""
        partners = [f"; {each.candidate.key} {code_digest(each.candidate.function)}" for each in subjects[1:]]
        key = "".join([self._line(what, ""), *partners])
        found = subjects[0].kept.get(key)
        if found is None:
            sizes = [subject.sub_batch(count) for subject, count in zip(subjects, pieces, strict=True)]
            with self._around():
                found = measured([subject.candidate for subject in subjects], sizes, self._window, record_ops)
            subjects[0].kept.put(key, found)
        return found
