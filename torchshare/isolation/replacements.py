"""Attributes of shared modules and classes that a job replaces, such as `torch.nn.Linear.forward = f`: it does so for
itself, until it ends. See Note [Watching attributes] in csrc/bindings/attribute_watch.cpp.

A value that code of its own module reads as a global variable cannot be each job's own, nor can what a function has:
see shared_changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torch.distributions import Distribution

from torchshare import _C
from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation import attributes, packages, script_modules, shared_changes
from torchshare.isolation.attributes import Attribute, ClassAttribute, ModuleAttribute
from torchshare.isolation.patches import Patches
from torchshare.isolation.shared_changes import Change, lock
from torchshare.isolation.table import Table

if TYPE_CHECKING:
    from torchshare.context.current import Tenant

# What the interpreter, or the code that makes a class or module, keeps in it.
_BOOKKEEPING = frozenset(
    f"__{name}__"
    for name in (
        *("abstractmethods", "annotate", "annotations", "builtins", "cached", "doc", "file", "firstlineno", "loader"),
        *("match_args", "module", "name", "package", "parameters", "path", "qualname", "signature", "spec"),
        *("slotnames", "static_attributes", "text_signature", "warningregistry", "wrapped"),
    )
)
TABLE = Table()
_SET_BY_C = ("torch", "Storage")  # by torch's C code, with the default dtype
_OURS = (__name__, attributes.__name__)
_IMPORTERS = ("importlib", "_frozen_importlib")

# With the lock of shared_changes:
_attributes: dict[tuple[int, str], Attribute] = {}
_by_package: dict[str, list[tuple[Attribute, Any]]] = {}
"""Values that shared packages have set while they were imported: for each script that uses them."""


@TABLE.at_start
def _watch(patches: Patches) -> None:
    _C.watch_attributes(_assigned, _BOOKKEEPING, attributes.Descriptor)
    _C.watch_fields(_field_assigned)
    patches.at_undo(_stop)


def _stop() -> None:
    _C.unwatch_fields()
    _C.unwatch_attributes()
    with lock:
        for attribute in _attributes.values():
            attribute.values.clear()
            attribute.remove()
        _attributes.clear()
        _by_package.clear()
        shared_changes.forget()


def leave(tenant: Tenant) -> None:
    """Called at the end of a job or script. What it has replaced is as before."""
    with lock:
        for key, attribute in list(_attributes.items()):
            attribute.values.pop(tenant, None)
            if not attribute.values:
                del _attributes[key]
                attribute.remove()
        shared_changes.leave(tenant)


def imported(script: ScriptContext, package: str) -> None:
    """Called when a script imports a package, loaded or not. Raises RuntimeError as `shared_changes.check` does."""
    if package in script.imported:
        return
    with lock:  # another job shares a value either before, or after it finds that this one uses the package
        script.imported.add(package)
        shared_changes.check(script)
    for patching in _by_package.keys() - {package} if _by_package else ():
        if packages.uses(script, patching):
            _apply(script, patching)
    _apply(script, package)


def _apply(script: ScriptContext, package: str) -> None:
    with lock:
        for attribute, value in _by_package.get(package, ()):
            if script not in _attributes.get((id(attribute.owner), attribute.name), attribute).values:
                _set(attribute, script, value)


def _assigned(owner: Any, name: str, *value: Any) -> bool:
    """The watch's callback. True if the assignment is done."""
    if value and isinstance(value[0], attributes.Descriptor):  # ours
        return False
    attribute = _attributes.get((id(owner), name)) or _new(owner, name, *value)
    if attribute is not None:
        _assign(attribute, *value)
    return attribute is not None


def _new(owner: Any, name: str, *value: Any) -> Attribute | None:
    """For an attribute that is to be each job's own from now on. None if this assignment is like any other."""
    tenant, frame, package = current.tenant(), _assigning(), packages.of(owner)
    if tenant is None or (package, name) == _SET_BY_C:
        return None
    if packages.is_being_made(owner) or not _is_foreign(tenant, package, frame):
        return None
    attribute = (ClassAttribute if isinstance(owner, type) else ModuleAttribute)(owner, name, _assign, _read)
    if not _can_be_own(attribute, *value):
        reader = "Python" if isinstance(owner, type) else f"{package}'s code"
        _share(tenant, frame, package, _described(attribute), f"{reader} reads it", attribute.restore)
        return None
    importing = packages.being_imported(frame)
    if importing and not isinstance(tenant, ScriptContext):
        return None  # all functions of the program have imported it
    if importing and value:
        with lock:
            _by_package.setdefault(importing, []).append((attribute, value[0]))
    return attribute


def _assign(attribute: Attribute, *value: Any) -> None:
    """An attribute of which jobs have values of their own is assigned or, without value, deleted."""
    _set(attribute, None if packages.of_frame(_assigning()) == "torchshare" else current.tenant(), *value)


def _set(attribute: Attribute, tenant: Tenant | None, *value: Any) -> None:
    key = id(attribute.owner), attribute.name
    with lock:
        if key not in _attributes:
            attribute.find_common()  # another job may have had a value of its own since the last time
            _attributes[key] = attribute
        attribute = _attributes[key]
        attribute.set(tenant, *value)
        if not attribute.values:
            _attributes.pop(key, None)


def set_own(tenant: Tenant, module: ModuleType, name: str, value: Any) -> None:
    """Replaces a function of a module for the job."""
    _set(ModuleAttribute(module, name, _assign, _read), tenant, value)


def _is_foreign(tenant: Tenant, package: str, frame: FrameType) -> bool:
    """Whether jobs share the package, and the code that runs is of another one."""
    if package == packages.of_frame(frame) or packages.author(frame) in (package, "torchshare"):
        return False
    return packages.is_shared(tenant, package)


def _can_be_own(attribute: Attribute, *value: Any) -> bool:
    owner, name, new = attribute.owner, attribute.name, value[0] if value else None
    if isinstance(attribute, ClassAttribute):
        # The interpreter finds special methods in the slots of the class, which has them for all jobs or for none.
        return not name.startswith("__") or callable(attributes.found(owner, name)) == callable(new)
    if ModuleAttribute.is_callable(attribute.common, new):
        return True
    is_of_interpreter = owner in (sys, sys.modules.get("builtins")) or name in ("__getattr__", "__dir__")
    return not is_of_interpreter and not packages.reads(owner, name)


def _share(
    tenant: Tenant, frame: FrameType, package: str, what: str, why_shared: str, restore: Callable[[], None]
) -> None:
    if package in sys.stdlib_module_names and packages.being_imported(frame):
        return  # as `import numpy.f2py` enlarges a cache: once per process
    shared_changes.make(Change(tenant, package, what, why_shared, shared_changes.line_of(frame), restore))


def _field_assigned(function: FunctionType, name: str, *value: Any) -> bool:
    """The watch's callback for the code and defaults of functions."""
    tenant, former = current.tenant(), getattr(function, name)
    if tenant is None or value == (former,) or not packages.has(function):
        return False
    frame, package = _assigning(), packages.of(function)
    if not _is_foreign(tenant, package, frame):
        return False
    what = f"{function.__module__}.{function.__qualname__}.{name}"
    _share(tenant, frame, package, what, "all jobs call the function", lambda: setattr(function, name, former))
    return False


@TABLE.call("importlib", "reload", everywhere=True)
def _reload(original: Callable[[ModuleType], ModuleType], module: ModuleType) -> ModuleType:
    """Reloading a module that jobs share is refused, or holds for all jobs."""
    tenant, caller = current.tenant(), sys._getframe(3)  # behind two frames of patches
    package = packages.of(module) if isinstance(module, ModuleType) else ""
    if tenant is not None and packages.is_shared(tenant, package):
        variables = vars(module).copy()
        what = f"{module.__name__} (importlib.reload)"
        _share(tenant, caller, package, what, "jobs share it", lambda: vars(module).update(variables))
    return original(module)


@TABLE.call("torch.distributions:Distribution", "set_default_validate_args", everywhere=True)
def _set_default_validate_args(original: Callable[[bool], None], value: bool) -> None:
    """Each job has its own value.

    In place of torch's own assignment, which is not foreign."""
    tenant = current.tenant()
    if tenant is None or value not in (True, False):
        original(value)
    else:
        _set(ClassAttribute(Distribution, "_validate_args", _assign, _read), tenant, value)


def _module_changed(script: ScriptContext, name: str, *module: ModuleType) -> bool:
    """A module that the script's own code puts into `sys.modules` is the script's own. One that it takes out would be
    imported anew, for all."""
    frame, package = sys._getframe(2), name.partition(".")[0]
    while packages.of_frame(frame) == "_collections_abc" and frame.f_back is not None:
        frame = frame.f_back
    if packages.of_frame(frame) in _IMPORTERS or packages.is_shared(script, packages.author(frame)):
        return False
    if not module:
        former = script.modules[name]
        what = f"sys.modules['{name}']"
        _share(script, frame, package, what, "jobs share the module", lambda: script.modules.update({name: former}))
    return bool(module)


script_modules.ask_first(_module_changed)


def _read(attribute: Attribute, frame: FrameType) -> None:
    """A shared package that is imported now would keep the importing job's value for all. Raises RuntimeError if there
    are others."""
    package, tenant = packages.being_imported(frame), current.tenant()
    other = None if tenant is None else shared_changes.other_job(tenant)
    if tenant is None or other is None or not package or package == packages.of(attribute.owner):
        return
    if packages.is_shared(tenant, package):
        raise RuntimeError(
            f"job '{tenant.name}': {package} is imported first after the job has replaced {_described(attribute)}, "
            f"and would keep it for job '{other}' ({shared_changes.line_of(frame)}); import it before, run them in two "
            "processes, or allow it with shared_patches"
        )


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
