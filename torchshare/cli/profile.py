"""`torchshare profile`: measures a job, alone and beside another."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import torch
from rich.table import Table

from torchshare.cli import targets
from torchshare.cli.outputs import check_output, print_table, refuse
from torchshare.context.cache import cache_folder
from torchshare.context.errors import JobFailed
from torchshare.profiles.ops import Ops
from torchshare.profiles.profile import Profile, device_name
from torchshare.profiling.measure import Candidate, measure
from torchshare.scripts.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Runs a job repeatedly for a few seconds: alone in smaller and smaller sub-batches, then as the "
        "primary beside another job. Profiles are cached until the job's file, torch or the device changes."
    )
    parser.add_argument("job", metavar="[NAME=]TARGET", help=targets.FORMS)
    parser.add_argument("--with", dest="partner", metavar="[NAME=]TARGET", help="the secondary to run beside it")
    parser.add_argument("--threads", type=int, metavar="N", help="intra-op threads (default: torch's)")
    parser.add_argument("--partner-threads", type=int, metavar="N", help="those of the partner (default: as --threads)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of the whole job, for plans")
    parser.add_argument("--partner-steps", type=int, metavar="N", help="those of the partner")
    parser.add_argument(
        "--splits",
        type=int,
        default=3,
        metavar="N",
        help="sub-batch sizes to measure: B, B/2, B/4, ... (default: %(default)s)",
    )
    parser.add_argument(
        "--window", type=float, default=2.0, metavar="S", help="seconds per measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, metavar="N", help="repetitions of all measurements (default: %(default)s)"
    )
    parser.add_argument(
        "--cache", type=Path, default=cache_folder("profiles"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--again", action="store_true", help="measure even if the cache has the profile")
    parser.add_argument("--output", type=Path, metavar="OUT.json", help="also write the job's profile here")
    parser.add_argument("--partner-output", type=Path, metavar="OUT.json", help="that of the partner")
    parser.add_argument("--trace", type=Path, metavar="OUT.npz", help="write the job's op trace, for `replay`")
    parser.add_argument("--partner-trace", type=Path, metavar="OUT.npz", help="that of the partner")
    parser.add_argument("--json", action="store_true", help="print the profile as one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    try:
        for option in ("output", "partner_output", "trace", "partner_trace"):
            name, path = f"--{option.replace('_', '-')}", getattr(arguments, option)
            check_output(name, path)
            if path is not None and option.startswith("partner") and arguments.partner is None:
                raise ValueError(f"{name} needs a partner, pass --with")
        found, paths = _profiles(arguments)
    except ValueError as error:
        return refuse(error)
    except JobFailed as error:
        print(f"torchshare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("torchshare: interrupted; nothing was written", file=sys.stderr)
        return 130
    outputs = (arguments.output, arguments.partner_output)
    wanted = [(profile, path) for profile, path in zip(found, outputs, strict=False) if path is not None]
    for profile, path in wanted:
        profile.save(path)
    if arguments.json:
        print(found[0].model_dump_json(indent=2))
    else:
        for profile in found:
            _show(profile)
    for path in [*(path for _, path in wanted), *paths]:
        print(f"wrote {path}", file=sys.stderr)
    return 0


def _profiles(arguments: argparse.Namespace) -> tuple[list[Profile], list[Path]]:
    """The profiles and their files: from the cache if it has all of them, else measured."""
    threads = torch.get_num_threads() if arguments.threads is None else arguments.threads
    wanted = [(arguments.job, threads, arguments.steps)]
    if arguments.partner is not None:
        wanted.append((arguments.partner, arguments.partner_threads or threads, arguments.partner_steps))
    candidates, paths = [], []
    for text, each_threads, steps in wanted:
        given, target = targets.split_name(text)
        name = given or targets.default_name(target)
        candidates.append(Candidate(name, targets.load(target, Output(all_to_stderr=True)), each_threads, steps=steps))
        paths.append(cache_path(arguments.cache, name, target, each_threads, arguments.splits))
    traces = (arguments.trace, arguments.partner_trace)
    again = arguments.again or any(path is not None for path in traces)  # traces are not cached
    known = [_cached(path, each) for path, each in zip(paths, candidates, strict=True)] if not again else []
    first = known[0] if known else None
    if first is not None and all(known):
        partner = candidates[1].name if len(candidates) > 1 else None
        if partner is None or any(each.job == partner for each in first.partners):
            print("torchshare: using cached profiles; pass --again to measure", file=sys.stderr)
            found = [
                each.model_copy(update={"steps": candidate.steps or each.steps})
                for each, candidate in zip(known, candidates, strict=True)
                if each is not None
            ]
            return found, paths
    found, recorded = measure(
        candidates,
        splits=arguments.splits,
        window=arguments.window,
        rounds=arguments.rounds,
        report=lambda line: print(line, file=sys.stderr),
    )
    arguments.cache.mkdir(parents=True, exist_ok=True)
    for trace, path in zip(recorded, traces, strict=False):
        if path is not None:
            trace.save(path)
    for index, path in enumerate(paths):
        found[index] = _with_former_partners(found[index], known[index] if known else None)
        found[index].save(path)
    return found, paths


def cache_path(folder: Path, name: str, target: str, threads: int, splits: int) -> Path:
    """One file per job, device, number of threads and splits."""
    place, _, function = target.rpartition(":") if targets.is_function(target) else (".", "", target)
    where = str(Path(place).resolve()) if place.endswith((".", ".py")) else place
    key = "\n".join([name, where, function, device_name(), str(threads), str(splits)])
    return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def _cached(path: Path, candidate: Candidate) -> Profile | None:
    """The cached profile; None, after printing why, if it is of another device, torch version or code."""
    if not path.exists():
        return None
    try:
        profile = Profile.load(path)
        refusal = profile.refusal(candidate.function)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        print(f"torchshare: measuring '{candidate.name}' again: {refusal}", file=sys.stderr)
        return None
    return profile


def _with_former_partners(profile: Profile, former: Profile | None) -> Profile:
    """Keeps earlier measurements beside other partners."""
    if former is None:
        return profile
    new = {partner.job for partner in profile.partners}
    kept = [partner for partner in former.partners if partner.job not in new]
    return profile.model_copy(update={"partners": [*profile.partners, *kept]})


def _described(ops: Ops) -> str:
    repeats = f"repeat after {ops.per_step}" if ops.per_step else "do not repeat"
    return (
        f"ops {repeats}; gaps between them are {ops.gap_share:.0%} of the time; timing each changed a step by "
        f"{ops.measuring_cost:+.1%}"
    )


def _show(profile: Profile) -> None:
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
