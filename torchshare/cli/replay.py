"""`torchshare replay`: simulates gate policies on recorded ops of jobs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import reprlib
from pathlib import Path
from typing import Any

from rich.table import Table

from torchshare import _C, _core
from torchshare.cli.outputs import print_table, refuse
from torchshare.profiles.ops import OpTrace
from torchshare.profiling.replay import JobReplay, Machine, replay

_MAX_CORES = 65536


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Replays op traces, made by `torchshare profile --trace`. The first job is the primary, the "
        "second the secondary; further jobs have lower priorities."
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE.npz")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"all (default), or one of {', '.join(_core.gate_policy_names())}; repeatable",
    )
    parser.add_argument("--cores", type=int, metavar="N", help="default: this machine's")
    parser.add_argument("--grace", type=float, default=Machine.grace_s, metavar="S", help="default: %(default)s")
    parser.add_argument(
        "--no-device-priority", action="store_true", help="share cores evenly, without SCHED_IDLE for lower jobs"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    known = _core.gate_policy_names()
    wanted = [name for text in arguments.policy or ["all"] for name in text.split(",")]
    try:
        unknown = [name for name in wanted if name not in [*known, "all"]]
        if unknown:
            raise ValueError(f"--policy must be all or one of {', '.join(known)}, got {unknown[0]}")
        if arguments.cores is not None and not 1 <= arguments.cores <= _MAX_CORES:
            raise ValueError(f"--cores must be from 1 to {_MAX_CORES}, got {reprlib.repr(arguments.cores)}")
        if not 0 <= arguments.grace <= 1:
            raise ValueError(f"--grace must be between 0 and 1 seconds, got {arguments.grace:g}")
        traces = [OpTrace.load(path) for path in arguments.traces]
        machine = this_machine(arguments.cores, not arguments.no_device_priority, arguments.grace)
        policies = known if "all" in wanted else list(dict.fromkeys(wanted))
        found = {policy: replay(traces, policy, machine) for policy in policies}
    except ValueError as error:
        return refuse(error)
    if arguments.json:
        print(json.dumps({name: [_plain(job) for job in jobs] for name, jobs in found.items()}, indent=2))
    else:
        _show(found)
    return 0


def this_machine(cores: int | None = None, device_priority: bool = True, grace_s: float = Machine.grace_s) -> Machine:
    """This machine, with the cost of waking a thread measured now."""
    wake = _C.measure_wake_cost()
    return Machine(
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
        shortest_gap_s=wake.shortest_gap_s,
        wake_latency_s=wake.latency_s,
        device_priority=device_priority,
        grace_s=grace_s,
    )


def _plain(job: JobReplay) -> dict[str, Any]:
    return {**dataclasses.asdict(job), "ratio": job.ratio}


def _show(found: dict[str, list[JobReplay]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("policy", "job", "priority"):
        table.add_column(heading)
    for heading in ("alone ms", "step ms", "ratio", "steps", "waited s"):
        table.add_column(heading, justify="right")
    for policy, jobs in found.items():
        for job in jobs:
            step = "-" if job.step_s is None else f"{1e3 * job.step_s:.2f}"
            ratio = "-" if job.ratio is None else f"{job.ratio:.2f}"
            alone = f"{1e3 * job.step_alone_s:.2f}"
            table.add_row(policy, job.job, job.priority, alone, step, ratio, str(job.steps), f"{job.waited_s:.2f}")
    print_table(table)
