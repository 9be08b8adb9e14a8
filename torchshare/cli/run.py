"""`torchshare run`: runs jobs from the command line."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchshare.cli import outcome, supervisor
from torchshare.cli.outputs import check_outputs, complain, refuse
from torchshare.cli.queue import RESIDENT, Queue, queue
from torchshare.context.names import escaped
from torchshare.context.rank import this_rank
from torchshare.runtime.options import YES_NO, Declared, JobOptions, RuntimeOptions, on_the_command_line
from torchshare.scripts import command_line, targets
from torchshare.scripts.job_file import words_of_environment, words_of_file
from torchshare.scripts.output import Output
from torchshare.scripts.script import Script

if TYPE_CHECKING:
    from torchshare.runtime import signals
    from torchshare.runtime.runtime import Runtime

log = logging.getLogger("torchshare")

_CTRL_C = 130  # the exit code
_UPDATE_S = 0.1  # how often the progress display is updated

options_first = command_line.options_first


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Runs scripts, or functions that take a Job, together in this process. The first job is the primary. Of more "
        f"than {RESIDENT} jobs, {RESIDENT} run at once and the others wait (see --resident), in the planner's order if "
        "all have a --profile and their steps are known. Options come first. A script with arguments is one word in "
        "quotes; or `run [options] -- a.py --x -- b.py --y`."
    )
    parser.add_argument("jobs", nargs="+", metavar="[NAME=]TARGET", help=targets.FORMS)
    parser.add_argument("--primary", metavar="NAME", help="the job that is protected (default: the first)")
    parser.add_argument(
        "--success", choices=("all", "primary"), help="the jobs that must finish for exit status 0 (default: all)"
    )
    parser.add_argument(
        "--on-failure", choices=("continue", "stop"), help="what the other jobs do if one fails (default: continue)"
    )
    of_jobs = parser.add_argument_group(
        "options of jobs", "repeatable; apply to all jobs (--start: all but the primary), or with NAME= to one job"
    )
    for option in on_the_command_line(JobOptions):
        of_jobs.add_argument(
            option.flag,
            action="append",
            metavar=f"[NAME=]{option.option.metavar}",
            help=option.option.flag_help(),
        )
    together = parser.add_argument_group("options of the runtime")
    together.add_argument("--device", metavar="D", help="auto (default: a GPU if there is one), cpu, cuda, cuda:1")
    for option in on_the_command_line(RuntimeOptions):
        switch = {"nargs": "?", "const": "yes"} if option.option.metavar == YES_NO else {}
        together.add_argument(option.flag, metavar=option.option.metavar, help=option.option.flag_help(), **switch)  # type: ignore[arg-type]
    together.add_argument(
        "--max-restarts",
        metavar="N",
        help="times that the process is started again after a crash; the jobs resume from their checkpoints, without "
        "a job in which it crashed three times in a row",
    )
    parser.add_argument(
        "--output",
        metavar="MODE",
        help="where scripts print: prefix (each line with the job's name; default for several jobs), plain (default "
        "for one), or a folder that gets NAME.log per job",
    )
    outcome.configure(parser)
    parser.set_defaults(run=functools.partial(run, parser))


@dataclass
class _Submission:
    """The arguments of one Runtime.submit."""

    function: Callable[..., Any]
    options: JobOptions


def run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code. Checks all input before any job starts."""
    attempt = supervisor.this_attempt()
    if attempt is None and this_rank().is_first:
        words = given.command_line
        hint = command_line.misplaced(parser, words[words.index("run") + 1 :])
        if hint is not None:
            print(f"torchshare: {escaped(hint)}", file=sys.stderr)
    try:
        arguments = _all_arguments(parser, given)
        if attempt is None and arguments.max_restarts is not None:
            restarts = supervisor.check(arguments.max_restarts, arguments.checkpoint, os.environ)
            return supervisor.Supervisor(given.command_line, restarts).run()
        check_outputs(outcome.files(arguments), _files(given.jobs, arguments.jobs))
        port = outcome.metrics_port(arguments)
        output = _output(arguments)
        options = _runtime_options(arguments)
        submissions, waiting = _submissions(arguments, output, options.get("resident"))
        dropped = supervisor.drop([each.options for each in submissions], attempt)
        submissions = [each for each in submissions if each.options not in dropped]
    except ValueError as error:
        return refuse(error)
    # Imports torch, which takes seconds.
    from torchshare.runtime import crash_report, signals
    from torchshare.runtime.runtime import Runtime

    if attempt is not None:
        crash_report.open_for(attempt.report)
        crash_report.end_with_parent()
        if attempt.resume:
            options["resume"] = True
    if waiting is not None:
        options["resident"] = waiting.resident
    try:
        runtime = Runtime(arguments.device or "auto", **options)
        for submission in submissions:
            _submit(runtime, submission)
    except ValueError as error:
        return refuse(error)
    if waiting is not None and this_rank().is_first:
        print(f"torchshare: {waiting}", file=sys.stderr)
    if len(submissions) == 1:
        _warn_of_options_of_pairs(arguments, runtime.jobs[0].name)
    failure = 0
    with signals.deferred(forget=True) as stops:
        try:
            has_scripts = any(isinstance(each.function, Script) for each in submissions)
            watch = _Watch(runtime, stops, output, has_scripts, stops_on_failure=arguments.on_failure == "stop")
            with outcome.served_metrics(runtime, port, resumes=attempt is not None and attempt.resume):
                shows_progress = output.mode != "plain" and not arguments.quiet and this_rank().is_first
                watch.run(shows_progress)
        except (ValueError, RuntimeError) as error:
            if not any(result.ran_s for result in runtime.results.values()):  # none has begun
                return refuse(error)
            complain(str(error))
            failure = 1
    ended = outcome.show(runtime, dropped, arguments)
    status = stops.exit_code or failure or ended
    sys.stdout.flush()
    crash_report.end(status, runtime.device)
    return status


def _files(*words: list[str]) -> list[Path]:
    """The job files and scripts among the targets."""
    each_word = [word for some in words for word in some]
    files = [Path(word) if word.endswith(".toml") else targets.source_file(word) for word in each_word]
    return [file for file in files if file is not None]


def _all_arguments(parser: argparse.ArgumentParser, given: argparse.Namespace) -> argparse.Namespace:
    """The arguments given, then those of the environment, then those of a jobs.toml. Options of jobs become lists of
    the three, the least important first."""
    of_jobs = [option.name for option in on_the_command_line(JobOptions)]
    single = ["primary", "success", "on_failure", "device", "output", "max_restarts", *outcome.NAMES]
    single += [option.name for option in on_the_command_line(RuntimeOptions)]
    sources = [given, parser.parse_args([*words_of_environment(os.environ, [*single, *of_jobs]), "--", "-"])]
    files = [word for word in given.jobs if word.endswith(".toml")]
    if files:
        if len(given.jobs) > 1:
            raise ValueError(f"{files[0]} must be the only target; got {len(given.jobs)}")
        sources.append(parser.parse_args(words_of_file(Path(files[0]), single, of_jobs)))
    merged = argparse.Namespace(json=given.json, quiet=given.quiet, jobs=sources[-1].jobs if files else given.jobs)
    for name in single:
        setattr(merged, name, next((value for each in sources if (value := getattr(each, name)) is not None), None))
    for name in of_jobs:
        setattr(merged, name, [getattr(each, name) or [] for each in reversed(sources)])
    return merged


def _output(arguments: argparse.Namespace) -> Output:
    one_script = len(arguments.jobs) == 1 and not targets.is_function(arguments.jobs[0])
    mode = arguments.output or ("plain" if one_script else "prefix")
    if mode not in ("plain", "prefix"):
        try:
            Path(mode).mkdir(exist_ok=True)
        except OSError:
            raise ValueError(f"--output must be prefix, plain or a folder, got {mode}") from None
    return Output(mode, all_to_stderr=arguments.json)


def _submit(runtime: Runtime, submission: _Submission) -> None:
    if isinstance(submission.function, Script):
        submission.options.setdefault("seed", submission.function.default_seed)
    runtime.submit(submission.function, **submission.options)


@dataclass
class _Watch:
    """Runs the jobs until all have ended, or until a signal or a closed pipe closes the runtime."""

    runtime: Runtime
    stops: signals.Stops
    output: Output
    has_scripts: bool
    stops_on_failure: bool

    def run(self, shows_progress: bool) -> None:
        from torchshare.cli.progress import Progress

        with Progress(self.runtime) if shows_progress else contextlib.nullcontext() as progress:
            try:
                self.runtime.start()
                while self.output.has_reader and not self.stops.count and not self._wait():
                    if progress is not None:
                        progress.update()
                if self.stops.exit_code == _CTRL_C and self.has_scripts:
                    self._let_scripts_end()
            finally:
                self.runtime.close()

    def _wait(self) -> bool:
        """Waits a moment. Returns whether all jobs have ended, or one has failed and the others are to stop."""
        self.runtime.check_ranks()
        failed = self.stops_on_failure and any(job.state == "failed" for job in self.runtime.jobs)
        return failed or self.runtime._handle.wait(_UPDATE_S)

    def _let_scripts_end(self) -> None:
        """Raises KeyboardInterrupt in the scripts, which may evaluate or save; again at the second Ctrl-C."""
        print("torchshare: waiting for the scripts to end; Ctrl-C again stops them", file=sys.stderr)
        self.runtime.cancel()
        while self.stops.count == 1 and not self.runtime._handle.wait(_UPDATE_S):
            pass
        for job in self.runtime.jobs if self.stops.count > 1 else ():
            job._context.handle.repeat_cancel()


def _runtime_options(arguments: argparse.Namespace) -> RuntimeOptions:
    given = {option: getattr(arguments, option.name) for option in on_the_command_line(RuntimeOptions)}
    return cast(RuntimeOptions, {o.name: _value(o, text) for o, text in given.items() if text is not None})


def _submissions(
    arguments: argparse.Namespace, output: Output, resident: int | None
) -> tuple[list[_Submission], Queue | None]:
    jobs: dict[str, _Submission] = {}
    for text in arguments.jobs:
        given, target = targets.split_name(text)
        name = given or targets.default_name(target, taken=jobs)
        if name in jobs:
            raise ValueError(f"job names must be unique, got '{name}' twice; name one with NAME={target}")
        jobs[name] = _Submission(targets.load(target, output), JobOptions(name=name))
    of_jobs = {option.name: option for option in on_the_command_line(JobOptions)}
    start = of_jobs.pop("start")
    for option in of_jobs.values():
        for texts in getattr(arguments, option.name):
            _apply(option, texts, jobs, list(jobs))
    waiting = queue({name: each.options for name, each in jobs.items()}, resident)
    jobs = jobs if waiting is None else {name: jobs[name] for name in waiting.names}
    primary = arguments.primary or next(iter(jobs))
    _check_name(primary, jobs, "--primary")
    jobs[primary].options.setdefault("priority", "primary")
    for texts in arguments.start:
        _apply(start, texts, jobs, [name for name in jobs if name != primary])
    return list(jobs.values()), waiting


def _warn_of_options_of_pairs(arguments: argparse.Namespace, job: str) -> None:
    given = {name: getattr(arguments, name) for name in ("policy", "max_slowdown", "secondary_share")}
    given["start"] = next((text for texts in arguments.start for text in texts if "=" not in text), None)
    for name, value in given.items():
        if value is not None:
            log.warning("job '%s': --%s=%s has no effect: it is the only job", job, name.replace("_", "-"), value)


def _apply(option: Declared, texts: list[str], jobs: dict[str, _Submission], all_jobs: list[str]) -> None:
    """Sets the option from each `[NAME=]VALUE`: without a name for `all_jobs`; named values take precedence."""
    for name, text in sorted(map(targets.split_name, texts), key=lambda pair: pair[0] is not None):
        if name is not None:
            _check_name(name, jobs, option.flag)
        for each in all_jobs if name is None else [name]:
            cast(dict[str, Any], jobs[each].options)[option.name] = _value(option, text)


def _value(option: Declared, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError:
        expected = "yes or no" if option.option.metavar == YES_NO else option.expected
        raise ValueError(f"{option.flag} must be {expected}, got {text}") from None


def _check_name(name: str, jobs: dict[str, _Submission], option: str) -> None:
    if name not in jobs:
        raise ValueError(f"{option} names job '{name}', must be one of {', '.join(jobs)}")
