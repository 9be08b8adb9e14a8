"""Charts of reports."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchshare.report.numbers import Numbers

_POINTS = 300  # of a curve
_INK = "#010203"  # replaced by the page's text color
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "torchshare",
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify_threshold": 0.5,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Within it, figures are made as a page needs them, whatever the program has set in matplotlib."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def curve_id(chart: str, curve: int) -> str:
    """The id in the page of what a chart shows of its n-th job or policy."""
    return f"{chart}.{curve}"


@styled()
def svg(name: str, figure: Figure) -> str:
    """The figure as an element of a page. Ids in it begin with `name`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Type": None})
    element = text.getvalue()[text.getvalue().index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL).replace(_INK, "currentColor")
    # Ids are those of the page: matplotlib repeats its own in each figure.
    element = re.sub(r'(id="|href="#|url\(#)((?!\w+\.\d+")[\w]+)', rf"\g<1>{name}-\g<2>", element)
    size = re.compile(r'(<svg[^>]*?) (?:width|height)="[^"]*"')
    element = size.sub(r"\1", size.sub(r"\1", element))
    return element.replace("<svg", '<svg role="img"', 1)


@styled()
def throughput(edges: Numbers, rates: Sequence[Numbers]) -> Figure:
    """Steps per second of each job, in the intervals between `edges` (seconds)."""
    figure, axes = _axes("s since the start", "steps/s")
    for job, rate in enumerate(rates):
        axes.stairs(rate, edges, baseline=None, color=f"C{job}", lw=1.3, gid=curve_id("throughput", job))
    axes.set_ylim(bottom=0)
    return figure


@styled()
def memory(edges: Numbers, most: Sequence[Numbers], budgets: Sequence[float | None]) -> Figure:
    """The most that each job held in the intervals between `edges`, stacked, and the sums of the budgets. Bytes."""
    figure, axes = _axes("s since the start", "MiB")
    below: Numbers = np.zeros(len(edges) - 1)
    limit = 0.0
    for job, (held, budget) in enumerate(zip(most, budgets, strict=True)):
        top = below + np.asarray(held) / 2**20
        axes.stairs(top, edges, baseline=below, fill=True, color=f"C{job}", alpha=0.6, gid=curve_id("memory", job))
        below = top
        limit += math.nan if budget is None else budget / 2**20
        if not math.isnan(limit):
            axes.axhline(limit, color=f"C{job}", ls="--", lw=1)
    axes.set_ylim(bottom=0)
    return figure


@styled()
def bound(times: Sequence[float], slowdowns: Sequence[float], limit: float, end: float) -> Figure:
    """The primary's slowdown in each window of a run that took `end` seconds, and its limit."""
    figure, axes = _axes("s since the start", "slowdown")
    axes.plot(times, slowdowns, ".", color=_INK, ms=4)
    axes.axhline(limit, color="C3", ls="--", lw=1)
    axes.set_xlim(0, end)
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    return figure


@styled()
def waits(edges: Numbers, counts: Sequence[Numbers]) -> Figure:
    """Histograms of waits at the gate; `edges` in seconds, each a multiple of the last."""
    figure, axes = _axes("length of a wait", "waits")
    for job, count in enumerate(counts):
        axes.stairs(count, edges, fill=True, color=f"C{job}", alpha=0.6, gid=curve_id("waits", job))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter("s"))
    return figure


@styled()
def latencies(curves: Sequence[tuple[int, Numbers, Numbers]], limits: Sequence[tuple[int, float, float]]) -> Figure:
    """How many requests took longer than a time.

    Args:
        curves: of each job, its number and the latencies (seconds) alone, dotted, and beside others.
        limits: number, seconds and quantile of each promise.
    """
    figure, axes = _axes("latency", "requests that took longer")
    for job, *sides in curves:
        for chart, style, times in zip(("latencies_alone", "latencies"), (":", "-"), sides, strict=True):
            if len(times) > 0:
                slowest = np.unique(np.geomspace(1, len(times), _POINTS).astype(int))
                at = np.sort(times)[-slowest]
                axes.step(
                    at, slowest / len(times), style, where="post", color=f"C{job}", lw=1.3, gid=curve_id(chart, job)
                )
    for job, limit, quantile in limits:
        axes.axvline(limit, color=f"C{job}", ls="--", lw=1, gid=curve_id("latencies_slo", job))
        axes.plot([limit], [1 - quantile], "o", color=f"C{job}", ms=5)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter("s"))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    return figure


@styled()
def lanes(bars: Sequence[tuple[int, float, float, int]]) -> Figure:
    """Two lanes per device. Bars: lane, begin and length in seconds, and the number of the job."""
    devices = max(lane for lane, *_ in bars) // 2 + 1
    figure, axes = _axes("s since the start", "device")
    figure.set_figheight(1.0 + 0.35 * min(devices, 40))
    for lane, begin, length, job in bars:
        axes.barh(lane // 2 + 0.22 * (2 * (lane % 2) - 1), length, left=begin, height=0.4, color=f"C{job % 10}")
    axes.set_yticks(range(devices))
    axes.invert_yaxis()
    return figure


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.2)
    return figure, axes
