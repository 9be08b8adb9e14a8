"""`torchshare run`: two jobs from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchshare import _C, _signals, _targets
from torchshare._bound import BoundReport
from torchshare._errors import described
from torchshare._gaps import GapReport
from torchshare._outputs import check_output, refuse
from torchshare._progress import Progress
from torchshare._results import Result, Results
from torchshare._runtime import Runtime

_LOOK_S = 0.1  # how often the progress display looks at the jobs


def add_parser(verbs: Any) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "run",
        help="run jobs together in this process",
        description="Runs functions that take a Job, together in this process. The first is the primary.",
    )
    named = "; repeatable, for one job with NAME="
    parser.add_argument("jobs", nargs="+", metavar="[NAME=]TARGET", help="pkg.module:function or file.py:function")
    parser.add_argument("--primary", metavar="NAME", help="the job that is protected (default: the first)")
    parser.add_argument(
        "--start",
        action="append",
        default=[],
        metavar="[NAME=]WHEN",
        help=f"now, auto, after:JOB, step:K of the primary, or seconds; without NAME for all but the primary{named}",
    )
    parser.add_argument(
        "--sub-batch", action="append", default=[], metavar="[NAME=]N", help=f"rows that run at once{named}"
    )
    parser.add_argument(
        "--threads", action="append", default=[], metavar="[NAME=]N", help=f"intra-op threads (default: torch's){named}"
    )
    parser.add_argument("--steps", action="append", default=[], metavar="[NAME=]N", help=f"of the whole job{named}")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help=f"what `torchshare profile` measured, for --start auto{named}",
    )
    parser.add_argument("--device", default="auto", metavar="D", help="auto (default: a GPU if any), cpu, cuda, cuda:1")
    parser.add_argument("--max-wait", type=float, metavar="S", help="of an op, for the policy (default: no end)")
    parser.add_argument("--max-slowdown", type=float, metavar="X", help="bound on the primary's, 0.05 for 5 %%")
    parser.add_argument("--policy", choices=_C.gate_policy_names(), default="priority", help="who may enter an op")
    parser.add_argument("--timeline", type=Path, metavar="OUT.json", help="write a trace for https://ui.perfetto.dev")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON document")
    parser.set_defaults(run=run)


@dataclass
class _Submission:
    """The arguments of one Runtime.submit."""

    name: str
    function: Callable[..., Any]
    priority: str = "secondary"
    start: str | float = "now"
    sub_batch: int | None = None
    threads: int | None = None
    steps: int | None = None
    profile: str | None = None


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code. Everything that can be checked is, before any job starts."""
    try:
        submissions = _submissions(arguments)
        check_output("--timeline", arguments.timeline)
        runtime = Runtime(
            arguments.device,
            policy=arguments.policy,
            max_wait=arguments.max_wait,
            max_slowdown=arguments.max_slowdown,
        )
        for submission in submissions:
            runtime.submit(**vars(submission))
    except ValueError as error:
        return refuse(error)
    with _signals.deferred(forget=True) as stops:
        try:
            runtime.start()
        except (ValueError, RuntimeError) as error:
            runtime.close()
            return refuse(error)
        _watch(runtime, stops)
    if arguments.timeline is not None:
        runtime.write_timeline(arguments.timeline)
    bounds, gaps = runtime.bound_report(), runtime.gap_report()
    print(_as_json(runtime.results, bounds, gaps) if arguments.json else runtime.results)
    if (bounds or gaps) and not arguments.json:
        print("", *bounds, *gaps, sep="\n")
    if stops.count:
        return stops.exit_code
    return 0 if all(result.state == "finished" for result in runtime.results.values()) else 1


def _watch(runtime: Runtime, stops: _signals.Stops) -> None:
    """Shows the jobs until all have ended, by themselves or since a signal came."""
    with Progress(runtime) as progress:
        while not stops.count and not runtime._native.wait(_LOOK_S):
            progress.update()
        runtime.close()


def _submissions(arguments: argparse.Namespace) -> list[_Submission]:
    jobs: dict[str, _Submission] = {}
    for text in arguments.jobs:
        name, target = _targets.named(text)
        if name in jobs:
            raise ValueError(f"two jobs are named '{name}'; give one another name: NAME={target}")
        jobs[name] = _Submission(name, _targets.load(target))
    primary = arguments.primary or next(iter(jobs))
    _check_name(primary, jobs, "--primary")
    jobs[primary].priority = "primary"
    lower = [job for job in jobs.values() if job.name != primary]
    _apply("--start", arguments.start, jobs, lower, "start", str)
    _apply("--sub-batch", arguments.sub_batch, jobs, list(jobs.values()), "sub_batch", _whole_number)
    _apply("--steps", arguments.steps, jobs, list(jobs.values()), "steps", _whole_number)
    _apply("--profile", arguments.profile, jobs, list(jobs.values()), "profile", str)
    _apply("--threads", arguments.threads, jobs, list(jobs.values()), "threads", _whole_number)
    return list(jobs.values())


def _apply(
    option: str,
    texts: list[str],
    jobs: dict[str, _Submission],
    everybody: list[_Submission],
    field: str,
    convert: Callable[[str], Any],
) -> None:
    """Sets `field` from each `[NAME=]VALUE`; values without a name go to `everybody`, those with one come after."""
    for name, value in sorted(map(_targets.split_name, texts), key=lambda pair: pair[0] is not None):
        if name is not None:
            _check_name(name, jobs, option)
        try:
            converted = convert(value)
        except ValueError as error:
            raise ValueError(f"{option} {value}: {error}") from None
        for job in everybody if name is None else [jobs[name]]:
            setattr(job, field, converted)


def _check_name(name: str, jobs: dict[str, _Submission], option: str) -> None:
    if name not in jobs:
        raise ValueError(f"{option} names job '{name}'; expected one of {', '.join(jobs)}")


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def _as_json(results: Results, bounds: list[BoundReport], gaps: list[GapReport]) -> str:
    document = {
        "jobs": [_plain(result) for result in results.values()],
        "bounds": [dataclasses.asdict(bound) for bound in bounds],
        "gaps": [dataclasses.asdict(gap) for gap in gaps],
    }
    return json.dumps(document, indent=2)


def _plain(result: Result) -> dict[str, Any]:
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    del fields["value"]
    error = fields.pop("exception")
    return {**fields, "error": None if error is None else described(error)}
