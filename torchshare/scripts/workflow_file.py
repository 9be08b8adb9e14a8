"""workflow.toml: the stages of a workflow, for `torchshare plan --workflow`.

rate = 20

[stages.detect]
profiles = ["detect-1.json", "detect-8.json"]

[stages.classify]
profiles = ["classify-1.json"]
after = ["detect"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from torchshare.profiles.profile import Profile
from torchshare.profiles.values import Value, fault
from torchshare.profiling.workflow_plan import Stage, Workflow
from torchshare.scripts.toml_file import load


class _Stage(Value):
    profiles: Annotated[list[str], Field(min_length=1)]
    after: list[str] = Field(default_factory=list)


class _File(Value):
    rate: Annotated[float, Field(gt=0, le=1e6)]
    stages: Annotated[dict[str, _Stage], Field(min_length=1)]


def read(path: Path) -> Workflow:
    """Paths of profiles are relative to the current folder. Raises ValueError for a file that cannot be used."""
    try:
        found = _File.model_validate(load(path)[1])
    except ValidationError as error:
        raise ValueError(f"{path}: {fault(error)}") from None
    stages = []
    for name, stage in found.stages.items():
        for other in stage.after:
            if other not in found.stages:
                raise ValueError(f"stage '{name}': after must be of {', '.join(found.stages)}, got '{other}'")
        try:
            stages.append(Stage(name, [Profile.load(file) for file in stage.profiles], stage.after))
        except ValueError as error:
            raise ValueError(f"stage '{name}': {error}") from None
    return Workflow(found.rate, stages)
