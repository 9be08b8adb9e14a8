"""The `torchshare` command."""

from __future__ import annotations

import argparse
import sys

import torchshare
from torchshare import _C
from torchshare.cli import doctor, plan, profile, replay, run, simulate


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 all well, 1 a job did not finish, 2 bad input, 130 Ctrl-C."""
    parser = argparse.ArgumentParser(prog="torchshare", description=torchshare.__doc__)
    version = f"torchshare {torchshare.__version__} ({_C.cuda_status()})"
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    run.add_parser(verbs)
    profile.add_parser(verbs)
    plan.add_parser(verbs)
    simulate.add_parser(verbs)
    replay.add_parser(verbs)
    doctor.add_parser(verbs)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        print("torchshare: interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
