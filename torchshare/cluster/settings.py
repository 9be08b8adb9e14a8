"""The settings of a cluster and of its queue; the flags of `torchshare cluster up` are made from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Interval, Predicate

from torchshare import _core
from torchshare.runtime.declared import Expected, Option, check
from torchshare.runtime.options import Every, PositiveInt

STORAGE = "~/.torchshare/cluster"
_POLICIES = _core.cluster_policy_names()
_Number = Annotated[float, Interval(ge=0, lt=math.inf), Expected("a number of at least 0")]


@dataclass(frozen=True)
class QueueSettings:
    policy: Annotated[
        str,
        Predicate(lambda name: name in _POLICIES),
        Expected(f"one of {', '.join(_POLICIES)}"),
        Option("the cluster policy.", metavar="NAME"),
    ] = "pair-srsf"
    interference: Annotated[
        float,
        Interval(ge=1, lt=math.inf),
        Expected("a number of at least 1"),
        Option("ratio of pairs that have not been measured, neither here nor in a profile.", metavar="RATIO"),
    ] = 1.1
    restart_cost: Annotated[_Number, Option("seconds to resume a job.", metavar="S")] = 10.0
    memory: Annotated[
        int,
        Interval(ge=0, lt=2**63),
        Expected("a non-negative integer below 2**63"),
        Option("bytes of a device: only jobs that fit share; 0: ignored.", metavar="BYTES", flag="--device-memory"),
    ] = 0
    duration: Annotated[
        float,
        Interval(ge=1e-3, lt=math.inf),
        Expected("a number of at least 0.001"),
        Option("seconds that a job is taken to last if nothing is known of it."),
    ] = 3600.0

    def __post_init__(self) -> None:
        check(QueueSettings, vars(self), "QueueSettings")


@dataclass(frozen=True)
class ClusterSettings:
    storage: Annotated[str, Expected("a folder"), Option("folder that all nodes see.", STORAGE, metavar="DIR")]
    queue: QueueSettings = field(default_factory=QueueSettings)
    every: Annotated[Every, Option("how often jobs write checkpoints.", metavar="INTERVAL")] = "5min"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Expected("auto, cpu or cuda"),
        Option("cpu, or auto: a GPU if there is one.", metavar="D"),
    ] = "auto"
    hosts_per_node: Annotated[
        PositiveInt, Option("hosts on nodes without GPUs; on others, a host per GPU.", metavar="N")
    ] = 1

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if name != "queue"}
        check(ClusterSettings, given, "ClusterSettings")
