"""Profiles as tables."""

from __future__ import annotations

from rich.table import Table

from torchshare.cli.outputs import print_table
from torchshare.profiles.ops import Ops
from torchshare.profiles.profile import Profile


def _described(ops: Ops) -> str:
    repeats = f"repeat after {ops.per_step}" if ops.per_step else "do not repeat"
    return (
        f"ops {repeats}; gaps between them are {ops.gap_share:.0%} of the time; timing each changed a step by "
        f"{ops.measuring_cost:+.1%}"
    )


def show(profile: Profile) -> None:
    title = f"{profile.job}: batches of {profile.batch}, {profile.threads} thread(s), on {profile.device}"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    headings = ("sub-batches", "rows", "steps", "step ms", "quartiles", "sub-batch ms", "memory MiB", "left-out error")
    for heading in headings:
        table.add_column(heading, justify="right")
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
    print_table(table)
    if profile.ops is not None:
        print(_described(profile.ops))
    for partner in profile.partners:
        title = f"{profile.job} as the {partner.role} beside {partner.job}"
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
        for heading in ("sub-batches", f"{partner.job}'s", "ratio", f"{partner.job}'s ratio"):
            table.add_column(heading, justify="right")
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
