"""`torchshare run`: runs jobs from the command line."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchshare.cli import outcome, supervisor
from torchshare.cli.outputs import check_outputs, complain, refuse
from torchshare.cli.queue import MAX_CONCURRENT, Queue, queue
from torchshare.cli.run_options import RunOptions
from torchshare.context.names import escaped
from torchshare.context.rank import this_rank
from torchshare.runtime.options import JobOptions, RuntimeOptions
from torchshare.scripts import command_line, targets
from torchshare.scripts.option_reader import GivenOptions, OptionReader, check_name
from torchshare.scripts.output import Output
from torchshare.scripts.script import Script

if TYPE_CHECKING:
    from torchshare.runtime import signals
    from torchshare.runtime.runtime import Runtime

log = logging.getLogger("torchshare")

_CTRL_C = 130  # the exit code
_UPDATE_S = 0.1  # how often the progress display is updated

OPTIONS = {"options of the run": RunOptions, "options of the runtime": RuntimeOptions}
"""Classes of options, by the title that their flags have in `--help`."""
options_first = command_line.options_first


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = (
        "Runs scripts, or functions that take a Job, together in this process. The first job is the primary. Of more "
        f"than {MAX_CONCURRENT} jobs, {MAX_CONCURRENT} run at once and the others wait (see --max-concurrent), in the "
        "planner's order if all have a --profile and their steps are known. A --start without a name is that of all "
        "but the primary. Options come first. A script with arguments is one word in quotes; or `run [options] -- a.py "
        "--x -- b.py --y`."
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress; warnings and results remain")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON document")
    reader = OptionReader(parser)
    reader.add_jobs(JobOptions)
    for title, options in OPTIONS.items():
        reader.add(options, title)
    parser.set_defaults(run=functools.partial(run, reader))


@dataclass
class _Submission:
    """The arguments of one Runtime.submit."""

    function: Callable[..., Any]
    options: JobOptions


def run(reader: OptionReader, arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code. Checks all input before any job starts."""
    attempt = supervisor.this_attempt()
    if attempt is None and this_rank().is_first:
        words = arguments.command_line
        hint = command_line.misplaced(reader.parser, words[words.index("run") + 1 :])
        if hint is not None:
            print(f"torchshare: {escaped(hint)}", file=sys.stderr)
    try:
        given = reader.read(arguments, os.environ)
        if attempt is None and "max_restarts" in given.options:
            supervisor.check(given.options.get("checkpoint"), os.environ)
            return supervisor.Supervisor(arguments.command_line, given.options["max_restarts"]).run()
        check_outputs(outcome.files(given.options), _files(arguments.jobs, given.targets))
        output = _output(given, as_json=arguments.json)
        options = cast(RuntimeOptions, given.of(RuntimeOptions))
        submissions, waiting = _submissions(given, output)
        dropped = supervisor.drop([each.options for each in submissions], attempt)
        submissions = [each for each in submissions if each.options not in dropped]
    except ValueError as error:
        return refuse(error)
    # Imports torch, which takes seconds.
    from torchshare.runtime import crash_log, signals
    from torchshare.runtime.runtime import Runtime

    if attempt is not None:
        crash_log.open_for(attempt.log)
        crash_log.end_with_parent()
        if attempt.resume:
            options["resume"] = True
    if waiting is not None:
        options["max_concurrent"] = waiting.max_concurrent
    try:
        runtime = Runtime(given.options.get("device", "auto"), **options)
        for submission in submissions:
            _submit(runtime, submission)
    except ValueError as error:
        return refuse(error)
    if waiting is not None and this_rank().is_first:
        print(f"torchshare: {waiting}", file=sys.stderr)
    if len(submissions) == 1:
        _warn_of_options_of_pairs(given, runtime.jobs[0].name)
    failure = 0
    with signals.deferred(forget=True) as stops:
        try:
            has_scripts = any(isinstance(each.function, Script) for each in submissions)
            watch = _Watch(
                runtime, stops, output, has_scripts, stops_on_failure=given.options.get("on_failure") == "stop"
            )
            port = given.options.get("metrics_port")
            with outcome.served_metrics(runtime, port, resumes=attempt is not None and attempt.resume):
                shows_progress = output.mode != "plain" and not arguments.quiet and this_rank().is_first
                watch.run(shows_progress)
        except (ValueError, RuntimeError) as error:
            if not any(result.ran_s for result in runtime.results.values()):  # none has begun
                return refuse(error)
            complain(str(error))
            failure = 1
    ended = outcome.show(runtime, dropped, given.options, as_json=arguments.json)
    status = stops.exit_code or failure or ended
    sys.stdout.flush()
    crash_log.end(status, runtime.device)
    return status


def _files(*words: list[str]) -> list[Path]:
    """The job files and scripts among the targets."""
    each_word = [word for some in words for word in some]
    files = [Path(word) if word.endswith(".toml") else targets.source_file(word) for word in each_word]
    return [file for file in files if file is not None]


def _output(given: GivenOptions, as_json: bool) -> Output:
    one_script = len(given.targets) == 1 and not targets.is_function(given.targets[0])
    mode = given.options.get("output", "plain" if one_script else "prefix")
    if mode not in ("plain", "prefix"):
        try:
            Path(mode).mkdir(exist_ok=True)
        except OSError:
            raise ValueError(f"--output must be prefix, plain or a folder, got {mode}") from None
    return Output(mode, all_to_stderr=as_json)


def _submit(runtime: Runtime, submission: _Submission) -> None:
    if isinstance(submission.function, Script):
        submission.options.setdefault("seed", submission.function.default_seed)
    runtime.submit(submission.function, **submission.options)


def _freeze_heap() -> None:
    """Keeps full collections short: they would visit all of torch's objects, and no job runs Python meanwhile."""
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    # Extensions report at exit what has not been collected, and a module's open file is written when it is collected.
    atexit.register(gc.unfreeze)


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

        shown = Progress(self.runtime) if shows_progress else contextlib.nullcontext()
        _freeze_heap()
        with shown as progress:
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


def _submissions(given: GivenOptions, output: Output) -> tuple[list[_Submission], Queue | None]:
    functions: dict[str, Callable[..., Any]] = {}
    for text in given.targets:
        own_name, target = targets.split_name(text)
        name = own_name or targets.default_name(target, taken=functions)
        if name in functions:
            raise ValueError(f"job names must be unique, got '{name}' twice; name one with NAME={target}")
        functions[name] = targets.load(target, output)
    given.check_names(functions)
    waiting = queue(
        {name: cast(JobOptions, given.of_job(name)) for name in functions}, given.options.get("max_concurrent")
    )
    names = list(functions) if waiting is None else waiting.names
    primary = given.options.get("primary", names[0])
    check_name(primary, names, "--primary")
    submissions = []
    for name in names:
        options: dict[str, Any] = {"name": name, **given.of_job(name)}
        if name == primary:
            options = {"name": name, "priority": "primary", **given.of_job(name, only_named=["start"])}
        submissions.append(_Submission(functions[name], cast(JobOptions, options)))
    return submissions, waiting


def _warn_of_options_of_pairs(given: GivenOptions, job: str) -> None:
    values = {name: given.options.get(name) for name in ("policy", "max_slowdown", "secondary_share")}
    values["start"] = given.of_job(None).get("start")
    for name, value in values.items():
        if value is not None:
            log.warning("job '%s': --%s=%s has no effect: it is the only job", job, name.replace("_", "-"), value)
