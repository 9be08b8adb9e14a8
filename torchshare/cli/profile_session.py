"""Measures for `torchshare profile`, and keeps what was measured as it goes."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchshare.cli.outputs import complain, refuse
from torchshare.cli.profile_cache import keep, with_former_partners
from torchshare.context.errors import JobFailed
from torchshare.context.names import escaped
from torchshare.profiles.profile import Profile
from torchshare.profiling.measure import Measuring
from torchshare.profiling.measurement import Candidate
from torchshare.scripts.scratch import WorkingFolder

File = tuple[Path | None, Callable[[Path], object]]
"""A path, and the function that writes the file."""

_MAX_NAMED = 5  # files


@dataclass(frozen=True)
class Subject:
    """A job to profile, and the files for it."""

    candidate: Candidate
    cached: Path | None
    output: Path | None
    trace: Path | None

    @property
    def unfinished(self) -> Path | None:
        """Has what was measured until all is."""
        return None if self.cached is None else self.cached.with_name(f"{self.cached.stem}.measured.json")

    @property
    def is_unfinished(self) -> bool:
        return self.unfinished is not None and self.unfinished.exists()


class Session:
    def __init__(
        self,
        arguments: argparse.Namespace,
        subjects: list[Subject],
        known: list[Profile | None],
        place: WorkingFolder,
    ) -> None:
        """`known` are the cached profiles. Raises ValueError for invalid arguments."""
        self._subjects, self._known, self._place = subjects, known, place
        self._has_files = not has_traces(subjects)
        self._known_in_full = [
            profile is not None and not each.is_unfinished for profile, each in zip(known, subjects, strict=True)
        ]
        self._measuring = Measuring(
            [subject.candidate for subject in subjects],
            splits=arguments.splits,
            window=arguments.window,
            rounds=arguments.rounds,
            files=[each.unfinished if self._has_files else None for each in subjects],
            go_on=not arguments.again,
            around=place.entered,
        )

    def measure(self) -> int:
        """Returns the exit code, after printing why it is not 0 and what is missing."""
        least, most = self._measuring.runs
        print(f"torchshare: each job runs {least} to {most} times, {escaped(str(self._place))}", file=sys.stderr)
        if self._measuring.kept:
            print(
                f"torchshare: going on from {self._measuring.kept} kept measurements; pass --again to start anew",
                file=sys.stderr,
            )
        try:
            for line in self._measuring:
                print(escaped(line), file=sys.stderr)
                self._save()
        except ValueError as error:
            status = refuse(error)
        except JobFailed as error:
            print(f"torchshare: {escaped(str(error))}", file=sys.stderr)
            status = 1
        except OSError as error:  # of the working folder
            complain(str(error))
            status = 1
        except KeyboardInterrupt:
            print(f"torchshare: interrupted{'' if self._measuring.kept else '; nothing was written'}", file=sys.stderr)
            status = 130
        else:
            status = 0
        self._tell(status)
        return status

    def found(self) -> list[Profile]:
        """The profiles, with what was measured beside other partners before."""
        return [profile for profile in self._profiles() if profile is not None]

    def files(self) -> list[File]:
        """What is to be written at the end."""
        files: list[File] = []
        if not self._has_files:
            traces = self._measuring.traces()
            files += [(each.trace, trace.save) for each, trace in zip(self._subjects, traces, strict=True)]
        found = list(zip(self._subjects, self.found(), strict=True))
        files += [(each.cached, functools.partial(keep, profile)) for each, profile in found]
        return files + [(each.output, profile.save) for each, profile in found]

    def _profiles(self) -> list[Profile | None]:
        return [
            None if profile is None else with_former_partners(profile, former)
            for profile, former in zip(self._measuring.profiles(), self._known, strict=True)
        ]

    def _save(self) -> None:
        """Writes the profiles so far, but no cached one over one with more. At the end it is said what cannot be."""
        for subject, profile, in_full in zip(self._subjects, self._profiles(), self._known_in_full, strict=True):
            for path in (subject.output, None if in_full else subject.cached):
                if profile is not None and path is not None:
                    with contextlib.suppress(OSError):
                        keep(profile, path)

    def _tell(self, status: int) -> None:
        """What is missing, and what the jobs have changed."""
        count, is_kept = self._measuring.kept, self._has_files and self._subjects[0].cached is not None
        if status and count:
            print(
                f"torchshare: {'kept' if is_kept else 'measured'} {count} measurement{'s' * (count > 1)}, missing: "
                f"{escaped(self._measuring.missing())}{'; the same command goes on from there' if is_kept else ''}",
                file=sys.stderr,
            )
        own = [path for each in self._subjects for path in (each.cached, each.unfinished, each.output, each.trace)]
        changed = self._place.changes({os.path.realpath(path) for path in own if path is not None})
        if changed:
            more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
            print(
                "torchshare: changed meanwhile, by an absolute path or through a link: "
                f"{escaped(', '.join(changed[:_MAX_NAMED]))}{more}",
                file=sys.stderr,
            )


def has_traces(subjects: list[Subject]) -> bool:
    """Traces are not cached."""
    return any(each.trace is not None for each in subjects)
