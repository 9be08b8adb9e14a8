"""`torchshare launch`: `torchshare run` on several ranks."""

from __future__ import annotations

import argparse
import sys

from torchshare.cli import run as run_verb
from torchshare.cli.outputs import refuse
from torchshare.cli.parser import Parser

_OURS = ("-h", "--help")
_OF_THE_SCRIPT = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.usage = "torchshare launch [torchrun's options] [run's options] [NAME=]TARGET [[NAME=]TARGET ...]"
    parser.description = (
        "Starts processes with torchrun, each of which runs all jobs; then every job has one rank per process. Takes "
        "torchrun's options (`torchrun --help`), then what `torchshare run` takes (`torchshare run --help`). The exit "
        "status is torchrun's."
    )
    parser.epilog = 'Example: torchshare launch --nproc-per-node=2 --policy strict "train.py --lr 0.1" "eval.py"'
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def options_first(_parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Keeps argparse from taking any word but a request for help."""
    return words[:1] if words[:1] and words[0] in _OURS else ["--", *words]


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code. Checks the options before any process starts."""
    from torch.distributed import run as torchrun  # imports torch, which takes seconds
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    parser = torchrun.get_args_parser()
    options, words = split(parser, arguments.words[arguments.words[:1] == ["--"] :])
    checker = Parser(prog="torchshare run", allow_abbrev=False)
    run_verb.configure(checker)
    try:
        checker.refuse(checker.parse_known_args(run_verb.options_first(checker, words))[1])
    except ValueError as error:
        return refuse(error)
    given = parser.parse_args([*options, "-m", "torchshare"])
    given.training_script_args = ["run", *words]
    try:
        torchrun.run(given)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def split(parser: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str]]:
    """torchrun's options, and the words from the first other one on."""
    at = 0
    while at < len(words):
        name, _, value = words[at].partition("=")
        action = parser._option_string_actions.get(name)
        if action is None or name in (*_OURS, *_OF_THE_SCRIPT):
            break
        at += 1 if value or action.nargs == 0 else 2
    return words[:at], words[at:]
