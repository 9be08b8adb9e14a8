"""Reports of a simulation, for the terminal and for https://ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from torchshare.report.trace_events import trace_events
from torchshare.simulation.simulate import Outcome, swept

BASELINE = "tiresias"  # the policy that the table compares with, if it was simulated


def table(rows: list[dict[str, Any]]) -> Table:
    """One line per row of `summarize`, with a column for the swept parameter."""
    lines = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        title=f"{rows[0]['traces']} trace(s), {rows[0]['jobs']} jobs; times in seconds",
        title_justify="left",
    )
    lines.add_column("policy")
    varied = swept(rows)
    for title in varied:
        lines.add_column(title.replace("_", " "), justify="right")
    for title in (
        "avg JCT",
        f"vs {BASELINE}",
        "median",
        "p99",
        "makespan",
        "avg queue",
        "GPUs busy",
        "shared",
        "preempted",
    ):
        lines.add_column(title, justify="right")
    for row in rows:
        baseline = baseline_of(row, rows, varied)
        lines.add_row(
            row["policy"],
            *(str(row[name]) for name in varied),
            f"{row['avg_jct_s']:,.0f}",
            f"{row['avg_jct_s'] / baseline['avg_jct_s'] - 1:+.0%}" if baseline else "-",
            *(f"{row[name]:,.0f}" for name in ("median_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s")),
            f"{row['gpu_utilization']:.0%}",
            f"{row['shared_fraction']:.0%}",
            f"{row['preemptions']:,}",
        )
    return lines


def baseline_of(row: Mapping[str, Any], rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> dict[str, Any] | None:
    """The row of the baseline in the same setting, if it was simulated."""
    return next((r for r in rows if r["policy"] == BASELINE and all(r[n] == row[n] for n in varied)), None)


def timeline(outcome: Outcome) -> list[dict[str, Any]]:
    """The trace events of a simulation."""
    names = outcome.case.trace.names
    spans = [(names[job], begin, end, gpus) for job, begin, end, gpus in outcome.spans]
    return trace_events(spans, outcome.case.setting.gpus_per_node)
