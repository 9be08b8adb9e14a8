"""The GIL of a free-threaded interpreter, which loading an extension module can turn on."""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger("torchshare")

IS_FREE_THREADED = "t" in sys.abiflags
"""Whether the interpreter was built to do without the GIL."""


def is_on() -> bool:
    """Whether threads exclude each other from Python now."""
    return not IS_FREE_THREADED or sys._is_gil_enabled()  # type: ignore[attr-defined, unused-ignore]


def described() -> str:
    """For reports, such as "3.13.5, free-threaded, GIL off"."""
    version = sys.version.split()[0]
    return f"{version}, free-threaded, GIL {'on' if is_on() else 'off'}" if IS_FREE_THREADED else version


def warn_if_on() -> None:
    """Warns once if a free-threaded interpreter has its GIL on."""
    global _has_warned
    if not is_on() or _is_chosen() or _has_warned:
        return
    _has_warned = True
    culprit = "triton, which torch's optimizers import," if "triton" in sys.modules else "an extension module"
    log.warning(
        "the GIL of this free-threaded Python is on (%s turns it on): jobs of small ops wait for each other, at about "
        "half the speed; start Python with -X gil=0 or PYTHON_GIL=0",
        culprit,
    )


_has_warned = False


def _is_chosen() -> bool:
    """False only in a free-threaded interpreter whose user has set neither PYTHON_GIL nor `-X gil`."""
    return not IS_FREE_THREADED or "PYTHON_GIL" in os.environ or "gil" in sys._xoptions


def start_without() -> None:
    """Starts the program again with `-X gil=0`, unless the user has chosen. PYTHON_GIL=0 would also reach child
    processes, and an interpreter that was not built for it refuses to start with it."""
    if not _is_chosen():
        os.execv(sys.executable, [sys.executable, "-X", "gil=0", *sys.orig_argv[1:]])
