"""`torchshare plan`: plans from profiles when jobs share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import reprlib
from pathlib import Path

from rich.table import Table

from torchshare.cli.outputs import check_figure, check_outputs, print_table, refuse, save_figure, write
from torchshare.context.durations import EXPECTED, is_duration, parse_duration
from torchshare.context.names import escaped
from torchshare.profiles.profile import Profile
from torchshare.profiling.plan import DevicePlan, PlanSettings, check_settings, plan, write_ratios
from torchshare.profiling.server_plan import ServerPlan, has_server, plan_server
from torchshare.profiling.workflow_plan import WorkflowPlan, plan_workflow
from torchshare.scripts import workflow_file

_GIB = 2**30
_DIGITS = 12
_NOT_OF_WORKFLOWS = "steps", "done", "memory", "max_slowdown", "deadline", "suspend_cost", "png", "ratios"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Plans from profiles, made by `torchshare profile`. Two: when should the second job start beside "
        "the first, which is running? If one answers requests: for how much of the time may the other run? More: in "
        "which order and pairs should waiting jobs run, at most two at a time? With --workflow: how many requests "
        "should each stage answer at a time, beside which job, and by when?"
    )
    parser.add_argument("profiles", nargs="*", type=Path, metavar="PROFILE.json")
    parser.add_argument(
        "--steps", action="append", default=[], metavar="JOB=N", help="steps of a job (default: its profile's)"
    )
    parser.add_argument("--done", action="append", default=[], metavar="JOB=N", help="steps that a job has done")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory of the device (default: unlimited)")
    parser.add_argument(
        "--max-slowdown", type=float, metavar="X", help="bound on the running job's slowdown, 0.05 for 5 %%"
    )
    parser.add_argument(
        "--deadline", action="append", default=[], metavar="JOB=TIME", help="of a job, from now, such as train=2h"
    )
    parser.add_argument(
        "--slo", metavar="PROMISE", help="about a server's latencies, such as 'p99<20ms' (default: its profile's)"
    )
    parser.add_argument(
        "--workflow", type=Path, metavar="FILE.toml", help="stages that answer requests, their profiles and the rate"
    )
    parser.add_argument(
        "--suspend-cost", type=float, default=0.0, metavar="S", help="seconds to suspend and resume a job"
    )
    parser.add_argument("--png", type=Path, metavar="OUT.png", help="draw the plan")
    parser.add_argument("--ratios", type=Path, metavar="OUT.csv", help="write the table for `simulate --interference`")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    if arguments.workflow is not None:
        return _run_workflow(arguments)
    try:
        check_figure("--png", arguments.png)
        check_outputs({"--png": arguments.png, "--ratios": arguments.ratios}, arguments.profiles)
        if len(arguments.profiles) < 2:
            raise ValueError(f"plan needs at least two profiles, got {'one' if arguments.profiles else 'none'}")
        profiles = [Profile.load(path) for path in arguments.profiles]
        settings = _settings(arguments)
        check_settings(profiles, settings)
        found: DevicePlan | ServerPlan
        if has_server(profiles):
            if arguments.png is not None:
                raise ValueError("--png draws no plan beside a job that answers requests: it has no end")
            if settings.deadlines:
                raise ValueError("--deadline must be of a job that trains, got one beside a job that answers requests")
            steps = {each.job: settings.steps.get(each.job, each.steps) for each in profiles}
            found = plan_server(profiles, arguments.slo, settings.max_slowdown, steps)
        elif arguments.slo is not None:
            raise ValueError("--slo needs the profile of a job that answers requests, got none")
        else:
            found = plan(profiles, settings)
    except ValueError as error:
        return refuse(error)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    elif isinstance(found, ServerPlan):
        _show_server(found)
    else:
        _show(found)
    status = 0
    if arguments.png is not None and isinstance(found, DevicePlan):
        from torchshare.profiling import plots  # slow to import

        status |= write(arguments.png, lambda path: save_figure(plots.gantt(found), path, dpi=120))
    if arguments.ratios is not None:
        status |= write(arguments.ratios, lambda path: write_ratios(profiles, path))
    return status


def _run_workflow(arguments: argparse.Namespace) -> int:
    try:
        other = next((name for name in _NOT_OF_WORKFLOWS if getattr(arguments, name)), None)
        if other is not None or arguments.profiles:
            got = "PROFILE.json" if other is None else f"--{other.replace('_', '-')}"
            raise ValueError(f"--workflow must be alone or with --slo and --json, got {got}")
        if arguments.slo is None:
            raise ValueError("--workflow needs --slo, such as 'p99<200ms'")
        found = plan_workflow(workflow_file.read(arguments.workflow), arguments.slo)
    except ValueError as error:
        return refuse(error)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _show_workflow(found)
    return 0


def _settings(arguments: argparse.Namespace) -> PlanSettings:
    return PlanSettings(
        steps=dict(_count("--steps", text) for text in arguments.steps),
        done=dict(_count("--done", text) for text in arguments.done),
        memory=None if arguments.memory is None else arguments.memory * _GIB,
        max_slowdown=arguments.max_slowdown,
        deadlines=dict(_deadline(text) for text in arguments.deadline),
        suspend_cost=arguments.suspend_cost,
    )


def _count(option: str, text: str) -> tuple[str, int]:
    job, equals, value = text.rpartition("=")
    if not (equals and job and value.isascii() and value.isdecimal() and len(value) <= _DIGITS):
        wanted = f"JOB=N with a non-negative integer N of at most {_DIGITS} digits"
        raise ValueError(f"{option} must be {wanted}, got {reprlib.repr(text)}")
    return job, int(value)


def _deadline(text: str) -> tuple[str, float]:
    job, equals, value = text.rpartition("=")
    if not (equals and job and is_duration(value)):
        raise ValueError(f"--deadline must be JOB=TIME with {EXPECTED}, got {reprlib.repr(text)}")
    return job, parse_duration(value)


def _show_workflow(found: WorkflowPlan) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in (
        "stage",
        "max_batch",
        "max_wait s",
        "beside",
        "latency ms",
        "ends by ms",
        "slo",
        "GPU ms per request",
    ):
        table.add_column(title, justify="left" if title in ("stage", "beside", "slo") else "right")
    for each in found.stages:
        times = [f"{1e3 * time:.2f}" for time in (each.latency_s, each.ends_by_s)]
        partner, wait = escaped(each.partner or "-"), f"{each.max_wait_s:.4g}"
        cost = f"{1e3 * each.cost_s:.3g}"
        table.add_row(escaped(each.stage), str(each.batch), wait, partner, *times, each.slo, cost)
    print(escaped(found.decision), flush=True)
    print_table(table)
    lines = [f"A request takes {1e3 * found.cost_s:.3g} ms of GPU time that no other job uses."]
    if not found.exact:
        lines.append("The search was cut short; there may be cheaper plans.")
    print("", *lines, *(f"- {escaped(reason)}" for reason in found.reasons), sep="\n")


def _show_server(found: ServerPlan) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in (f"{escaped(found.other)} may run", "its speed", "latency p50", "p95", "p99 ms", "late"):
        table.add_column(title, justify="right")
    for each in found.forecasts:
        times = [f"{1e3 * time:.2f}" for time in (each.p50_s, each.p95_s, each.p99_s)]
        late = "-" if each.late is None else f"{each.late:.2%}"
        table.add_row(f"{100 * each.share:.3g}%", f"{each.speed:.2f}", *times, late)
    print(escaped(found.decision), flush=True)
    print_table(table)
    print("", *(f"- {escaped(reason)}" for reason in found.reasons), sep="\n")


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
        *(f"- {escaped(reason)}" for reason in found.reasons),
    ]
    if not found.exact:
        lines.insert(1, "The search was cut short; there may be better plans.")
    print("", *lines, sep="\n")
