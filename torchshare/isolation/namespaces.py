"""The variables of a shared module, as code of a job that is not the module's finds them in `vars(module)`,
`module.__dict__` or `function.__globals__`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from types import ModuleType
from typing import Any


class Namespace(dict[str, Any]):
    """What is written here is assigned to the module, so it is seen as any other assignment is. C code reads the
    dictionary itself, a copy of the time when it was asked for."""

    def __init__(self, module: ModuleType, variables: dict[str, Any], own: Callable[[], dict[str, Any]]) -> None:
        """`own`: the variables of the module of which the calling job has values of its own."""
        dict.__init__(self, variables | own())
        self._module = module
        self._variables = variables
        self._own = own

    def _present(self) -> dict[str, Any]:
        own = self._own()
        return self._variables | own if own else self._variables

    def __getitem__(self, name: str) -> Any:
        return self._present()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._present())

    def __len__(self) -> int:
        return len(self._present())

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)
        dict.__setitem__(self, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        delattr(self._module, name)
        dict.pop(self, name, None)

    def update(self, *others: Any, **values: Any) -> None:
        for name, value in dict(*others, **values).items():
            self[name] = value

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self.update(other)
        return self

    def copy(self) -> dict[str, Any]:
        return dict(self._present())


# Those of dict act on the copy; these call the methods above.
for _name in ("__contains__", "clear", "get", "items", "keys", "pop", "popitem", "setdefault", "values"):
    setattr(Namespace, _name, getattr(MutableMapping, _name))
