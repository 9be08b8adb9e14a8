"""`torchshare profile`: measures a job, alone and beside another."""

from __future__ import annotations

import argparse
import functools
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from torchshare.cli.outputs import check_outputs, print_table, refuse, write
from torchshare.context.cache import CacheUnusable, own_folder
from torchshare.context.errors import JobFailed
from torchshare.context.names import escaped, file_stem
from torchshare.profiles.ops import Ops
from torchshare.profiles.profile import Profile, device_name
from torchshare.profiling.measure import Candidate, measure
from torchshare.scripts import targets
from torchshare.scripts.output import Output

_Files = list[tuple[Path, Callable[[Path], object]]]  # each with what writes it


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
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: torchshare/profiles in the user's cache")
    parser.add_argument("--again", action="store_true", help="measure even if the cache has the profile")
    parser.add_argument("--output", type=Path, metavar="OUT.json", help="also write the job's profile here")
    parser.add_argument("--partner-output", type=Path, metavar="OUT.json", help="that of the partner")
    parser.add_argument("--trace", type=Path, metavar="OUT.npz", help="write the job's op trace, for `replay`")
    parser.add_argument("--partner-trace", type=Path, metavar="OUT.npz", help="that of the partner")
    parser.add_argument("--json", action="store_true", help="print the profile as one JSON document")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class _Subject:
    """A job to profile, and the files for it."""

    candidate: Candidate
    cached: Path | None
    output: Path | None
    trace: Path | None


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code. Prints the results before it writes files."""
    try:
        _check_outputs(arguments)
        subjects = _subjects(arguments)
        known = _known(arguments, subjects)
        found = _all_known(subjects, known)
        files: _Files = []
        if found is None:
            found, files = _measured(arguments, subjects, known)
    except ValueError as error:
        return refuse(error)
    except JobFailed as error:
        print(f"torchshare: {escaped(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("torchshare: interrupted; nothing was written", file=sys.stderr)
        return 130
    if arguments.json:
        print(found[0].model_dump_json(indent=2))
    else:
        for profile in found:
            _show(profile)
    sys.stdout.flush()
    files += [(each.output, profile.save) for each, profile in zip(subjects, found, strict=True) if each.output]
    return max((_write(path, save) for path, save in files), default=0)


def _write(path: Path, save: Callable[[Path], object]) -> int:
    status = write(path, save)
    if status == 0:
        print(f"wrote {path}", file=sys.stderr)
    return status


def _check_outputs(arguments: argparse.Namespace) -> None:
    options = ("output", "partner_output", "trace", "partner_trace")
    paths = {f"--{option.replace('_', '-')}": getattr(arguments, option) for option in options}
    for name, path in paths.items():
        if path is not None and name.startswith("--partner") and arguments.partner is None:
            raise ValueError(f"{name} needs a partner, pass --with")
    given = [text for text in (arguments.job, arguments.partner) if text is not None]
    check_outputs(paths, filter(None, map(targets.source_file, given)))


def _subjects(arguments: argparse.Namespace) -> list[_Subject]:
    threads = torch.get_num_threads() if arguments.threads is None else arguments.threads
    given = [(arguments.job, threads, arguments.steps, arguments.output, arguments.trace)]
    if arguments.partner is not None:
        partner_threads = arguments.partner_threads or threads
        given.append(
            (arguments.partner, partner_threads, arguments.partner_steps, arguments.partner_output,
             arguments.partner_trace)
        )  # fmt: skip
    folder, subjects = _cache(arguments.cache), []
    for text, each_threads, steps, output, trace in given:
        name, target = targets.split_name(text)
        name = name or targets.default_name(target)
        candidate = Candidate(name, targets.load(target, Output(all_to_stderr=True)), each_threads, steps=steps)
        cached = None if folder is None else cache_path(folder, name, target, each_threads, arguments.splits)
        subjects.append(_Subject(candidate, cached, output, trace))
    return subjects


def _cache(given: Path | None) -> Path | None:
    """The folder of cached profiles; None, after a warning, if there can be none."""
    if given is not None:
        if given.exists() and not given.is_dir():
            raise ValueError(f"--cache must be a folder, got {given}")
        return given
    try:
        return own_folder("profiles")
    except CacheUnusable as reason:
        print(f"torchshare: profiles are not cached: {escaped(str(reason))}", file=sys.stderr)
        return None


def _known(arguments: argparse.Namespace, subjects: list[_Subject]) -> list[Profile | None]:
    """The cached profiles; None for a job that has none."""
    if arguments.again or any(each.trace is not None for each in subjects):  # traces are not cached
        return [None for _ in subjects]
    return [_cached(each.cached, each.candidate) for each in subjects]


def _all_known(subjects: list[_Subject], known: list[Profile | None]) -> list[Profile] | None:
    """The profiles, if all are known, with the ratios of the pair."""
    found = [profile for profile in known if profile is not None]
    partners = [subject.candidate.name for subject in subjects[1:]]
    if len(found) < len(subjects) or not {partner.job for partner in found[0].partners}.issuperset(partners):
        return None
    print("torchshare: using cached profiles; pass --again to measure", file=sys.stderr)
    return [
        profile.model_copy(update={"steps": subject.candidate.steps or profile.steps})
        for subject, profile in zip(subjects, found, strict=True)
    ]


def _measured(
    arguments: argparse.Namespace, subjects: list[_Subject], known: list[Profile | None]
) -> tuple[list[Profile], _Files]:
    """New profiles, and the files of the cache and of traces."""
    measured, traces = measure(
        [subject.candidate for subject in subjects],
        splits=arguments.splits,
        window=arguments.window,
        rounds=arguments.rounds,
        report=lambda line: print(escaped(line), file=sys.stderr),
    )
    found = [_with_former_partners(profile, former) for profile, former in zip(measured, known, strict=True)]
    files: _Files = [
        (subject.trace, trace.save) for subject, trace in zip(subjects, traces, strict=True) if subject.trace
    ]
    for subject, profile in zip(subjects, found, strict=True):
        if subject.cached is not None:
            files.append((subject.cached, functools.partial(_keep, profile)))
    return found, files


def _keep(profile: Profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.save(path)


def cache_path(folder: Path, name: str, target: str, threads: int, splits: int) -> Path:
    """One file per job, device, number of threads and splits."""
    place, _, function = target.rpartition(":") if targets.is_function(target) else (".", "", target)
    where = str(Path(place).resolve()) if place.endswith((".", ".py")) else place
    key = "\n".join([name, where, function, device_name(), str(threads), str(splits)])
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return folder / f"{file_stem(name)}-{digest[:12]}.json"


def _cached(path: Path | None, candidate: Candidate) -> Profile | None:
    """The cached profile; None, after printing why, if it is of another device, torch version or code."""
    if path is None or not path.exists():
        return None
    try:
        profile = Profile.load(path)
        refusal = profile.refusal(candidate.function)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        print(f"torchshare: measuring '{escaped(candidate.name)}' again: {escaped(refusal)}", file=sys.stderr)
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
