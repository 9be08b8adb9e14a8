"""Fits the step-time and memory models of a profile to its measurements."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchshare import _core
from torchshare.profiles.profile import Alone, Fit, predict


def fit(alone: list[Alone]) -> Fit:
    """Fits both models to all sizes. Also computes the leave-one-out errors."""
    errors = []
    if len(alone) > 2:
        for left_out in alone:
            without = _fit([size for size in alone if size is not left_out])
            predicted = predict(without, left_out.sub_batches, left_out.rows)
            errors.append(abs(predicted / left_out.step_s.median - 1))
    return _fit(alone).model_copy(update={"left_out_errors": errors})


def _fit(alone: list[Alone]) -> Fit:
    from scipy.optimize import least_squares, nnls  # slow to import: 0.25 s

    pieces = np.array([size.sub_batches for size in alone], dtype=float)
    rows = np.array([size.rows for size in alone], dtype=float)
    step = np.array([size.step_s.median for size in alone])
    compute = np.array([size.sub_batch_s.median for size in alone])
    (alpha, beta), _ = nnls(np.stack([1 / compute, rows / compute], axis=1), np.ones_like(rows))
    once = max(float(np.median(step - pieces * compute)), 0.0)

    # Minimizes the relative errors of sub-batch and step times. Times are in units of the longest sub-batch.
    unit = float(compute.max())

    def residuals(parameters: Any) -> Any:
        a, b, c, delta = parameters
        made = a * unit + b * unit * rows / rows.max()
        model = _core.StepTimeModel(a * unit, b * unit / rows.max(), c * unit, delta)
        whole = [model.step(size.sub_batches * size.rows, size.sub_batches) for size in alone]
        return np.concatenate([made / compute - 1, np.array(whole) / step - 1])

    start = np.clip([alpha / unit, beta * rows.max() / unit, once / unit, 1.0], 1e-9, None)
    found = least_squares(residuals, start, bounds=([0, 0, 0, 1], [np.inf, np.inf, np.inf, 16])).x
    memory = np.array([size.memory_bytes for size in alone], dtype=float)
    (fixed, per_row), _ = nnls(np.stack([np.ones_like(rows), rows], axis=1), memory)
    return Fit(
        alpha_s=found[0] * unit,
        beta_s=found[1] * unit / rows.max(),
        communication_s=found[2] * unit,
        delta=found[3],
        memory_fixed=fixed,
        memory_per_row=per_row,
        left_out_errors=[],
    )
