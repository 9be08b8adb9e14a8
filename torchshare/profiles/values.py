"""The types of the values in a file, such as a profile, and what is wrong with one."""

from __future__ import annotations

import re
import reprlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Seconds = Annotated[float, Field(gt=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=10**9)]


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def fault(error: ValidationError) -> str:
    """The first fault of a file, in our words."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"'{where}' is missing"
    if first["type"] == "extra_forbidden":
        return f"unknown key '{where}'"
    message = re.sub(r"^Value error, |^(Input|String|List|Dictionary) should(?= )", "", first["msg"]).strip()
    message = message if message.startswith(("must", "fit.")) else f"must {message}"
    got = "" if isinstance(first["input"], (dict, list)) else f", got {reprlib.repr(first['input'])}"
    return f"invalid {where or 'content'}{got}: {message}"
