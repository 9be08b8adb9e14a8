"""The `torchshare` command."""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torchshare
from torchshare.cli.parser import Parser
from torchshare.context import interpreter_lock
from torchshare.context.importing import import_large
from torchshare.torch_versions import OtherTorch

# Only the module of the given verb is imported: most of them import torch, which takes seconds.
VERBS = {
    "run": "run jobs together in this process",
    "launch": "run jobs together on several ranks, with torchrun",
    "profile": "measure a job's steps and memory, alone and beside another",
    "plan": "decide from profiles which jobs share, in which sub-batches, and when",
    "cluster": "run a queue of jobs on a Ray cluster, two to a device",
    "simulate": "run scheduling policies over a trace of jobs",
    "papers": "simulate the tables of the papers that are implemented here",
    "replay": "replay recorded ops of jobs in virtual time, under each gate policy",
    "doctor": "report what this machine has, and what will not work",
}

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Version(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        print(f"torchshare {torchshare.__version__} ({torchshare._C.cuda_status()})")
        sys.exit(0)


class _CMakePrefix(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        """Prints the folders of torchshare and of torch, as a list of CMake's. Does not import torch."""
        torch = importlib.util.find_spec("torch")
        torchs = [str(Path(torch.origin).parent)] if torch and torch.origin else []
        print(";".join([str(Path(torchshare.__file__).parent / "cpp"), *torchs]))
        sys.exit(0)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit code: 0 success, 1 a job did not finish, 2 invalid input, 130 Ctrl-C,
    141 the reader of the output has gone (`| head`)."""
    if argv is None:
        interpreter_lock.start_without()
    words = sys.argv[1:] if argv is None else argv
    _replace_closed_streams()
    try:
        arguments = parse(words)
    except (ValueError, OtherTorch) as error:
        print(f"torchshare: error: {error}", file=sys.stderr)
        return 2
    arguments.command_line = words
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("torchshare: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        _drop_output()
        print(f"torchshare: error: cannot write the results: {error.strerror}", file=sys.stderr)
        return 1
    return code


def parse(words: list[str]) -> argparse.Namespace:
    """Raises ValueError, or exits as argparse does, for invalid arguments."""
    parser, verbs = _empty_parser()
    of_verb = parser
    given = next((word for word in words if not word.startswith("-")), None)
    for verb, text in VERBS.items():
        subparser = verbs.add_parser(verb, help=text, allow_abbrev=False)
        if verb == given:
            module = import_large(f"torchshare.cli.{verb}")
            module.configure(subparser)
            if hasattr(module, "options_first"):
                after = words.index(verb) + 1
                words = [*words[:after], *module.options_first(subparser, words[after:])]
            of_verb = subparser
    arguments, unknown = parser.parse_known_args(words)
    of_verb.refuse(unknown)
    return arguments


def _empty_parser() -> tuple[Parser, argparse._SubParsersAction[Parser]]:
    parser = Parser(prog="torchshare", description=torchshare.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and what CUDA it was built for")
    text = "print the value of CMAKE_PREFIX_PATH with which find_package(torchshare) works"
    parser.add_argument("--cmake-prefix", action=_CMakePrefix, nargs=0, help=text)
    return parser, parser.add_subparsers(dest="verb", required=True, metavar="VERB")


def parser_of_all_verbs() -> Parser:
    """For the documentation."""
    parser, verbs = _empty_parser()
    for verb, text in VERBS.items():
        importlib.import_module(f"torchshare.cli.{verb}").configure(verbs.add_parser(verb, help=text, description=text))
    return parser


def _replace_closed_streams() -> None:
    """Opens streams that are closed, as by `>&-`. Otherwise Python's are None, and the next file that is opened gets
    the number of a closed one, to which C code and child processes write."""
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        stream = open(os.devnull, "r" if name == "stdin" else "w")  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "stdout" in closed:
        print("torchshare: stdout is closed: what is printed is lost", file=sys.stderr)


def _drop_output() -> None:
    """Python flushes it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
