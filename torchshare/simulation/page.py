"""The report of a simulation as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torchshare.report import figures, page
from torchshare.report.numbers import seconds
from torchshare.simulation import plots
from torchshare.simulation.papers import FIKIT, SETTING, Claim, Part, claim_cells, verdict
from torchshare.simulation.simulate import Outcome, swept
from torchshare.simulation.tables import BASELINE, against_baseline


def write_simulation(path: str | os.PathLike[str], outcomes: Sequence[Outcome], rows: Sequence[dict[str, Any]]) -> None:
    """Writes a page that compares the policies. Raises OSError on failure."""
    varied = swept(rows)
    has_deadlines = any("deadlines" in row for row in rows)
    with figures.styled():
        drawn = {"simulation": plots.simulation(outcomes, rows)}
    document = {
        "title": f"torchshare: {len({row['policy'] for row in rows})} policies, {rows[0]['jobs']} jobs, simulated",
        "verdict": [_kept(rows, varied) if has_deadlines else _verdict(rows, varied)],
        "has_deadlines": has_deadlines,
        "varied": varied,
        "rows": [{**row, "against_baseline": against_baseline(row, rows, varied)} for row in rows],
        "baseline": BASELINE,
        "environment": page.origin({}),
    }
    page.write(path, "simulation.html", document, drawn)


def write_papers(path: str | os.PathLike[str], tables: Sequence[Part], claims: Sequence[Claim]) -> None:
    """Writes a page with the tables of the papers. Raises OSError on failure."""
    with figures.styled():
        drawn = {"papers": plots.papers(tables)}
    document = {
        "title": "torchshare: the papers, simulated",
        "verdict": [verdict(tables)],
        "claims": claim_cells(claims),
        "parts": [
            {"name": part.name, "title": part.title, "note": part.note, "cells": part.cells()} for part in tables
        ],
        "setting": SETTING,
        "fikit": FIKIT,
        "environment": page.origin({}),
    }
    page.write(path, "papers.html", document, drawn)


def _kept(rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> str:
    best = max((row for row in rows if "deadlines" in row), key=lambda row: row["met"] / row["deadlines"])
    setting = _setting(best, varied)
    return f"Most deadlines, {best['met']} of {best['deadlines']}, are met with {best['policy']}{setting}."


def _setting(row: dict[str, Any], varied: Sequence[str]) -> str:
    return "".join(f" at {name.replace('_', ' ')} {row[name]}" for name in varied)


def _verdict(rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> str:
    best = min(rows, key=lambda row: row["avg_jct_s"])
    text = f"Jobs complete soonest, on average after {seconds(best['avg_jct_s'])}, with {best['policy']}"
    setting = _setting(best, varied)
    gain = against_baseline(best, rows, varied)
    if gain is None or best["policy"] == BASELINE:
        return f"{text}{setting}."
    return f"{text}{setting}: {1 + gain:.2f} times the average completion time of {BASELINE}."
