"""Interference ratios for the simulator: one number, or a table of measured pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchshare.simulation.job_trace import BadValue, read_rows

_MAX_RATIO = 1e6


@dataclass(frozen=True)
class Ratios:
    """`matrix[i, j]` is the ratio of `models[i]` beside `models[j]`, infinite for pairs that cannot share.
    If `models` is empty, one ratio applies to every pair."""

    models: list[str]
    matrix: NDArray[np.float64]
    raised: int = 0  # number of measured ratios below 1 (noise), raised to 1

    def rows(self, models: list[str]) -> NDArray[np.int32]:
        """The row of the matrix for the model of each job. Raises ValueError for models that are not in the table."""
        if not self.models:
            return np.zeros(len(models), dtype=np.int32)
        row = {model: index for index, model in enumerate(self.models)}
        missing = sorted({model for model in models if model not in row})
        if missing:
            raise ValueError(
                f"the interference table has no model {', '.join(map(repr, missing))}, only "
                f"{', '.join(map(repr, self.models))}; --model-as gives a model the ratios of another"
            )
        return np.array([row[model] for model in models], dtype=np.int32)


def uniform(ratio: float) -> Ratios:
    """One ratio for every pair. Raises ValueError unless it is from 1 to 1e6."""
    if not 1 <= ratio <= _MAX_RATIO:
        raise ValueError(f"interference ratio must be a number from 1 to {_MAX_RATIO:g}, got {ratio:g}")
    return Ratios([], np.array([[ratio]]))


def read_ratios(path: Path, gpu_type: str | None, aliases: dict[str, str]) -> Ratios:
    """Reads a table of pairs with the columns job_a, job_b, xi_a, xi_b and, for several GPU types, gpu. If a pair has
    several ratios, uses the largest. `aliases` gives models of the trace the ratios of models of the table. Raises
    ValueError."""
    pairs: dict[tuple[str, str], float] = {}
    kinds: set[str] = set()
    raised = 0
    for line, row in read_rows(path, ["job_a", "job_b", "xi_a", "xi_b"]):
        try:
            kind = row.optional("gpu")
            kinds.add(kind)
            if gpu_type is not None and kind != gpu_type:
                continue
            a, b = row.text("job_a"), row.text("job_b")
            measured = [((a, b), row.number("xi_a", above=0)), ((b, a), row.number("xi_b", above=0))]
        except BadValue as error:
            raise ValueError(f"{path}:{line}: {error}") from None
        for pair, ratio in measured:
            raised += ratio < 1
            pairs[pair] = max(ratio, pairs.get(pair, 1.0))
    if gpu_type is None and len(kinds) > 1:
        raise ValueError(f"{path} has ratios for {', '.join(sorted(kinds))}, choose one with --gpu-type")
    if not pairs:
        raise ValueError(f"{path} has no pair for GPU '{gpu_type}', only for {', '.join(sorted(kinds)) or 'none'}")
    models = sorted({model for pair in pairs for model in pair})
    for model, other in aliases.items():
        if other not in models:
            raise ValueError(f"--model-as {model}={other}: '{other}' must be one of {', '.join(map(repr, models))}")
    named = {model: model for model in models} | aliases
    matrix = np.array([[pairs.get((named[a], named[b]), math.inf) for b in named] for a in named])
    return Ratios(list(named), matrix, raised)
