"""Changes of shared packages that cannot be each job's own: the job that makes one fails at once, unless no other job
uses the package, or `shared_patches` allows it. Then the change holds for all jobs until that one ends."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.context.script import ScriptContext
from torchshare.isolation import packages

if TYPE_CHECKING:
    from torchshare.context.current import Tenant

log = logging.getLogger("torchshare")


@dataclass(eq=False)
class Change:
    by: Tenant
    package: str
    what: str
    """Its name in messages, such as `torch.nn.Linear.forward`."""
    why_shared: str
    """Completes "cannot be the job's own, because ..."."""
    where: str
    """File and line."""
    restore: Callable[[], None]


lock = threading.RLock()  # guards the variables below; reentrant: a finalizer may assign attributes
os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
_tenants: weakref.WeakKeyDictionary[Tenant, bool] = weakref.WeakKeyDictionary()
"""The running scripts, and the jobs that are no scripts; whether they may change what is shared."""
_jobs: weakref.WeakSet[JobContext] = weakref.WeakSet()
"""The jobs that have been submitted and have not ended."""
_changes: list[Change] = []


def forget() -> None:
    _changes.clear()


def expect(job: JobContext, is_script: bool) -> None:
    """Called when a job is submitted. Raises RuntimeError if it would run with a change of another job."""
    with lock:
        if not is_script:
            _refuse(job, job.shared_patches)
            _tenants[job] = job.shared_patches
        _jobs.add(job)


def enter(script: ScriptContext) -> None:
    """Called at the beginning of a script, in its job's thread."""
    job = current.job()
    with lock:
        _tenants[script] = job is not None and job.shared_patches


def leave(tenant: Tenant) -> None:
    """Called at the end of a job or script. What it has changed is as before."""
    with lock:
        _tenants.pop(tenant, None)
        _jobs.discard(tenant)  # type: ignore[arg-type]
        for change in [each for each in reversed(_changes) if each.by is tenant]:
            _changes.remove(change)
            change.restore()


def check(script: ScriptContext) -> None:
    """Called before a script's first optimizer step, too: what it has imported may have imported more meanwhile. Raises
    RuntimeError if it runs with a change of another job."""
    _refuse(script, _tenants.get(script, False))


def _refuse(tenant: Tenant, may_share: bool) -> None:
    for change in _changes.copy():
        if change.by is tenant or may_share or change.package in sys.stdlib_module_names:
            continue
        if _uses(tenant, change.package):
            raise RuntimeError(
                f"job '{tenant.name}': job '{change.by.name}' has replaced {change.what} ({change.where}) for all "
                "jobs; run them in two processes, or allow it with shared_patches"
            )


def make(change: Change) -> None:
    """Called before a tenant changes what all share. Raises RuntimeError if that may change another's results."""
    tenant = change.by
    is_of_python = change.package in sys.stdlib_module_names
    with lock:
        others = [each.name for each in list(_tenants) if each is not tenant and _uses(each, change.package)]
        refused = others and not _tenants.get(tenant) and not is_of_python
        if not refused:
            _changes.append(change)
    if refused:
        text = (
            f"job '{tenant.name}': {change.what}, replaced at {change.where}, cannot be the job's own, because "
            f"{change.why_shared}, and job '{others[0]}' uses {change.package}, too; run them in two processes, or "
            "allow it with shared_patches"
        )
        log.error(text)  # the code may catch the error
        raise RuntimeError(text)
    if others:
        log.warning("job '%s' has replaced %s (%s) for all jobs", tenant.name, change.what, change.where)


def other_job(tenant: Tenant) -> str | None:
    """The name of another job that does not have to bear what this one changes for all."""
    with lock:
        others = [job.name for job in _jobs if job.name != tenant.name]
        return others[0] if others and not _tenants.get(tenant) else None


def _uses(tenant: Tenant, package: str) -> bool:
    return not isinstance(tenant, ScriptContext) or packages.uses(tenant, package)


def line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
