"""Each script's start method of multiprocessing: a program may set it once."""

from __future__ import annotations

import multiprocessing.context
from typing import Any

from torchshare.context import current
from torchshare.isolation.table import Table

_NAME = "_actual_context"


class _RoutedContext(multiprocessing.context.DefaultContext):
    """The class of the instance that the functions of `multiprocessing` are methods of."""

    @property
    def _actual_context(self) -> Any:
        script = current.script()
        return vars(self)[_NAME] if script is None else script.start_context

    @_actual_context.setter
    def _actual_context(self, context: Any) -> None:
        script = current.script()
        if script is None:
            vars(self)[_NAME] = context
        else:
            script.start_context = context


TABLE = Table()
_WHY = "Each script has its own start method: a program may set it once."
TABLE.value("multiprocessing.context:_default_context", "__class__", why=_WHY)(lambda _: _RoutedContext)
