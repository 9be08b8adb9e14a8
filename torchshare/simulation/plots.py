"""Plots of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from torchshare.simulation.papers import Part
from torchshare.simulation.simulate import Outcome, swept

_BINS = 60  # intervals of time that utilization is averaged over
_FIRST_TRACE = 0  # utilization is plotted for one trace: an average would represent none


def simulation(outcomes: Sequence[Outcome], rows: Sequence[dict[str, Any]]) -> Figure:
    """Job completion times and utilization of every policy; for a sweep, the average over the swept values."""
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    settings = swept(rows)  # at most one
    if settings:
        for axes, name, title in ((left, "avg_jct_s", "average JCT"), (right, "p99_jct_s", "p99 JCT")):
            _sweep(axes, rows, settings[0], name)
            axes.set(
                xlabel=settings[0].replace("_", " "),
                ylabel=f"{title} (s)",
                title=f"{title}, {rows[0]['traces']} trace(s)",
            )
            axes.grid(alpha=0.3)
    else:
        _completion(left, outcomes)
        _utilization(right, outcomes)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=11, frameon=False, fontsize=9)
    return figure


def papers(tables: Sequence[Part]) -> Figure:
    """Average JCT over the ratio, for each workload, and over the load."""
    sweeps = [part for part in tables if part.varied in ("ratio", "load")]
    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(2, -(-len(sweeps) // 2)).ravel()
    for axes, part in zip(panels, sweeps, strict=True):
        _sweep(axes, part.rows, part.varied, "avg_jct_s")
        axes.set(xlabel=part.varied, title=part.title.partition(":")[0], yscale="log")
        axes.set_ylabel("average JCT (s)")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=9, frameon=False)
    return figure


def _policies(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(outcome.case.policy for outcome in outcomes))


def _completion(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for policy in _policies(outcomes):
        jct = np.sort(np.concatenate([outcome.jct for outcome in outcomes if outcome.case.policy == policy]))
        # A rejected job never completes: the curve ends below 1.
        axes.plot(jct, np.arange(1, len(jct) + 1) / len(jct), label=policy)
    axes.set(xscale="log", xlabel="JCT (s)", ylabel="fraction of jobs completed", title="Job completion time")
    axes.grid(alpha=0.3)


def _utilization(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for policy in _policies(outcomes):
        outcome = [outcome for outcome in outcomes if outcome.case.policy == policy][_FIRST_TRACE]
        if not outcome.usage:  # every job was rejected
            continue
        time, busy, shared, _ = np.array(outcome.usage).T
        ends = np.linspace(time[0], time[-1], _BINS + 1)
        jobs = np.concatenate([[0.0], np.cumsum((busy + shared)[:-1] * np.diff(time))])  # GPU-seconds until each time
        average = np.diff(np.interp(ends, time, jobs)) / np.diff(ends)
        axes.stairs(100 * average / outcome.case.setting.gpus, ends / 3600, label=policy, baseline=None, lw=1.2)
    axes.set(
        xlabel="time (h)", ylabel="jobs on GPUs, % of the GPUs", title="Utilization (above 100 %: GPUs with two jobs)"
    )
    axes.grid(alpha=0.3)


def _sweep(axes: Axes, rows: Sequence[dict[str, Any]], setting: str, name: str) -> None:
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        values = [float(row[setting]) for row in mine]
        (line,) = axes.plot(values, [row[name] for row in mine], marker=".", label=policy)
        if mine[0]["traces"] > 1:
            low, high = np.array([row[f"{name}_spread"] for row in mine]).T
            axes.fill_between(values, low, high, color=line.get_color(), alpha=0.08)
