"""`torchshare papers`: simulates the tables of the papers that torchshare implements."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from torchshare.cli.outputs import check_figure, check_outputs, print_table, refuse, save_figure, write
from torchshare.cli.simulation_progress import with_progress
from torchshare.durable.files import replacing
from torchshare.simulation import papers

_WIDTH = 110  # of texts, in characters


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Simulates the tables of SJF-BSBF (arXiv 2407.13088) on traces that come with torchshare, and says where its "
        "average is as far below as in the paper. Takes seconds."
    )
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page with the tables and plots")
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="draw the sweeps")
    parser.add_argument("--save", type=Path, metavar="OUT.json", help="write the figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    try:
        check_figure("--plot", arguments.plot)
        check_outputs({"--report": arguments.report, "--plot": arguments.plot, "--save": arguments.save})
        tables = papers.parts()
        jobs = sum(part.jobs for part in tables)
        tables = with_progress(jobs, lambda progress: papers.simulate_parts(tables, progress))
    except ValueError as error:
        return refuse(error)
    claims = papers.claims(tables)
    _print(tables, claims)
    status = 0
    if arguments.save is not None:
        document = {
            "claims": [dataclasses.asdict(claim) for claim in claims],
            "tables": {part.name: {"title": part.title, "rows": part.figures()} for part in tables},
        }
        status |= write(arguments.save, lambda path: _save(path, document))
    if arguments.plot is not None:
        from torchshare.simulation import plots  # slow to import

        status |= write(arguments.plot, lambda path: save_figure(plots.papers(tables), path, dpi=90))
    if arguments.report is not None:
        from torchshare.simulation import page

        status |= write(arguments.report, lambda path: page.write_papers(path, tables, claims))
    return status


def _save(path: Path, document: Mapping[str, object]) -> None:
    with replacing(path) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode())


def _print(tables: list[papers.Part], claims: list[papers.Claim]) -> None:
    print(_filled(papers.SETTING))
    for part in tables:
        print(f"\n{part.title}")
        if part.note:
            print(_filled(part.note))
        print_table(_table(part.cells()))
    print("\nWhat the paper says, and what is found here")
    print(_filled(papers.verdict(tables)))
    print_table(_table(papers.claim_cells(claims), left=4))
    print(_filled(papers.FIKIT))


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH)


def _table(cells: list[list[str]], left: int = 1) -> Table:
    """The first `left` columns are texts."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, heading in enumerate(cells[0]):
        table.add_column(heading, justify="left" if index < left else "right")
    for line in cells[1:]:
        table.add_row(*line)
    return table
