"""The outcomes of simulations as a table for the terminal and as a timeline for https://ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from torchshare.context.names import escaped
from torchshare.report.trace_events import trace_events
from torchshare.simulation.simulate import Outcome, swept

_IF_KNOWN = {  # further columns, where a row has the figure
    "deadlines": "deadlines",
    "rejected": "rejected",
    "missed": "missed",
    "met": "met",
    "avg_tardiness_s": "avg late",
    "max_tardiness_s": "max late",
    "avg_blocked_s": "avg blocked",
    "interruptions": "interrupted",
    "lost_gpu_s": "lost GPU s",
}
_MOST_USERS = 20  # in the table
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
    known = {name: title for name, title in _IF_KNOWN.items() if any(name in row for row in rows)}
    for title in known.values():
        lines.add_column(title, justify="right")
    for row in rows:
        against = against_baseline(row, rows, varied)
        lines.add_row(
            row["policy"],
            *(str(row[name]) for name in varied),
            f"{row['avg_jct_s']:,.0f}",
            "-" if against is None else f"{against:+.0%}",
            *(f"{row[name]:,.0f}" for name in ("median_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s")),
            f"{row['gpu_utilization']:.0%}",
            f"{row['shared_fraction']:.0%}",
            f"{row['preemptions']:,}",
            *(f"{row[name]:,.0f}" if name in row else "-" for name in known),
        )
    return lines


def users(rows: list[dict[str, Any]]) -> Table:
    """The GPU-hours of the users, those with most first, one column per row of `summarize`."""
    used = [row for row in rows if "user_gpu_s" in row]
    varied = swept(rows)
    total = {user: sum(row["user_gpu_s"].get(user, 0.0) for row in used) for row in used for user in row["user_gpu_s"]}
    most = sorted(total, key=lambda user: (-total[user], user))
    shown, others = most[:_MOST_USERS], most[_MOST_USERS:]
    lines = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    lines.add_column("GPU-hours")
    for row in used:
        lines.add_column(" ".join([row["policy"], *(str(row[name]) for name in varied)]), justify="right")

    def add(name: str, names: list[str]) -> None:
        hours = (sum(row["user_gpu_s"].get(each, 0.0) for each in names) / 3600 for row in used)
        lines.add_row(escaped(name), *(f"{each:,.1f}" for each in hours))

    for user in shown:
        add(user or "(none)", [user])
    if others:
        add(f"{len(others)} others", others)
    return lines


def against_baseline(row: Mapping[str, Any], rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> float | None:
    """Its mean completion time / that of the baseline in the same setting - 1; None if that was not simulated."""
    same = (each for each in rows if each["policy"] == BASELINE and all(each[name] == row[name] for name in varied))
    return next((float(row["avg_jct_s"] / each["avg_jct_s"] - 1) for each in same), None)


def timeline(outcome: Outcome) -> list[dict[str, Any]]:
    """The trace events of a simulation."""
    names = outcome.case.trace.names
    spans = [(names[job], begin, end, gpus) for job, begin, end, gpus in outcome.spans]
    return trace_events(spans, outcome.case.setting.gpus_per_node)
