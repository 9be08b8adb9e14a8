"""What pairs.py measured, as figures: relative rates, summaries, tables, and whether the targets are reached."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.table import Table

sys.path.append(str(Path(__file__).parents[1]))

from record import shown, spread

SOLO, TWO, MPS = "alone-torchshare", "processes", "processes-mps"
BOUNDED = {f"torchshare-bound-{bound:.0%}": ({"max_slowdown": bound}, {}) for bound in (0.02, 0.1)}
OURS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"torchshare-{policy}": ({"policy": policy}, {}) for policy in ("priority", "strict", "best_fit")},
    "torchshare-graphs": ({}, {}),
    **{f"torchshare-sms-{sms}": ({}, {"sms": sms}) for sms in (16, 48)},
    **BOUNDED,
}  # mode: options of the runtime, and of the secondary
TARGET_PAIR = "shufflenet-512+same"
MIN_PRIMARY, MIN_SHARE = 0.98, 0.20  # XSched's target for that pair: rates of the two jobs over those alone
MAX_OVERHEAD = 0.01
Figures = dict[str, float]
Outcome = list[Figures] | dict[str, str]  # of each job; or {"error": text}


def relative(repetition: dict[str, Outcome], mode: str) -> list[float] | None:
    """The jobs' rates over those alone; None where one of the two is not known."""
    alone, shared = repetition["alone"], repetition.get(mode)
    if not isinstance(alone, list) or not isinstance(shared, list):
        return None
    return [there["rate"] / here["rate"] for there, here in zip(shared, alone, strict=False)]


def summary(repetitions: list[dict[str, Outcome]]) -> dict[str, Any]:
    """Figures per mode over the repetitions in which it and the jobs alone did not fail."""
    found: dict[str, Any] = {}
    for mode in repetitions[0]:
        runs = [(r, rates) for r in repetitions if (rates := relative(r, mode)) is not None]
        if not runs:
            errors = [o["error"] for r in repetitions for o in (r.get(mode), r["alone"]) if isinstance(o, dict)]
            found[mode] = {"error": errors[0]}
            continue
        slowdown = spread([1 / rates[0] for _, rates in runs])
        figures: dict[str, Any] = {"repetitions": len(runs), "primary_slowdown": slowdown}
        for index, job in zip(range(len(runs[0][1])), ("primary", "secondary"), strict=False):
            for name in ("rate", "step_ms", "p99_ms"):
                figures[f"{job}_{name}"] = spread([r[mode][index][name] for r, _ in runs])
        if mode not in ("alone", SOLO):
            figures["secondary_share"] = spread([b for _, (_, b) in runs])
            figures["aggregate"] = spread([sum(rates) for _, rates in runs])
            versus = [sum(rates) / sum(two) for r, rates in runs if (two := relative(r, TWO))]
            figures |= {"vs_processes": spread(versus)} if versus else {}
        found[mode] = figures
    one = spread([1.0])  # while the primary runs, the secondary waits
    found["in-turn"] = {"primary_slowdown": one, "secondary_share": spread([0.0]), "aggregate": one}
    return found


def targets(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each target: the mode that comes nearest, its number, and whether that is enough."""

    def medians(mode: str, figure: str) -> list[tuple[float, str]]:
        """Of that mode, with the pair, wherever it was measured; the least first."""
        return sorted((m[mode][figure]["median"], pair) for pair, m in summaries.items() if figure in m.get(mode, {}))

    def line(target: str, found: list[tuple[float, str]]) -> str:
        """From (by how much it is missed, at most 0 where it is reached; what was found) of each candidate."""
        missed, what = min(found, default=(0.0, ""))
        return f"{target}: " + (f"{'reached' if missed <= 0 else 'NOT reached'}: {what}" if what else "not measured")

    lines = []
    for pair in (pair for pair in summaries if pair.startswith(TARGET_PAIR)):
        found = []
        for mode, figures in summaries[pair].items():
            if mode in OURS and "error" not in figures:
                primary, share = 1 / figures["primary_slowdown"]["median"], figures["secondary_share"]["median"]
                found.append((max(MIN_PRIMARY - primary, MIN_SHARE - share), f"{mode} {primary:.3f}, {share:.2f}"))
        lines.append(line(f"XSched's target, primary >= {MIN_PRIMARY}, secondary >= {MIN_SHARE:.2f}, on {pair}", found))
    ratios = {mode: medians(mode, "vs_processes") for mode in OURS}
    everywhere = {mode: each[0] for mode, each in ratios.items() if len(each) == len(medians(TWO, "aggregate")) > 0}
    found = [
        (1 - least, f"{mode} {least:.2f} times, at worst, on {pair}") for mode, (least, pair) in everywhere.items()
    ]
    lines.append(line("aggregate >= two processes on every pair", found))
    found = [
        (most - 1 - MAX_OVERHEAD, f"{most - 1:.1%}, at worst, on {pair}")
        for most, pair in medians(SOLO, "primary_slowdown")[-1:]
    ]
    return [*lines, line(f"solo overhead <= {MAX_OVERHEAD:.0%}", found)]


def table(name: str, modes: dict[str, Any]) -> Table:
    columns = {
        "primary slowdown": ("primary_slowdown", 3), "secondary share": ("secondary_share", 2),
        "aggregate": ("aggregate", 2), "vs processes": ("vs_processes", 2),
        "primary ms": ("primary_step_ms", 2), "p99 ms": ("primary_p99_ms", 2),
        "secondary ms": ("secondary_step_ms", 2), "p99  ms": ("secondary_p99_ms", 2),
    }  # fmt: skip
    drawn = Table("mode", *columns, title=name)
    for mode, figures in modes.items():
        cells = [shown(figures[key], digits) if key in figures else "-" for key, digits in columns.values()]
        drawn.add_row(mode, *(["failed"] if "error" in figures else cells))
    return drawn
