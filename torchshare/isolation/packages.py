"""What is known of loaded packages: whether jobs share one, use it, or are importing it."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torchshare.context.script import ScriptContext
from torchshare.isolation.script_modules import installed_folders, process_modules

if TYPE_CHECKING:
    from torchshare.context.current import Tenant


def of(owner: Any) -> str:
    """The top-level name of the package of a module, class or function."""
    return _module_name(owner).partition(".")[0]


def _module_name(owner: Any) -> str:
    has_module = isinstance(owner, (type, FunctionType))
    return str((owner.__module__ if has_module else vars(owner).get("__name__")) or "")


def of_frame(frame: FrameType) -> str:
    """The package whose code runs; empty for code that `exec` runs in variables without a name."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_of_python(frame: FrameType) -> bool:
    """Whether it runs code of the standard library."""
    return of_frame(frame) in sys.stdlib_module_names


def author(frame: FrameType) -> str:
    """The package whose code runs; of the standard library's code, such as `unittest.mock`, whose calls it."""
    outer: FrameType | None = frame
    while outer is not None:
        if not is_of_python(outer):
            return of_frame(outer)
        outer = outer.f_back
    return of_frame(frame)


def is_shared(tenant: Tenant, package: str) -> bool:
    """Whether several jobs have the same module of that top-level name, and it is no part of the user's program."""
    if package not in process_modules or package == "__main__":
        return False
    if isinstance(tenant, ScriptContext):
        return bool(tenant.modules.is_in_process(package))  # type: ignore[attr-defined]
    return package in sys.stdlib_module_names or _is_installed(package)


@functools.cache
def _is_installed(package: str) -> bool:
    origin = getattr(getattr(process_modules[package], "__spec__", None), "origin", None) or ""
    return any(origin.startswith(f"{folder}/") for folder in installed_folders())


def is_being_made(owner: Any) -> bool:
    """Whether it is a class that a function such as `dataclasses.make_dataclass` makes: its module has none such."""
    return isinstance(owner, type) and of(owner) in sys.stdlib_module_names and _named(owner) is None


def has(function: FunctionType) -> bool:
    """Whether the function is found in its module by its name, and not one that other code makes."""
    return function in _functions(_named(function))


def _named(owner: Any) -> Any:
    """What the module of a class or function has by its name, or None."""
    found: Any = process_modules.get(owner.__module__)
    for name in owner.__qualname__.split("."):
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found


def _functions(value: Any) -> Iterator[FunctionType]:
    """The function that a value of a module or class is or holds, and those that it wraps."""
    function = value.fget if isinstance(value, property) else value
    function = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
    while isinstance(function, FunctionType):
        yield function
        function = vars(function).get("__wrapped__")


def _initializes(variables: dict[str, Any]) -> bool:
    return bool(getattr(variables.get("__spec__"), "_initializing", False))


def being_imported(frame: FrameType) -> str:
    """The shared package whose import, in an outer frame, runs `frame`; empty if none does."""
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code.co_name == "<module>" and _initializes(outer.f_globals):
            name = str(outer.f_globals.get("__name__"))
            module = process_modules.get(name)
            return name.partition(".")[0] if module is not None and vars(module) is outer.f_globals else ""
        outer = outer.f_back
    return ""


def uses(script: ScriptContext, package: str) -> bool:
    """Whether the script has imported the package, or one that refers to it."""
    seen = {name.partition(".")[0] for name in script.own_modules}  # the process's `__main__` is another script's
    found = {each for module in script.own_modules.values() for each in _referred(module)} | script.imported
    while found - seen:
        if package in found:
            return True
        new = found - seen
        seen |= new
        for name, module in process_modules.copy().items():
            if name.partition(".")[0] in new:
                found.update(_referred(module))
    return False


def _referred(module: ModuleType) -> Iterator[str]:
    """Top-level names of the packages whose modules, functions and classes its variables hold."""
    for value in vars(module).copy().values() if isinstance(module, ModuleType) else ():
        if issubclass(type(value), ModuleType):
            yield of(value)
        elif issubclass(type(value), (type, FunctionType)):  # isinstance reads attributes: some of torch's then warn
            yield str(value.__module__).partition(".")[0]


def reads(module: ModuleType, name: str) -> bool:
    """Whether functions or methods of the module read its variable `name`."""
    return any(_loads(code, name) for code in _codes(vars(module), vars(module)))


def _codes(values: Any, variables: dict[str, Any]) -> Iterator[CodeType]:
    """The code of the functions among `values`, and of classes, that has `variables` as its globals."""
    for value in list(values.values()):
        yield from (each.__code__ for each in _functions(value) if each.__globals__ is variables)
        if isinstance(value, type) and value.__module__ == variables.get("__name__"):
            yield from _codes(vars(value), variables)


def _loads(code: CodeType, name: str) -> bool:
    if name in code.co_names and any(
        each.argval == name and each.opname in ("LOAD_GLOBAL", "LOAD_NAME") for each in dis.get_instructions(code)
    ):
        return True
    return any(_loads(each, name) for each in code.co_consts if isinstance(each, CodeType))
