"""Plots of a plan."""

from __future__ import annotations

from matplotlib.figure import Figure

from torchshare.profiling.plan import DevicePlan


def gantt(plan: DevicePlan) -> Figure:
    """Gantt chart of a plan: bars of full height where a job runs alone, of half height beside another."""
    figure = Figure(figsize=(10, 1.2 + 0.45 * len(plan.ends)), layout="constrained")
    axes = figure.subplots()
    names = list(plan.ends)
    for piece in plan.pieces:
        alone = piece.partner is None
        axes.barh(
            names.index(piece.job),
            piece.end_s - piece.begin_s,
            left=piece.begin_s,
            height=0.7 if alone else 0.35,
            color=f"C{names.index(piece.job) % 10}",
            hatch=None if alone else "//",
            edgecolor="white",
        )
    axes.set(
        yticks=range(len(names)),
        yticklabels=names,
        xlabel="seconds from now (hatched: two at a time)",
        title=f"average completion {plan.average_s:,.4g} s; one after the other {plan.one_by_one_s:,.4g} s",
    )
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    return figure
