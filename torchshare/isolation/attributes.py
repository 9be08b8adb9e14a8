"""Attributes of shared classes and modules of which each tenant (a job or script) may have a value of its own.

While any tenant has one, the class holds a descriptor, or the module a class with a property: both answer with the
value of the tenant that the calling thread works for, or the process's.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import torch

from torchshare.context import current

Assign = Callable[..., None]
Read = Callable[["Attribute", FrameType], None]

_INHERITED = object()
"""Stands for a value: there is none, so classes look for it in their bases."""


class Attribute:
    """One attribute of a module or class."""

    def __init__(self, owner: Any, name: str, assign: Assign, read: Read) -> None:
        self.owner = owner
        self.name = name
        self._read = read
        self.assign = assign
        """Called for an assignment, or without value a deletion, that comes through the attribute itself."""
        self.common: Any
        """The value of everybody who has no other."""
        self.values: dict[current.Tenant, Any] = {}
        self.find_common()

    def find_common(self) -> None:
        """Reads the value while nobody has one of their own."""
        self.common = vars(self.owner).get(self.name, _INHERITED)

    def value(self) -> Any:
        """The one of the calling thread, as the dictionary of the class or module would hold it."""
        return self.values.get(current.tenant(), self.common) if self.values else self.common  # type: ignore[arg-type]

    def read_by(self, frame: FrameType) -> None:
        """Tells of the thread's own value that the code of a module or class body reads, which may keep it."""
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and current.tenant() in self.values:
            self._read(self, frame)

    def set(self, tenant: current.Tenant | None, *value: Any) -> None:
        """Without `value`: deletes it."""
        new = value[0] if value else _INHERITED
        if tenant is None:
            self.common = new
        elif new is self.common:
            self.values.pop(tenant, None)
        else:
            self.values[tenant] = new
        self.install() if self.values else self.remove()

    def restore(self) -> None:
        """The common value, in place of one that a job has assigned for all."""
        if self.common is not _INHERITED:
            setattr(self.owner, self.name, self.common)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)

    def install(self) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        """Back to one value, the common one."""
        raise NotImplementedError


class ClassAttribute(Attribute):
    def install(self) -> None:
        held = _held(self.owner, self.name)
        needed = _DataDescriptor if any(map(_is_data, (self.common, *self.values.values()))) else Descriptor
        if type(held) is not needed:
            type.__setattr__(self.owner, self.name, needed(self))

    def remove(self) -> None:
        if self.common is not _INHERITED:
            type.__setattr__(self.owner, self.name, self.common)
        elif isinstance(_held(self.owner, self.name), Descriptor):
            type.__delattr__(self.owner, self.name)

    def inherited(self, cls: type) -> Any:
        """The value in the bases of `cls` after the owner."""
        value = _first(cls.__mro__[cls.__mro__.index(self.owner) + 1 :], self.name)
        if value is _INHERITED:
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{self.name}'")
        return value


def found(cls: type, name: str) -> Any:
    """The value in a class or its bases, as its dictionary holds it, or None."""
    value = _first(cls.__mro__, name)
    return None if value is _INHERITED else value


def _first(classes: tuple[type, ...], name: str) -> Any:
    return next((vars(each)[name] for each in classes if name in vars(each)), _INHERITED)


def _held(owner: type, name: str) -> Any:
    return vars(owner).get(name)


def _is_data(value: Any) -> bool:
    return hasattr(type(value), "__set__") or hasattr(type(value), "__delete__")


class Descriptor:
    """In the dictionary of the class, in place of the value."""

    def __init__(self, attribute: ClassAttribute) -> None:
        self.attribute = attribute

    def __get__(self, instance: Any, cls: type) -> Any:
        value = self.attribute.value()
        if instance is None:
            self.attribute.read_by(sys._getframe(1))
        if value is _INHERITED:
            value = self.attribute.inherited(cls)
        bind = getattr(type(value), "__get__", None)
        return value if bind is None else bind(value, instance, cls)


class _DataDescriptor(Descriptor):
    """If any of the values is a property, or the like, which comes before attributes of the instance."""

    def __get__(self, instance: Any, cls: type) -> Any:
        name = self.attribute.name
        if instance is not None and not _is_data(self.attribute.value()) and name in getattr(instance, "__dict__", {}):
            return instance.__dict__[name]
        return super().__get__(instance, cls)

    def __set__(self, instance: Any, new: Any) -> None:
        value = self.attribute.value()
        if _is_data(value):
            value.__set__(instance, new)
        else:
            instance.__dict__[self.attribute.name] = new

    def __delete__(self, instance: Any) -> None:
        value = self.attribute.value()
        if _is_data(value):
            value.__delete__(instance)
        else:
            del instance.__dict__[self.attribute.name]


class ModuleAttribute(Attribute):
    """The module's own code reads its dictionary, which holds a function that calls the thread's, or, of values that
    are no functions, none."""

    def install(self) -> None:
        if self.name in vars(type(self.owner)):
            return
        if _is_routed(type(self.owner)):
            setattr(type(self.owner), self.name, _Property(self))
        else:
            kind, contents = type(self.owner), {"_torchshare_routed": True, self.name: _Property(self)}
            if not hasattr(kind, "__getattr__"):
                contents["__getattr__"] = missing
            self.owner.__class__ = type("_Routed", (kind,), contents)
        if self.is_callable(self.common, *self.values.values()):
            vars(self.owner)[self.name] = _dispatching(self)
        else:
            vars(self.owner).pop(self.name, None)

    def remove(self) -> None:
        kind = type(self.owner)
        if not _is_routed(kind) or self.name not in vars(kind):
            return
        if self.common is _INHERITED:
            vars(self.owner).pop(self.name, None)
        else:
            vars(self.owner)[self.name] = self.common
        delattr(kind, self.name)  # then: another thread may read the value now
        if not any(isinstance(each, _Property) for each in vars(kind).values()):
            self.owner.__class__ = kind.__bases__[0]

    @staticmethod
    def is_callable(*values: Any) -> bool:
        return all(callable(each) and not isinstance(each, type) for each in values)


def missing(module: ModuleType, name: str) -> Any:
    """The `__getattr__` of a module's class that has descriptors. Without one, Python 3.14 lets code that has
    run often read the module's dictionary instead."""
    return ModuleType.__getattribute__(module, name)


def _is_routed(kind: type) -> bool:
    return "_torchshare_routed" in vars(kind)


class _Property:
    def __init__(self, attribute: ModuleAttribute) -> None:
        self.attribute = attribute

    def __get__(self, module: ModuleType, _kind: type) -> Any:
        value = self.attribute.value()
        self.attribute.read_by(sys._getframe(1))
        if value is _INHERITED:
            raise AttributeError(f"module '{self.attribute.owner.__name__}' has no attribute '{self.attribute.name}'")
        return value

    def __set__(self, module: ModuleType, value: Any) -> None:
        self.attribute.assign(self.attribute, value)

    def __delete__(self, module: ModuleType) -> None:
        self.attribute.assign(self.attribute)


def _dispatching(attribute: ModuleAttribute) -> Callable[..., Any]:
    # Dynamo calls this one while it traces, in the thread that compiles, and goes on with what it returns.
    @torch.compiler.assume_constant_result  # type: ignore[misc]
    def chosen() -> Any:
        return attribute.value()

    @functools.wraps(attribute.common)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return chosen()(*args, **kwargs)

    return dispatch
