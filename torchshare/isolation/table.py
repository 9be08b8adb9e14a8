"""Tables of what is replaced in torch, Python and other packages, so that each job has its own. Each module declares
its rows beside the functions that they put in place; `Patches.apply` applies them."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchshare import torch_versions

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Row:
    """One attribute that is replaced."""

    owner: str
    """A module, or what is inside one, such as "torch.optim:Optimizer"."""
    name: str
    make: Callable[[Any], Any]
    """Gets the former value. Returns the one that replaces it."""
    why: str
    """One sentence, for docs/isolation.md and error messages."""
    everywhere: bool
    """Whether names that other modules have bound to it before are replaced, too; see Patches.wrap."""
    versions: str
    """The versions of torch that have it, such as ">=2.13"; empty: all."""

    def __str__(self) -> str:
        return f"{self.owner.replace(':', '.')}.{self.name}"

    @property
    def module(self) -> str:
        return self.owner.partition(":")[0]

    def holder(self) -> Any:
        """The owner itself, whose module must be loaded; None if it does not exist."""
        _, _, path = self.owner.partition(":")
        found: Any = sys.modules[self.module]
        for name in path.split(".") if path else ():
            found = getattr(found, name, None)
        return found

    def exists(self) -> bool:
        """Whether the loaded module has it."""
        return hasattr(self.holder(), self.name)

    def is_for(self, version: str = torch.__version__) -> bool:
        return torch_versions.is_one_of(version, self.versions)


class Table:
    """The rows of one module, in the order in which they are applied."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.starts: list[Callable[[Any], None]] = []

    def value(
        self, owner: str, *names: str, why: str = "", everywhere: bool = False, versions: str = ""
    ) -> Callable[[Function], Function]:
        """Declares rows whose new value the decorated function makes from the former one. `why` is by default the first
        sentence of its docstring."""

        def declare(make: Function) -> Function:
            reason = why or re.split(r"(?<=\.)\s", " ".join((make.__doc__ or "").split()))[0]
            self.rows += [Row(owner, name, make, reason, everywhere, versions) for name in names]
            return make

        return declare

    def call(self, owner: str, *names: str, **options: Any) -> Callable[[Function], Function]:
        """Declares rows of functions. Their calls call the decorated function with the original one and the arguments.
        Options as for `value`."""

        def declare(function: Function) -> Function:
            self.value(owner, *names, **options)(around(function))
            return function

        return declare

    def at_start(self, function: Function) -> Function:
        """Calls the function with the Patches before the rows are applied, for what is no attribute that exists."""
        self.starts.append(function)
        return function


def around(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes functions that call `function` with the original one and the arguments."""

    @functools.wraps(function)
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        return call

    return make
