"""Attributes of shared modules and classes that a job replaces, such as `torch.nn.Linear.forward = f`: it does so for
itself, until it ends. See Note [Watching attributes] in csrc/bindings/attribute_watch.cpp.

A value that code of its own module reads as a global variable cannot be each job's own. The job that replaces one fails
at once, unless no other job uses that package, or `shared_patches` allows it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from torchshare import _C
from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.context.script import ScriptContext
from torchshare.isolation import attributes, packages
from torchshare.isolation.attributes import Attribute, ClassAttribute, ModuleAttribute
from torchshare.isolation.patches import Patches

if TYPE_CHECKING:
    from torchshare.context.current import Tenant

log = logging.getLogger("torchshare")

# What the interpreter, or the code that makes a class or module, keeps in it.
_BOOKKEEPING = frozenset(
    f"__{name}__"
    for name in (
        *("abstractmethods", "annotate", "annotations", "builtins", "cached", "doc", "file", "firstlineno", "loader"),
        *("match_args", "module", "name", "package", "parameters", "path", "qualname", "signature", "spec"),
        *("slotnames", "static_attributes", "text_signature", "warningregistry", "wrapped"),
    )
)
_SET_BY_C = ("torch", "Storage")  # by torch's C code, with the default dtype
_OURS = (__name__, attributes.__name__)

_lock = threading.RLock()  # guards the variables below; reentrant: a finalizer may assign attributes
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_attributes: dict[tuple[int, str], Attribute] = {}
_tenants: weakref.WeakKeyDictionary[Tenant, bool] = weakref.WeakKeyDictionary()
"""The running scripts, and the jobs that are no scripts; whether they may replace what is shared."""
_jobs: weakref.WeakSet[JobContext] = weakref.WeakSet()
"""The jobs that have been submitted and have not ended."""
_by_package: dict[str, list[tuple[Attribute, Any]]] = {}
"""Values that shared packages have set while they were imported: for each script that uses them."""
_shared: list[tuple[str, Attribute, str]] = []
"""Values that are everybody's, with the name of the job that has set them, and where."""


def route(patches: Patches) -> None:
    _C.watch_attributes(_assigned)
    patches.at_undo(_stop)


def _stop() -> None:
    _C.watch_attributes(None)
    with _lock:
        for attribute in _attributes.values():
            attribute.values.clear()
            attribute.remove()
        for each in (_attributes, _by_package, _shared):
            each.clear()


def expect(job: JobContext, is_script: bool) -> None:
    """Called when a job is submitted. Raises RuntimeError if it would run with a value of another job."""
    with _lock:
        if not is_script:
            _refuse(job, job.shared_patches)
            _tenants[job] = job.shared_patches
        _jobs.add(job)


def enter(script: ScriptContext) -> None:
    """Called at the beginning of a script, in its job's thread."""
    job = current.job()
    with _lock:
        _tenants[script] = job is not None and job.shared_patches


def leave(tenant: Tenant) -> None:
    """Called at the end of a job or script. What it has replaced is as before."""
    with _lock:
        _tenants.pop(tenant, None)
        _jobs.discard(tenant)  # type: ignore[arg-type]
        for key, attribute in list(_attributes.items()):
            attribute.values.pop(tenant, None)
            if not attribute.values:
                del _attributes[key]
                attribute.remove()
        for shared in [each for each in reversed(_shared) if each[0] == tenant.name]:
            _shared.remove(shared)
            shared[1].restore()


def imported(script: ScriptContext, package: str) -> None:
    """Called when a script imports a package, loaded or not. Raises RuntimeError as `check` does."""
    if package in script.imported:
        return
    with _lock:  # another job shares a value either before, or after it finds that this one uses the package
        script.imported.add(package)
        check(script)
    for patching in _by_package.keys() - {package} if _by_package else ():
        if packages.uses(script, patching):
            _apply(script, patching)
    _apply(script, package)


def _apply(script: ScriptContext, package: str) -> None:
    with _lock:
        for attribute, value in _by_package.get(package, ()):
            if script not in attribute.values:
                _attributes[id(attribute.owner), attribute.name] = attribute
                attribute.set(script, value)


def check(script: ScriptContext) -> None:
    """Called before a script's first optimizer step, too: what it has imported may have imported more meanwhile. Raises
    RuntimeError if it runs with a value of another job."""
    _refuse(script, _tenants.get(script, False))


def _refuse(tenant: Tenant, may_share: bool) -> None:
    for name, attribute, where in _shared.copy():
        package = packages.of(attribute.owner)
        if name == tenant.name or may_share or package in sys.stdlib_module_names or not _uses(tenant, package):
            continue
        raise RuntimeError(
            f"job '{tenant.name}': job '{name}' has replaced {_described(attribute)} ({where}) for all jobs; run them "
            "in two processes, or allow it with shared_patches"
        )


def _assigned(owner: Any, name: str, *value: Any) -> bool:
    """The watch's callback. True if the assignment is done."""
    if name in _BOOKKEEPING or (value and isinstance(value[0], attributes.Descriptor)):  # the latter is ours
        return False
    attribute = _attributes.get((id(owner), name)) or _new(owner, name, *value)
    if attribute is not None:
        _assign(attribute, *value)
    return attribute is not None


def _new(owner: Any, name: str, *value: Any) -> Attribute | None:
    """For an attribute that is to be each job's own from now on. None if this assignment is like any other."""
    tenant, frame = current.tenant(), _assigning()
    if tenant is None or not _is_foreign(tenant, owner, frame) or (packages.of(owner), name) == _SET_BY_C:
        return None
    if value and isinstance(value[0], ModuleType) and _package(frame) == "importlib":
        return None  # a module, in its package
    attribute = (ClassAttribute if isinstance(owner, type) else ModuleAttribute)(owner, name, _assign, _read)
    if not _can_be_own(attribute, *value):
        _share(tenant, attribute, frame)
        return None
    importing = packages.being_imported(frame)
    if importing and not isinstance(tenant, ScriptContext):
        return None  # all functions of the program have imported it
    if importing and value:
        with _lock:
            _by_package.setdefault(importing, []).append((attribute, value[0]))
    return attribute


def _assign(attribute: Attribute, *value: Any) -> None:
    """An attribute of which jobs have values of their own is assigned or, without value, deleted."""
    tenant = None if _package(_assigning()) == "torchshare" else current.tenant()
    key = id(attribute.owner), attribute.name
    with _lock:
        attribute = _attributes.setdefault(key, attribute)
        attribute.set(tenant, *value)
        if not attribute.values:
            _attributes.pop(key, None)


def _is_foreign(tenant: Tenant, owner: Any, frame: FrameType) -> bool:
    """Whether it is a finished module or class that jobs share, and the code that assigns is of another package."""
    package = packages.of(owner)
    if package == _package(frame) or packages.is_initializing(owner) or packages.is_being_made(owner):
        return False
    return _author(frame) not in (package, "torchshare") and packages.is_shared(tenant, package)


def _can_be_own(attribute: Attribute, *value: Any) -> bool:
    owner, name, new = attribute.owner, attribute.name, value[0] if value else None
    if isinstance(attribute, ClassAttribute):
        # The interpreter finds special methods in the slots of the class, which has them for all jobs or for none.
        return not name.startswith("__") or callable(attributes.found(owner, name)) == callable(new)
    if ModuleAttribute.is_callable(attribute.common, new):
        return True
    is_of_interpreter = owner in (sys, sys.modules.get("builtins")) or name in ("__getattr__", "__dir__")
    return not is_of_interpreter and not packages.reads(owner, name)


def _share(tenant: Tenant, attribute: Attribute, frame: FrameType) -> None:
    """Lets a tenant replace a value for all. Raises RuntimeError if that may change another's results."""
    package = packages.of(attribute.owner)
    if package in sys.stdlib_module_names and packages.being_imported(frame):
        return  # as `import numpy.f2py` enlarges a cache: once per process
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    with _lock:
        others = [each.name for each in list(_tenants) if each is not tenant and _uses(each, package)]
        refused = others and not _tenants.get(tenant) and package not in sys.stdlib_module_names
        if not refused:
            _shared.append((tenant.name, attribute, where))
    if refused:
        reader = "Python" if isinstance(attribute.owner, type) else f"{package}'s code"
        text = (
            f"job '{tenant.name}': {_described(attribute)}, replaced at {where}, cannot be the job's own, because "
            f"{reader} reads it, and job '{others[0]}' uses {package}, too; run them in two processes, or allow it "
            "with shared_patches"
        )
        log.error(text)  # the code may catch the error
        raise RuntimeError(text)
    if others:
        log.warning("job '%s' has replaced %s (%s) for all jobs", tenant.name, _described(attribute), where)


def _read(attribute: Attribute, frame: FrameType) -> None:
    """A shared package that is imported now would keep the importing job's value for all. Raises RuntimeError if there
    are others."""
    package, tenant = packages.being_imported(frame), current.tenant()
    others = [job.name for job in list(_jobs) if tenant is not None and job.name != tenant.name]
    if tenant is None or not others or not package or package == packages.of(attribute.owner) or _tenants.get(tenant):
        return
    if packages.is_shared(tenant, package):
        raise RuntimeError(
            f"job '{tenant.name}': {package} is imported first after the job has replaced {_described(attribute)}, "
            f"and would keep it for job '{others[0]}' ({frame.f_code.co_filename}:{frame.f_lineno}); import it before, "
            "run them in two processes, or allow it with shared_patches"
        )


def _uses(tenant: Tenant, package: str) -> bool:
    return not isinstance(tenant, ScriptContext) or packages.uses(tenant, package)


def _described(attribute: Attribute) -> str:
    owner = attribute.owner
    name = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
    return f"{name}.{attribute.name}"


def _assigning() -> FrameType:
    """The frame of the code that assigns."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OURS:
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return "importlib" if name.startswith("_frozen_importlib") else name


def _author(frame: FrameType) -> str:
    """The package whose code assigns; of the standard library's code, such as `unittest.mock`, whose calls it."""
    outer: FrameType | None = frame
    while outer is not None:
        if (package := _package(outer)) not in sys.stdlib_module_names or package == "__main__":
            return package
        outer = outer.f_back
    return _package(frame)
