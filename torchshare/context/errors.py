from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchshare.context import current

if TYPE_CHECKING:
    from torchshare.context.results import Results


class Cancelled(BaseException):
    """Unwinds a cancelled job: before its next op, or, where none comes, before its next bytecode.

    Not an `Exception`, so `except Exception` lets it pass. It is raised once, and again at the next batch; ops in
    `finally` blocks work.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        job = current.job()
        if job is not None:
            job.handle.acknowledge_cancel()


class BudgetExceeded(torch.OutOfMemoryError):
    """A job's tensors would take more memory than its `memory_budget`. Raised by the op that asked for it, in that job
    alone; nothing was allocated, and the job may go on with less."""


def described(error: BaseException | None) -> str:
    """Type and message, whatever the exception's own code does."""
    try:
        message = str(error)
    except Exception:
        message = "(its __str__ failed)"
    return f"{type(error).__name__}: {message}"


class JobFailed(RuntimeError):
    """At least one job failed. `results` has every job's; the first failure is the `__cause__`."""

    def __init__(self, message: str, results: Results) -> None:
        super().__init__(message)
        self.results = results
