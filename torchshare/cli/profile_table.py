"""Profiles as tables."""

from __future__ import annotations

from rich.table import Table

from torchshare.cli.outputs import print_table
from torchshare.profiles.ops import Ops
from torchshare.profiles.profile import Profile
from torchshare.profiles.requests import ServedAlone

_ENOUGH_REQUESTS = 100


def _described(ops: Ops) -> str:
    repeats = f"repeat after {ops.per_step}" if ops.per_step else "do not repeat"
    return (
        f"ops {repeats}; gaps between them are {ops.gap_share:.0%} of the time; timing each changed a step by "
        f"{ops.measuring_cost:+.1%}"
    )


def _table(title: str, *headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _steps(profile: Profile) -> Table:
    title = f"{profile.job}: batches of {profile.batch}, {profile.threads} thread(s), on {profile.device}"
    headings = ("sub-batches", "rows", "steps", "step ms", "quartiles", "sub-batch ms", "memory MiB", "left-out error")
    table = _table(title, *headings)
    errors = [f"{error:.0%}" for error in profile.fit.left_out_errors] or ["-"] * len(profile.alone)
    for alone, error in zip(profile.alone, errors, strict=True):
        step = alone.step_s
        table.add_row(
            str(alone.sub_batches),
            str(alone.rows),
            str(alone.steps),
            f"{1e3 * step.median:.2f}",
            f"{1e3 * step.q25:.2f}-{1e3 * step.q75:.2f}",
            f"{1e3 * alone.sub_batch_s.median:.2f}",
            f"{alone.memory_bytes / 2**20:.1f}",
            error,
        )
    return table


def _requests(profile: Profile, alone: ServedAlone) -> Table:
    """The requests to a job, alone and beside each other job."""
    title = f"{profile.job}: {profile.threads} thread(s), on {profile.device}"
    table = _table(title, "beside", "requests", "per s", "load", "service ms", "latency p50", "p95", "p99 ms")
    rows = [("-", alone.times), *((each.job, each.requests.times) for each in profile.partners if each.requests)]
    for name, times in rows:
        load = "back to back" if times.is_back_to_back else f"{times.load:.2f}"
        figures = [f"{1e3 * time:.2f}" for time in (times.mean_s, *times.latency_s)]
        table.add_row(name, str(times.answered), f"{times.per_s:.1f}", load, *figures)
    return table


def show(profile: Profile) -> None:
    print_table(_steps(profile) if profile.requests is None else _requests(profile, profile.requests))
    if profile.requests is not None and profile.requests.slo is not None:
        print(f"measured without its promise, {profile.requests.slo}")
    if profile.requests is not None and profile.requests.times.answered < _ENOUGH_REQUESTS:
        print("few requests: measure for longer with --window, so that p99 says something")
    if profile.ops is not None:
        print(_described(profile.ops))
    for partner in profile.partners:
        title = f"{profile.job} as the {partner.role} beside {partner.job}"
        table = _table(title, "sub-batches", f"{partner.job}'s", "ratio", f"{partner.job}'s ratio")
        for pair in partner.beside:
            least = ">= " if pair.starved else ""
            table.add_row(
                str(pair.sub_batches),
                str(pair.partner_sub_batches),
                f"{pair.ratio:.2f}",
                f"{least}{pair.partner_ratio:.2f}",
            )
        print_table(table)
    print()
