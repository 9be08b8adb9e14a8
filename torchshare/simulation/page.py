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
    best = min(rows, key=lambda row: row["avg_jct_s"])
    with figures.styled():
        drawn = {"simulation": plots.simulation(outcomes, rows)}
    document = {
        "title": f"torchshare: {len({row['policy'] for row in rows})} policies, {rows[0]['jobs']} jobs, simulated",
        "verdict": [_verdict(rows, best, varied)],
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


def _verdict(rows: Sequence[dict[str, Any]], best: dict[str, Any], varied: Sequence[str]) -> str:
    text = f"Jobs complete soonest, on average after {seconds(best['avg_jct_s'])}, with {best['policy']}"
    setting = "".join(f" at {name.replace('_', ' ')} {best[name]}" for name in varied)
    gain = against_baseline(best, rows, varied)
    if gain is None or best["policy"] == BASELINE:
        return f"{text}{setting}."
    return f"{text}{setting}: {1 + gain:.2f} times the average completion time of {BASELINE}."
