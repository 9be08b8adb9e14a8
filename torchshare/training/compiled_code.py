"""What compiled steps and compiled models have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchshare.training.step_constants import StepConstants
from torchshare.training.traced import Untraceable

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")


class CompiledCode:
    """Code that a job has compiled, and that runs in eager where it cannot run compiled. Each reason is logged once."""

    def __init__(self, job: JobContext, what: str) -> None:
        """`what`: what messages call it, such as "compiled step"."""
        self._job = job
        self._what = what
        self._logged: set[str] = set()
        self._fallback: str | None = None
        self._compile_s = 0.0

    @property
    def fallback(self) -> str | None:
        """Why it runs in eager for good; None if it is compiled."""
        return self._fallback

    @property
    def compile_s(self) -> float:
        """Seconds spent on tracing, compiling and loading so far."""
        return self._compile_s

    def _keep_constants(
        self, model: nn.Module, loss_fn: Callable[..., Any], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """See StepConstants. Raises Untraceable if there is a hook: it would be called only once, during tracing."""
        self._constants = StepConstants(self._job, model, loss_fn, optimizer)
        if (hook := self._constants.hook()) is not None:
            raise Untraceable(hook)

    def _is_as_compiled(self) -> bool:
        """Whether all that was compiled is as it was; logs the difference if not."""
        if self._fallback is not None:
            return False
        difference = self._constants.difference()
        if difference is None:
            return True
        self._log_once(difference[1], difference[0])
        return False

    def _fall_back(self, reason: Exception) -> None:
        """From now on, runs in eager."""
        self._fallback = str(reason)
        self._log_once(self._fallback)

    def _log_once(self, reason: str, kind: str | None = None) -> None:
        """Logs the first reason of each `kind`."""
        if (kind or reason) not in self._logged:
            self._logged.add(kind or reason)
            log.warning("job '%s': the %s runs in eager: %s", self._job.name, self._what, reason)
