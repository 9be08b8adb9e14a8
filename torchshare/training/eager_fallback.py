"""Runs in eager what cannot run compiled, and says why."""

from __future__ import annotations

import logging

log = logging.getLogger("torchshare")


class EagerFallback:
    """The reasons for running in eager what a job has compiled. Each is logged once."""

    def __init__(self, job_name: str, what: str) -> None:
        """`what`: "compiled step"."""
        self._job, self._what = job_name, what
        self._logged: set[str] = set()
        self.reason: str | None = None
        """Why it runs in eager for good; None if it is compiled."""

    def for_good(self, reason: Exception) -> None:
        self.reason = str(reason)
        self.for_now(self.reason)

    def for_now(self, reason: str, kind: str | None = None) -> None:
        """Logs the first reason of each `kind`."""
        if (kind or reason) not in self._logged:
            self._logged.add(kind or reason)
            log.warning("job '%s': the %s runs in eager: %s", self._job, self._what, reason)
