from __future__ import annotations

import errno
import importlib
import itertools
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchshare.context import current

if TYPE_CHECKING:
    from torchshare.context.results import Results


class Cancelled(BaseException):
    """Unwinds a cancelled job. Raised before its next op or, if it runs no op, before its next bytecode.

    Not an `Exception`, so `except Exception` does not catch it. It is raised once, and again at the next batch; ops in
    `finally` blocks run.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        job = current.job()
        if job is not None:
            job.handle.acknowledge_cancel()
            job.is_unwound = True


class Interrupted(Cancelled, KeyboardInterrupt):
    """Unwinds a cancelled script, which may catch KeyboardInterrupt, evaluate or save, and end."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        job = current.job()
        if job is not None:
            job.is_ending = True


class BudgetExceeded(torch.OutOfMemoryError):
    """A job's tensors would exceed its `memory_budget`. Raised by the op that allocates, in that job only; nothing was
    allocated, and the job may continue with less memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is torch's, for any device: on the CPU it has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def is_disk_full(error: BaseException | None) -> bool:
    """Whether `error`, or what it follows from, is that a file could not be written for lack of space."""
    while error is not None:
        no_space = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if no_space or (isinstance(error, RuntimeError) and "PytorchStreamWriter failed writing" in str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def described(error: BaseException | None) -> str:
    """Type and message of an exception, even if its `__str__` raises; only the type if it has no message."""
    try:
        message = str(error)
    except Exception:
        message = "(its __str__ failed)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


_OWN = str(Path(__file__).parents[1])
_HIDDEN = ("<frozen importlib", importlib.__file__, str(Path(_OWN, "isolation")))


def users_traceback(error: BaseException) -> str:
    """The traceback as plain Python prints it: from the user's first frame on, without imports' and patches' frames."""
    report = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = report
    while part is not None:
        is_syntax_error = hasattr(part, "msg")  # it names its place itself
        part.stack = users_part(part.stack) or (traceback.StackSummary() if is_syntax_error else part.stack)
        part = part.__cause__ or part.__context__
    return "".join(report.format()).rstrip()


def users_part(stack: traceback.StackSummary) -> traceback.StackSummary:
    """The stack from the user's first frame on, without imports' and patches' frames."""
    frames = list(itertools.dropwhile(lambda frame: frame.filename.startswith(_OWN), stack))
    return traceback.StackSummary.from_list(frame for frame in frames if not frame.filename.startswith(_HIDDEN))


class JobFailed(RuntimeError):
    """At least one job failed. `results` holds the results of all jobs; the first failure is the `__cause__`."""

    def __init__(self, message: str, results: Results) -> None:
        super().__init__(message)
        self.results = results
