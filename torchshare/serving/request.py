"""A request to a job."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any


class Request:
    """A request of a client to a job; see `Job.requests`. It arrives when it is created. Any thread."""

    def __init__(self, data: Any) -> None:
        self.data = data
        """For batches of requests: tensors as a loader yields them, with rows as their first dimension."""
        self._arrived = time.monotonic_ns()
        self._answer: Future[Any] = Future()
        self._left = False  # its client has cancelled it, and the job knows

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the answer, `timeout` seconds at most.

        Raises:
            TimeoutError: if there is none by then.
            Exception: what the job failed the request with; RuntimeError if the job ended before it answered.
        """
        return self._answer.result(timeout)

    def done(self) -> bool:
        """Whether it has an answer or an error."""
        return self._answer.done()

    def cancel(self) -> None:
        """The answer is not wanted any more. A request that waits is left out."""
        self._answer.cancel()

    def __lt__(self, other: Request | None) -> bool:
        """Whether it arrived earlier: it comes first of those that have one priority in a queue. None, the end, is
        last."""
        return other is None or self._arrived < other._arrived

    def __gt__(self, other: Request | None) -> bool:
        return other is not None and self._arrived > other._arrived

    def _has_left(self) -> bool:
        """Whether its client has cancelled it; once."""
        has_left = self._answer.cancelled() and not self._left
        self._left = self._left or has_left
        return has_left

    def _give(self, answer: Any) -> bool:
        given = not self._answer.done() and self._answer.set_running_or_notify_cancel()
        if given:
            self._answer.set_result(answer)
        return given

    def _fail(self, error: BaseException) -> bool:
        failed = not self._answer.done() and self._answer.set_running_or_notify_cancel()
        if failed:
            self._answer.set_exception(error)
        return failed
