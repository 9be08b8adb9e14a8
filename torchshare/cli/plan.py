"""`torchshare plan`: when to share, from profiles."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from rich.table import Table

from torchshare.cli.outputs import check_output, print_table, refuse
from torchshare.profiles.profile import Profile
from torchshare.profiling.plan import DevicePlan, PlanSettings, plan, write_ratios

_GIB = 2**30


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Two profiles: the first job runs, the second is new; when should it start? More: all wait; in "
        "which order and pairs should they run? At most two at a time. Profiles come from `torchshare profile`."
    )
    parser.add_argument("profiles", nargs="+", type=Path, metavar="PROFILE.json")
    parser.add_argument(
        "--steps", action="append", default=[], metavar="JOB=N", help="steps of a job (default: its profile's)"
    )
    parser.add_argument("--done", action="append", default=[], metavar="JOB=N", help="steps that it has done")
    parser.add_argument("--memory", type=float, metavar="GIB", help="of the device (default: no limit)")
    parser.add_argument("--max-slowdown", type=float, metavar="X", help="bound on the running job's, 0.05 for 5 %%")
    parser.add_argument("--suspend-cost", type=float, default=0.0, metavar="S", help="seconds to suspend and resume")
    parser.add_argument("--png", type=Path, metavar="OUT.png", help="draw the plan")
    parser.add_argument("--ratios", type=Path, metavar="OUT.csv", help="write the table for `simulate --interference`")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    try:
        check_output("--png", arguments.png)
        check_output("--ratios", arguments.ratios)
        if len(arguments.profiles) < 2:
            raise ValueError("one profile; expected two or more to plan with")
        profiles = [Profile.load(path) for path in arguments.profiles]
        settings = PlanSettings(
            steps=dict(_count("--steps", text) for text in arguments.steps),
            done=dict(_count("--done", text) for text in arguments.done),
            memory=None if arguments.memory is None else arguments.memory * _GIB,
            max_slowdown=arguments.max_slowdown,
            suspend_cost=arguments.suspend_cost,
        )
        found = plan(profiles, settings)
    except ValueError as error:
        return refuse(error)
    if arguments.png is not None:
        from torchshare.profiling import plots  # matplotlib takes a while to load, and only this needs it

        plots.gantt(found).savefig(arguments.png, dpi=120)
    if arguments.ratios is not None:
        write_ratios(profiles, arguments.ratios)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _show(found)
    return 0


def _count(option: str, text: str) -> tuple[str, int]:
    job, equals, value = text.rpartition("=")
    if not (equals and job and value.isdecimal()):
        raise ValueError(f"{option} {text}: expected JOB=N with a whole number, at least 0")
    return job, int(value)


def _show(found: DevicePlan) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=found.decision, title_justify="left")
    for title in ("job", "beside"):
        table.add_column(title)
    for title in ("sub-batches", "from s", "to s"):
        table.add_column(title, justify="right")
    for piece in found.pieces:
        times = [f"{time:,.1f}" for time in (piece.begin_s, piece.end_s)]
        table.add_row(piece.job, piece.partner or "-", str(piece.sub_batches), *times)
    print_table(table)
    gain = 1 - found.average_s / found.one_by_one_s if found.one_by_one_s > 0 else 0.0
    lines = [
        f"Average completion {found.average_s:,.1f} s; one after the other, shortest first, "
        f"{found.one_by_one_s:,.1f} s ({gain:.0%} less).",
        *(f"- {reason}" for reason in found.reasons),
    ]
    if not found.exact:
        lines.insert(1, "The search was cut short: this is the best it found, there may be better.")
    print("", *lines, sep="\n")
