"""Options, each declared once as an annotated key of a class: its type, what it must be, and its help text.

The checks, the signatures with their "Args:", the flags of `torchshare run` and `torchshare cluster`, and the keys of a
jobs.toml are generated from the declarations.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import reprlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from torchshare.context.names import escaped

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_F = TypeVar("_F", bound=Callable[..., Any])
_S = TypeVar("_S")
_T = TypeVar("_T")
log = logging.getLogger("torchshare")

YES_NO = "yes|no"
_INDENT = 4 * " "  # of a docstring's arguments, once the docstring has no common indentation
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


@dataclass(frozen=True)
class Expected:
    """The constraint on a value, for error messages: "must be {text}"."""

    text: str


@dataclass(frozen=True)
class Option:
    """The help text of an option."""

    help: str
    default: object = None
    """Shown in the signature."""
    metavar: str | None = None
    """Placeholder of its flag; an option without one has no flag."""
    flag: str | None = None
    """Its flag, if that is not its name."""
    former: str | None = None
    """Its name in the last release, which this one takes with a warning."""


@dataclass(frozen=True)
class Declared:
    """A declared option."""

    name: str
    type: Any
    option: Option
    expected: str

    @property
    def flag(self) -> str:
        return self.option.flag or _flag(self.name)

    @property
    def former_flag(self) -> str | None:
        return self.option.former and _flag(self.option.former)

    @property
    def flag_help(self) -> str:
        """The first sentence, for `--help`."""
        first = self.option.help.split(". ")[0].rstrip(".").replace("%", "%%")
        return first if self.option.default is None else f"{first} (default: {self.option.default})"

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter  # slow to import

        return TypeAdapter(self.type, config={"strict": True})

    def accepts(self, value: Any) -> bool:
        from pydantic import ValidationError

        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    def read(self, text: str, check: bool) -> Any:
        """The value that a flag's text stands for. Raises ValueError for a text that is none; with `check`, also for a
        value that is not accepted."""
        try:
            value = self._parse(text)
            if not check or self.accepts(value):
                return value
        except (ValueError, KeyError):
            pass
        expected = "yes or no" if self.option.metavar == YES_NO else self.expected
        raise ValueError(f"{self.flag} must be {expected}, got {text}")

    def _parse(self, text: str) -> Any:
        kinds = set(_kinds(self.type)) - {type(None)}
        kind = kinds.pop() if len(kinds) == 1 else str
        if kind is bool:
            return {"yes": True, "no": False}[text]
        if list in kinds:
            return [stripped for each in text.split(",") if (stripped := each.strip())]
        return json.loads(text) if kind is dict else kind(text)


def declared(options: type, profile: type = object) -> Iterator[Declared]:
    """The options that a class declares, in order. `profile` stands in for Profile, which is slow to import."""
    for name, hint in get_type_hints(options, localns={"Profile": profile}, include_extras=True).items():
        found = list(_metadata(hint))
        option = next((value for value in found if isinstance(value, Option)), None)
        if option is not None:
            expected = next(value.text for value in found if isinstance(value, Expected))
            default = vars(options).get(name, option.default)  # a dataclass has it as an attribute
            yield Declared(name, hint, dataclasses.replace(option, default=default), expected)


def on_the_command_line(options: type) -> list[Declared]:
    """The options that have a flag."""
    return [option for option in declared(options) if option.option.metavar is not None]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metadata(hint: Any) -> Iterator[Any]:
    """The annotations of a type, then those of the types inside it."""
    yield from getattr(hint, "__metadata__", ())
    for argument in get_args(hint):
        yield from _metadata(argument)


def _kinds(hint: Any) -> Iterator[type]:
    """The plain types of a hint."""
    if hasattr(hint, "__metadata__"):
        yield from _kinds(hint.__origin__)
    elif get_origin(hint) is dict:
        yield dict
    elif get_origin(hint) is Sequence:
        yield list
    elif get_origin(hint) is Literal:
        yield str
    elif arguments := get_args(hint):
        for argument in arguments:
            yield from _kinds(argument)
    else:
        yield hint


@functools.cache
def _checked(options: type) -> dict[str, Declared]:
    from torchshare.profiles.profile import Profile

    return {each.name: each for each in declared(options, Profile)}


def present_name(name: str, known: Iterable[Declared]) -> str:
    """The name of the option that was called `name` in the last release, with a warning; else `name`."""
    for each in known:
        if each.option.former == name:
            log.warning("option %s is now %s; the next release does not take the old name", name, each.name)
            return each.name
    return name


def with_present_names(options: type, given: _T) -> _T:
    """The options given, former names replaced."""
    known = _checked(options).values()
    items = cast(Mapping[str, Any], given).items()
    return cast(_T, {present_name(name, known): value for name, value in items})


def check(options: type, given: Mapping[str, Any], caller: str, job: str | None = None) -> None:
    """Raises TypeError for an unknown option, ValueError for a value that violates its declaration."""
    known = _checked(options)
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{caller}() got an unknown option '{name}'; the options are {', '.join(known)}")
        if not known[name].accepts(value):
            of_job = "" if job is None else f"job '{escaped(str(job)[:80])}': "
            raise ValueError(f"{of_job}{name} must be {known[name].expected}, got {_shown.repr(value)}")


def with_defaults(options: type[_T], given: _T) -> _T:
    """All options: those given, and the defaults of the others."""
    defaults = {name: each.option.default for name, each in _checked(cast(type, options)).items()}
    return cast(_T, {**defaults, **cast(Mapping[str, Any], given)})


def fill(spec: _S, given: Mapping[str, Any]) -> _S:
    """Sets the fields of the C++ struct `spec` that have an option of the same name; None keeps the field's default."""
    for name, value in given.items():
        if value is not None and hasattr(type(spec), name):
            setattr(spec, name, value)
    return spec


def documented(options: type) -> Callable[[_F], _F]:
    """Expands a function's `**options` in its signature, and "{options}" in its docstring."""

    def decorate(function: _F) -> _F:
        found = {each.name: each.option for each in declared(options)}
        signature = inspect.signature(function)
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default)
            for name, option in found.items()
        ]
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        if function.__doc__ is not None:  # None under `python -OO`
            texts = [
                textwrap.fill(f"{name}: {option.help}", 120, initial_indent=_INDENT, subsequent_indent=_INDENT + "    ")
                for name, option in found.items()
            ]
            function.__doc__ = inspect.cleandoc(function.__doc__).replace("{options}", "\n".join(texts).lstrip())
        return function

    return decorate
