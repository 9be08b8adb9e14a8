"""What a cluster learns from its jobs: step times alone and beside others, and durations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MIN_STEPS = 20
_MIN_S = 2.0
_CHANGE = 0.1  # relative, of a ratio that is worth telling


@dataclass
class _Sum:
    steps: int = 0
    seconds: float = 0.0

    @property
    def step_time(self) -> float | None:
        return self.seconds / self.steps if self.steps >= _MIN_STEPS and self.seconds >= _MIN_S else None


class StepTimes:
    """The step times of one job, by its partner's model."""

    def __init__(self) -> None:
        self._sums: defaultdict[str | None, _Sum] = defaultdict(_Sum)
        self._last: tuple[float, int, str | None] | None = None
        self.told: dict[str, float] = {}
        """The slowdowns of this job that others have been told, by the partner's model."""

    def observe(self, time: float, steps: int, partner: str | None) -> None:
        """Called with the steps so far. The time before the first step and that of a change of partner do not count."""
        if self._last is not None and self._last[2] == partner and self._last[1] > 0:
            total = self._sums[partner]
            total.steps += steps - self._last[1]
            total.seconds += time - self._last[0]
        self._last = time, steps, partner

    def restart(self) -> None:
        """The job begins to count its steps anew, or is not observed for a while."""
        self._last = None

    def slowdown(self, partner: str) -> float | None:
        """Step time beside jobs of this model / step time alone; None unless both are known."""
        alone, beside = (self._sums[each].step_time for each in (None, partner))
        return None if alone is None or beside is None else beside / alone

    def is_news(self, partner: str, slowdown: float) -> bool:
        """Whether the slowdown differs from the last one that this job has told. It is not compared with those of other
        jobs: two pairs of the same models may always differ."""
        known = self.told.get(partner)
        return known is None or abs(max(1.0, slowdown) / max(1.0, known) - 1) > _CHANGE


class Learned:
    """Interference ratios and durations by model."""

    def __init__(self, default_ratio: float, default_duration: float) -> None:
        self._default_ratio = default_ratio
        self._default_duration = default_duration
        self._ratios: dict[tuple[str, str], float] = {}
        self._profiled: dict[tuple[str, str], float] = {}
        self._durations: dict[str, float] = {}

    def ratio(self, model: str, partner: str) -> float:
        """The ratio measured on the cluster, else that of a profile, else the default."""
        pair = (model, partner)
        return self._ratios.get(pair, self._profiled.get(pair, self._default_ratio))

    def set_profiled(self, model: str, ratios: Mapping[str, Sequence[float]]) -> list[tuple[str, str]]:
        """Returns the pairs whose ratio has changed."""
        pairs = {(model, partner): max(1.0, own) for partner, (own, _) in ratios.items()}
        pairs |= {(partner, model): max(1.0, theirs) for partner, (_, theirs) in ratios.items()}
        news = [pair for pair, ratio in pairs.items() if self._profiled.get(pair) != ratio]
        self._profiled |= pairs
        return news

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """The pairs whose ratio was measured or is in a profile."""
        return self._ratios.keys() | self._profiled.keys()

    def set_ratio(self, model: str, partner: str, measured: float) -> None:
        self._ratios[model, partner] = max(1.0, measured)

    def saved(self) -> dict[str, Any]:
        """The tables as values that JSON has."""
        tables = {"ratios": self._ratios, "profiled": self._profiled}
        rows = {name: [[*pair, ratio] for pair, ratio in table.items()] for name, table in tables.items()}
        return {**rows, "durations": self._durations}

    def restore(self, saved: dict[str, Any]) -> None:
        self._ratios = {(model, partner): ratio for model, partner, ratio in saved["ratios"]}
        self._profiled = {(model, partner): ratio for model, partner, ratio in saved["profiled"]}
        self._durations = dict(saved["durations"])

    def duration(self, model: str) -> float:
        return self._durations.get(model, self._default_duration)

    def set_duration(self, model: str, seconds: float) -> None:
        self._durations[model] = seconds
