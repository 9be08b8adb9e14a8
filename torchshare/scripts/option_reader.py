"""Reads declared options: from flags, else from variables such as TORCHSHARE_MAX_SLOWDOWN, else from a jobs.toml."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchshare.runtime.declared import YES_NO, Declared, on_the_command_line, present_name
from torchshare.scripts import job_file, targets

_PREFIX = "TORCHSHARE_"


@dataclass(frozen=True)
class GivenOptions:
    targets: list[str]
    """[NAME=]TARGET each."""
    options: dict[str, Any]
    """The options that are not of a job."""
    _of_jobs: list[tuple[str | None, Declared, Any]]
    """Job (None: all jobs), option and value, the least important first."""

    def of(self, options: type) -> dict[str, Any]:
        """The options that a class declares."""
        return {
            each.name: self.options[each.name] for each in on_the_command_line(options) if each.name in self.options
        }

    def of_job(self, name: str | None, only_named: Collection[str] = ()) -> dict[str, Any]:
        """The options of a job, without those for all jobs that `only_named` has; of a job without a name, those for
        all jobs."""
        return {
            option.name: value
            for job, option, value in self._of_jobs
            if job == name or (job is None and option.name not in only_named)
        }

    def check_names(self, names: Collection[str]) -> None:
        """Raises ValueError if an option is for a job that is not among the names."""
        for job, option, _ in self._of_jobs:
            if job is not None:
                check_name(job, names, option.flag)


def check_name(name: str, names: Collection[str], flag: str) -> None:
    """Raises ValueError unless the name is among the names."""
    if name not in names:
        raise ValueError(f"{flag} names job '{name}', must be one of {', '.join(names) or 'those with NAME=TARGET'}")


class OptionReader:
    """Adds flags to a parser, and reads them."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self._options: dict[str, Declared] = {}
        self._of_jobs: dict[str, Declared] = {}

    def add(self, options: type, title: str) -> None:
        """Adds flags, as a group with that title."""
        group = self.parser.add_argument_group(title)
        for option in on_the_command_line(options):
            self._options[option.name] = option
            _add_flag(group, option)

    def add_jobs(self, options: type) -> None:
        """Adds targets, and the options that each of the jobs has."""
        self.parser.add_argument("jobs", nargs="+", metavar="[NAME=]TARGET", help=f"{targets.FORMS}; or a jobs.toml")
        text = "repeatable; apply to all jobs, or with NAME= to one job"
        group = self.parser.add_argument_group("options of jobs", text)
        for option in on_the_command_line(options):
            self._of_jobs[option.name] = option
            _add_flag(group, option, "[NAME=]")

    def read(self, arguments: argparse.Namespace, environment: Mapping[str, str]) -> GivenOptions:
        """Raises ValueError for a value that an option cannot have, and for a jobs.toml that cannot be read. Whether a
        job's options have good values is left to who submits the job."""
        known = [*self._options.values(), *self._of_jobs.values()]
        names = [*_names(self._options), *_names(self._of_jobs)]
        flags = [(name, text) for name in names for text in getattr(arguments, name) or ()]
        variables = [(name, text) for name in names if (text := environment.get(_PREFIX + name.upper())) is not None]
        file = self._file(getattr(arguments, "jobs", []))
        options: dict[str, Any] = {}
        of_jobs: list[tuple[str | None, Declared, Any]] = []
        for given in (file.options, variables, flags):
            source = [(present_name(name, known), text) for name, text in given]
            options |= {
                name: self._options[name].read(text, check=True) for name, text in source if name in self._options
            }
            of_jobs += sorted(self._named(source), key=lambda each: each[0] is not None)
        return GivenOptions(file.targets, options, of_jobs)

    def _file(self, jobs: list[str]) -> job_file.JobFile:
        files = [word for word in jobs if word.endswith(".toml")]
        if not files:
            return job_file.JobFile(jobs)
        if len(jobs) > 1:
            raise ValueError(f"{files[0]} must be the only target, got {len(jobs)}")
        return job_file.read(Path(files[0]), _names(self._options), _names(self._of_jobs))

    def _named(self, source: list[tuple[str, str]]) -> Iterator[tuple[str | None, Declared, Any]]:
        for name, text in source:
            if name in self._of_jobs:
                job, value = targets.split_name(text)
                yield job, self._of_jobs[name], self._of_jobs[name].read(value, check=False)


def _names(options: Mapping[str, Declared]) -> list[str]:
    """Former names first, so that present ones win."""
    return [*(each.option.former for each in options.values() if each.option.former), *options]


def _add_flag(group: argparse._ArgumentGroup, option: Declared, prefix: str = "") -> None:
    metavar = option.option.metavar
    keywords: dict[str, str] = {"nargs": "?", "const": "yes"} if metavar == YES_NO and not prefix else {}
    keywords |= {"dest": option.name, "action": "append", "metavar": f"{prefix}{metavar}", "help": option.flag_help}
    group.add_argument(option.flag, **keywords)  # type: ignore[arg-type]
    if option.former_flag is not None:
        keywords |= {"dest": str(option.option.former), "help": argparse.SUPPRESS}
        group.add_argument(option.former_flag, **keywords)  # type: ignore[arg-type]
