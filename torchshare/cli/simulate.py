"""`torchshare simulate`: simulates scheduling policies on a queue of jobs."""

from __future__ import annotations

import argparse
import json
import math
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchshare import _core
from torchshare.cli.outputs import check_figure, check_outputs, print_table, refuse, save_figure, write, write_timeline
from torchshare.cli.simulation_progress import with_progress
from torchshare.context.durations import parse_duration
from torchshare.context.names import escaped
from torchshare.simulation import tables
from torchshare.simulation.adaptdl import is_packaged, read_packaged
from torchshare.simulation.failures import parse_failures
from torchshare.simulation.generated import (
    MAX_JOBS,
    at_load,
    generate,
    parse_deadlines,
    parse_mix,
    with_deadlines,
)
from torchshare.simulation.job_trace import FORMATS, LARGEST_SPLIT, Limits, Trace, read_trace
from torchshare.simulation.ratios import Ratios, read_ratios, uniform
from torchshare.simulation.simulate import Case, Setting, Sweep, simulate_all, summarize

_MAX_GPUS = 1_000_000
_SHOWN = 60  # characters of a value in a message
_SUB_BATCHES = [2**power for power in range(LARGEST_SPLIT.bit_length())]


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = "Runs scheduling policies over traces of jobs on a simulated cluster, in virtual time."
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace",
        nargs="+",
        metavar="FILE",
        help="one or several traces; adaptdl:240/6 is the sixth of AdaptDL's workloads of 240 jobs (or 80, 160, 320), "
        "adaptdl:240 all eight",
    )
    source.add_argument("--generate", type=int, metavar="JOBS", help="generate a trace of so many jobs")
    parser.add_argument(
        "--load",
        type=float,
        metavar="RATIO",
        help="of the generated jobs: GPU time they need / of the cluster while they arrive (default: 1)",
    )
    parser.add_argument("--jobs-per-hour", type=float, metavar="N", help="rate of arrival, instead of --load")
    parser.add_argument(
        "--mix",
        metavar="MIX",
        help="sizes of the generated jobs: philly (default), adaptdl or GPUS:SHARE:MEDIAN_S:SIGMA,...; those that do "
        "not fit the cluster are left out",
    )
    parser.add_argument(
        "--deadlines",
        metavar="LOW-HIGH",
        help="give each job a deadline: its time alone times a number drawn from this range, such as 1.2-3",
    )
    parser.add_argument("--trace-format", choices=FORMATS, help=f"default: {FORMATS[0]}")
    parser.add_argument(
        "--runtimes", type=Path, metavar="FILE", help="durations of the applications in an adaptdl trace"
    )
    parser.add_argument("--skip-bad-rows", action="store_true", help="skip and count invalid rows")
    parser.add_argument("--gpus", type=int, default=64, metavar="N", help="GPUs of the cluster (default: %(default)s)")
    parser.add_argument("--gpus-per-node", type=int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--gpu-memory", type=float, default=0, metavar="GIB", help="memory of a GPU (default: unlimited)"
    )
    parser.add_argument(
        "--fixed-memory",
        type=float,
        metavar="SHARE",
        help="fraction of memory that does not scale with the sub-batch, unless a trace says it "
        f"(default: {Setting.fixed_memory})",
    )
    parser.add_argument(
        "--fixed-time",
        type=float,
        metavar="SHARE",
        help=f"cost of each further sub-batch / step time, unless a trace says it (default: {Setting.fixed_time})",
    )
    parser.add_argument(
        "--sub-batches",
        type=int,
        metavar="N",
        help="maximum number of sub-batches of a job that shares, if memory is limited; 1: none "
        f"(default: {Setting.largest_split})",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"all (default), or one of {', '.join(_core.cluster_policy_names())}; repeatable",
    )
    parser.add_argument(
        "--fair-users",
        metavar="HALF-LIFE",
        help="users, by the column user of the trace, come first who have had least of the cluster, GPUs or memory; "
        "what they had one half-life ago, such as 12h, counts half",
    )
    parser.add_argument(
        "--rank-by-path",
        action="store_true",
        help="pair-srsf ranks a job with the longest chain of jobs that waits for it, by the column after of the trace",
    )
    parser.add_argument(
        "--interference",
        default="1.1",
        metavar="RATIO|FILE",
        help="step time beside a partner / alone, or a CSV of job_a,job_b,xi_a,xi_b[,gpu] (default: %(default)s)",
    )
    parser.add_argument("--gpu-type", metavar="NAME", help="GPU type whose rows of the interference table to use")
    parser.add_argument(
        "--model-as",
        action="append",
        default=[],
        metavar="MODEL=OTHER",
        help="give a model of the trace the ratios of a model of the table; repeatable",
    )
    parser.add_argument(
        "--restart-cost", type=float, default=10, metavar="S", help="seconds to resume a job (default: %(default)s)"
    )
    parser.add_argument(
        "--failures",
        metavar="mtbf=TIME,repair=TIME|FILE",
        help="GPUs leave and return: mean times between two failures of the cluster and until what failed is back, and "
        "with nodes=SHARE the share of failures that take a node, such as mtbf=6h,repair=30m,nodes=0.2; or a CSV of "
        "leaves_s,returns_s,gpu,node",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="TIME",
        help="work of a job between its checkpoints, to which failures take it back (default: none, so that it begins "
        "again as of its last start)",
    )
    parser.add_argument(
        "--estimate-error",
        default="0",
        metavar="SIGMA|none",
        help="log-normal error of the durations that policies know; none: durations unknown (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of estimates, generated jobs, deadlines and failures (default: %(default)s)",
    )
    parser.add_argument(
        "--sweep", metavar="NAME=FROM:TO:STEP", help=f"run for each value of one of {', '.join(Sweep.NAMES)}"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON document")
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="draw job completion times and utilization")
    parser.add_argument("--timeline", type=Path, metavar="OUT.json", help="write a trace for https://ui.perfetto.dev")
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page that compares the policies")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code. Checks all input before the simulation."""
    try:
        setting = _setting(arguments)
        limits = Limits(setting.gpus, setting.gpu_memory_gib or math.inf)
        cases = _cases(arguments, setting, _with_deadlines(arguments, _traces(arguments, limits)))
        _check_outputs(arguments, cases)
        jobs = sum(len(case.trace.names) for case in cases)
        outcomes = with_progress(jobs, lambda progress: simulate_all(cases, progress))
    except ValueError as error:
        return refuse(error)
    rows = summarize(outcomes)
    _warn(cases)
    if arguments.json:
        print(json.dumps({"policies": rows}, indent=2))
    else:
        print_table(tables.table(rows))
        if any("user_gpu_s" in row for row in rows):
            print()
            print_table(tables.users(rows))
    status = 0
    if arguments.plot is not None:
        from torchshare.simulation import plots  # slow to import

        status |= write(arguments.plot, lambda path: save_figure(plots.simulation(outcomes, rows), path, dpi=110))
    if arguments.report is not None:
        from torchshare.simulation import page

        status |= write(arguments.report, lambda path: page.write_simulation(path, outcomes, rows))
    if arguments.timeline is not None:
        status |= write(arguments.timeline, lambda path: write_timeline(path, tables.timeline(outcomes[0])))
    return status


def _setting(arguments: argparse.Namespace) -> Setting:
    _in_range("--gpus", arguments.gpus, 1, _MAX_GPUS)
    _in_range("--gpus-per-node", arguments.gpus_per_node, 1, _MAX_GPUS)
    if arguments.gpus % arguments.gpus_per_node:
        raise ValueError(
            f"--gpus must be a multiple of the {arguments.gpus_per_node} GPUs per node, got {arguments.gpus}"
        )
    _in_range("--gpu-memory", arguments.gpu_memory, 0, 1e9)
    _in_range("--restart-cost", arguments.restart_cost, 0, 1e9)
    fractions = {"--fixed-memory": arguments.fixed_memory, "--fixed-time": arguments.fixed_time}
    for option, fraction in fractions.items():
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"{option} must be from 0 to 1, got {fraction:g}")
    if arguments.sub_batches not in (None, *_SUB_BATCHES):
        raise ValueError(
            f"--sub-batches must be one of {', '.join(map(str, _SUB_BATCHES))}, got {_short(arguments.sub_batches)}"
        )
    if not arguments.gpu_memory:
        _need("--gpu-memory", {**fractions, "--sub-batches": arguments.sub_batches})
    _in_range("--seed", arguments.seed, 0, 2**63)
    error = None
    if arguments.estimate_error != "none":
        try:
            error = float(arguments.estimate_error)
        except ValueError:
            raise ValueError(f"--estimate-error must be a number or none, got {arguments.estimate_error}") from None
        _in_range("--estimate-error", error, 0, 10)
    given = {
        "fixed_memory": arguments.fixed_memory,
        "fixed_time": arguments.fixed_time,
        "largest_split": arguments.sub_batches,
    }
    return Setting(
        gpus=arguments.gpus,
        gpus_per_node=arguments.gpus_per_node,
        gpu_memory_gib=arguments.gpu_memory,
        restart_cost=arguments.restart_cost,
        rank_by_path=arguments.rank_by_path,
        fair_half_life=_time("--fair-users", arguments.fair_users) if arguments.fair_users else 0.0,
        **_failures(arguments),
        estimate_error=error,
        seed=arguments.seed,
        **{name: value for name, value in given.items() if value is not None},
    )


def _failures(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a setting that are about failures."""
    if arguments.failures is None:
        _need("--failures", {"--checkpoint-every": arguments.checkpoint_every})
        return {}
    failures = parse_failures(arguments.failures, arguments.gpus, arguments.gpus_per_node, arguments.seed)
    if arguments.checkpoint_every is None:
        return {"failures": failures}
    return {"failures": failures, "checkpoint_every": _time("--checkpoint-every", arguments.checkpoint_every)}


def _time(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from None


def _in_range(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{option} must be from {least:g} to {most:g}, got {_short(value)}")


def _short(value: float) -> str:
    return reprlib.repr(value) if isinstance(value, int) else f"{value:g}"


def _traces(arguments: argparse.Namespace, limits: Limits) -> list[list[Trace]]:
    """The traces; a list of them per load."""
    sweep = _sweep(arguments)
    of_loads = sweep is not None and sweep.name == "load"
    swept = {"--sweep": arguments.sweep if of_loads else None}
    generator = {"--load": arguments.load, "--jobs-per-hour": arguments.jobs_per_hour, "--mix": arguments.mix}
    reading = {"--trace-format": arguments.trace_format, "--runtimes": arguments.runtimes}
    if arguments.generate is None:
        _need("--generate JOBS", {**generator, **swept})
        if all(map(is_packaged, arguments.trace)):
            _need("a --trace that is a file", reading)
        elif arguments.trace_format != "adaptdl":
            _need("--trace-format adaptdl", {"--runtimes": arguments.runtimes})
        return [[trace for text in arguments.trace for trace in _read(text, arguments, limits)]]
    _need("a --trace that is a file", reading)
    _need("--trace", {"--skip-bad-rows": arguments.skip_bad_rows or None})
    _in_range("--generate", arguments.generate, 1, MAX_JOBS)
    if (arguments.load is not None) + (arguments.jobs_per_hour is not None) + of_loads > 1:
        raise ValueError("--load, --jobs-per-hour and --sweep load exclude each other")
    if arguments.jobs_per_hour is not None:
        _in_range("--jobs-per-hour", arguments.jobs_per_hour, 1e-3, 1e9)
    loads = sweep.values if sweep is not None and of_loads else [1.0 if arguments.load is None else arguments.load]
    for load in loads:
        _in_range("--load", load, 1e-3, 1e3)
    mix = parse_mix("philly" if arguments.mix is None else arguments.mix)
    if mix is not None:
        table = None if _ratio(arguments) is not None else arguments.interference
        # Other mixes have neither memory nor models.
        _need("--mix adaptdl", {"--gpu-memory": arguments.gpu_memory or None, "--interference": table})
    rate = arguments.jobs_per_hour
    trace = generate(arguments.generate, limits, mix=mix, load=loads[0], jobs_per_hour=rate, seed=arguments.seed)
    return [[trace] if load == trace.load or rate is not None else [at_load(trace, load)] for load in loads]


def _with_deadlines(arguments: argparse.Namespace, traces: list[list[Trace]]) -> list[list[Trace]]:
    if arguments.deadlines is None:
        return traces
    factors = parse_deadlines(arguments.deadlines)
    return [[with_deadlines(trace, factors, arguments.seed) for trace in same_load] for same_load in traces]


def _need(other: str, options: Mapping[str, object]) -> None:
    """Raises ValueError for the first of these options that has a value, because it has no effect without `other`."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(
                f"{option} needs {other}, got {option}{'' if value is True else f' {value}'[:_SHOWN]} without it"
            )


def _read(text: str, arguments: argparse.Namespace, limits: Limits) -> list[Trace]:
    skip = arguments.skip_bad_rows
    if is_packaged(text):
        return read_packaged(text, limits, skip_bad_rows=skip)
    kind = arguments.trace_format or FORMATS[0]
    return [read_trace(Path(text), kind, limits, runtimes=arguments.runtimes, skip_bad_rows=skip)]


def _sweep(arguments: argparse.Namespace) -> Sweep | None:
    return Sweep.parse(arguments.sweep) if arguments.sweep else None


def _cases(arguments: argparse.Namespace, setting: Setting, traces: list[list[Trace]]) -> list[Case]:
    known = _core.cluster_policy_names()
    wanted = [name for text in arguments.policy or ["all"] for name in text.split(",")]
    unknown = [name for name in wanted if name not in [*known, "all"]]
    if unknown:
        raise ValueError(f"--policy must be all or one of {', '.join(known)}, got {unknown[0]}")
    policies = known if "all" in wanted else list(dict.fromkeys(wanted))
    sweep = _sweep(arguments)
    record = bool(arguments.plot or arguments.report or arguments.timeline)
    of_ratios = sweep is not None and sweep.name == "interference"
    if of_ratios or _ratio(arguments) is not None:
        table_only = {"--gpu-type": arguments.gpu_type, "--model-as": next(iter(arguments.model_as), None)}
        _need("a table as --interference", table_only)
    if sweep and of_ratios:
        points = [(f"{value:g}", uniform(value), setting) for value in sweep.values]
    else:
        ratios = _ratios(arguments)
        settings = [setting]
        if sweep and sweep.name != "load":
            settings = [sweep.apply(setting, value) for value in sweep.values]
        points = [(arguments.interference, ratios, each) for each in settings]
    if all(trace.after is None for same_load in traces for trace in same_load):
        _need("a --trace with the column after", {"--rank-by-path": arguments.rank_by_path or None})
    if all(trace.users is None for same_load in traces for trace in same_load):
        _need("a --trace with the column user", {"--fair-users": arguments.fair_users})
    for _, ratios, _ in points:
        for same_load in traces:
            for trace in same_load:
                ratios.rows(trace.models)
    return [
        Case(trace, policy, ratios, each, name, record and not sweep)
        for name, ratios, each in points
        for same_load in traces
        for policy in policies
        for trace in same_load
    ]


def _ratios(arguments: argparse.Namespace) -> Ratios:
    ratio = _ratio(arguments)
    if ratio is not None:
        return uniform(ratio)
    aliases = dict(_alias(text) for text in arguments.model_as)
    return read_ratios(Path(arguments.interference), arguments.gpu_type, aliases)


def _ratio(arguments: argparse.Namespace) -> float | None:
    """The ratio of all pairs; None if it is a table."""
    try:
        return float(arguments.interference)
    except ValueError:
        return None


def _alias(text: str) -> tuple[str, str]:
    model, equals, other = text.partition("=")
    if not (model and equals and other):
        raise ValueError(f"--model-as must be MODEL=OTHER, got {text}")
    return model, other


def _check_outputs(arguments: argparse.Namespace, cases: list[Case]) -> None:
    check_figure("--plot", arguments.plot)
    traces = [Path(text) for text in arguments.trace or [] if not is_packaged(text)]
    inputs = [*traces, Path(arguments.interference), *([arguments.runtimes] if arguments.runtimes else [])]
    inputs += [Path(arguments.failures)] if arguments.failures else []
    outputs = {"--plot": arguments.plot, "--report": arguments.report, "--timeline": arguments.timeline}
    check_outputs(outputs, inputs)
    if arguments.timeline is not None and len(cases) > 1:
        raise ValueError(f"--timeline needs a single simulation (one trace, one --policy), got {len(cases)}")


def _warn(cases: list[Case]) -> None:
    for trace in {case.trace.source: case.trace for case in cases}.values():
        if trace.bad_rows:
            first = escaped(trace.bad_rows[0])
            print(f"torchshare: skipped {len(trace.bad_rows)} bad rows, the first: {first}", file=sys.stderr)
        if trace.left_out:
            print(
                f"torchshare: left out {trace.left_out:.2%} of the mix, which do not fit the cluster", file=sys.stderr
            )
    raised = max(case.ratios.raised for case in cases)
    if raised:
        print(f"torchshare: raised {raised} ratios of the interference table to 1", file=sys.stderr)
