"""`torchshare profile`: measures a job, alone and beside another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from torchshare.cli.outputs import check_outputs, refuse, write
from torchshare.cli.profile_cache import cache_folder, cache_path, cached
from torchshare.cli.profile_session import File, Session, Subject, has_traces
from torchshare.cli.profile_table import show
from torchshare.profiles.profile import Profile
from torchshare.profiling.measurement import Candidate
from torchshare.scripts import targets
from torchshare.scripts.output import Output
from torchshare.scripts.scratch import SCRATCH, WorkingFolder


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Runs a job repeatedly for a few seconds: alone in smaller and smaller sub-batches, then as the "
        "primary beside another job. Profiles are cached until the job's file, torch or the device changes. What was "
        "measured before a failure is kept: the same command goes on from there."
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
        "--cwd",
        default=SCRATCH,
        metavar=f"DIR|{SCRATCH}",
        help="where the jobs run: in a folder, or each time in a new copy of this one, so that they overwrite nothing "
        "(default: %(default)s)",
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: torchshare/profiles in the user's cache")
    parser.add_argument("--again", action="store_true", help="measure again what the cache has")
    parser.add_argument("--output", type=Path, metavar="OUT.json", help="also write the job's profile here")
    parser.add_argument("--partner-output", type=Path, metavar="OUT.json", help="that of the partner")
    parser.add_argument("--trace", type=Path, metavar="OUT.npz", help="write the job's op trace, for `replay`")
    parser.add_argument("--partner-trace", type=Path, metavar="OUT.npz", help="that of the partner")
    parser.add_argument("--json", action="store_true", help="print the profile as one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code. Prints the results before it writes files."""
    try:
        _check_outputs(arguments)
        place = WorkingFolder(arguments.cwd)
        subjects = _subjects(arguments, place)
        known = _known(arguments, subjects)
        found = _all_known(subjects, known)
        if found is not None:
            return _finish(arguments, found, [(each.output, p.save) for each, p in zip(subjects, found, strict=True)])
        session = Session(arguments, subjects, known, place)
    except ValueError as error:
        return refuse(error)
    status = session.measure()
    return status or _finish(arguments, session.found(), session.files())


def _finish(arguments: argparse.Namespace, found: list[Profile], files: list[File]) -> int:
    if arguments.json:
        print(found[0].model_dump_json(indent=2))
    else:
        for profile in found:
            show(profile)
    sys.stdout.flush()
    return max((_write(path, save) for path, save in files if path is not None), default=0)


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


def _subjects(arguments: argparse.Namespace, place: WorkingFolder) -> list[Subject]:
    threads = torch.get_num_threads() if arguments.threads is None else arguments.threads
    given = [(arguments.job, threads, arguments.steps, arguments.output, arguments.trace)]
    if arguments.partner is not None:
        partner_threads = arguments.partner_threads or threads
        given.append(
            (arguments.partner, partner_threads, arguments.partner_steps, arguments.partner_output,
             arguments.partner_trace)
        )  # fmt: skip
    folder, subjects = cache_folder(arguments.cache), []
    for text, each_threads, steps, output, trace in given:
        name, target = targets.split_name(text)
        name = name or targets.default_name(target)
        function = targets.load(target, Output(all_to_stderr=True))
        path = cache_path(folder, name, target, each_threads, arguments.splits, place.key) if folder else None
        key = "" if path is None else path.name
        subjects.append(Subject(Candidate(name, function, each_threads, steps=steps, key=key), path, output, trace))
    return subjects


def _known(arguments: argparse.Namespace, subjects: list[Subject]) -> list[Profile | None]:
    """The cached profiles; None for a job that has none."""
    if arguments.again or has_traces(subjects):
        return [None for _ in subjects]
    return [cached(each.cached, each.candidate) for each in subjects]


def _all_known(subjects: list[Subject], known: list[Profile | None]) -> list[Profile] | None:
    """The profiles, if all are known, with the ratios of the pair."""
    found = [profile for profile in known if profile is not None]
    partners = [subject.candidate.name for subject in subjects[1:]]
    if len(found) < len(subjects) or not {partner.job for partner in found[0].partners}.issuperset(partners):
        return None
    if any(each.is_unfinished for each in subjects):
        return None
    print("torchshare: using cached profiles; pass --again to measure", file=sys.stderr)
    return [
        profile.model_copy(update={"steps": subject.candidate.steps or profile.steps})
        for subject, profile in zip(subjects, found, strict=True)
    ]
