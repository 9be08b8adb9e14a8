"""The options of Runtime and Runtime.submit, each said once: its type, what it must be, and its text.

From here come the checks, the signatures with their "Args:", and the flags of `torchshare run`. What C++ is to know of
an option is a field of RuntimeOptions or JobSpec with the same name (csrc/runtime, csrc/bindings/bind_runtime.cpp).
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

from annotated_types import Interval
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from torchshare.profiles.profile import Profile

_F = TypeVar("_F", bound=Callable[..., Any])
_S = TypeVar("_S")
_INDENT = 12 * " "  # of a docstring's arguments


@dataclass(frozen=True)
class Expected:
    """What a value of this type is to be, for messages."""

    text: str


@dataclass(frozen=True)
class Option:
    """The text of an option."""

    help: str
    default: object = None
    """As the signature shows it."""
    metavar: str | None = None
    """Of its flag; an option without one is not on the command line."""

    def flag_help(self) -> str:
        """The first sentence, for `--help`."""
        first = self.help.split(". ")[0].rstrip(".").replace("%", "%%")
        return first if self.default is None else f"{first} (default: {self.default})"


WholeNumber = Annotated[int, Interval(ge=0), Expected("a whole number, at least 0")]
SecondsAboveZero = Annotated[float, Interval(gt=0, lt=float("inf")), Expected("seconds, above 0")]
Text = Annotated[str, Expected("a string")]
Flag = Annotated[bool, Expected("True or False")]


class RuntimeOptions(TypedDict, total=False):
    """The keywords of Runtime."""

    policy: Annotated[
        Text,
        Option(
            'who may enter an op. "priority": everybody, the device\'s scheduler keeps the order (SCHED_IDLE for lower '
            'jobs on the CPU, the streams\' priorities on a GPU). "strict": a job waits while a higher one is inside '
            "an op, or was within `grace` seconds; on a GPU, also while the higher one's stream has work. "
            '"best_fit": also into shorter gaps, where its op is expected to end before the higher job returns, and '
            "not into longer ones where it is not (FIKIT, arXiv 2311.10359). It learns how long ops and gaps are, or "
            'has it from the jobs\' profiles. See `gap_report`. "resource": as "best_fit", and an op that moves memory '
            "may run beside one that computes, or the other way round.",
            "priority",
            metavar="NAME",
        ),
    ]
    grace: Annotated[
        float,
        Interval(ge=0, le=1),
        Expected("seconds, 0 to 1"),
        Option("seconds for which a higher job must be outside of ops before a lower one may enter.", 200e-6, "S"),
    ]
    max_wait: Annotated[
        SecondsAboveZero | None,
        Option(
            "seconds after which an op of a lower job is let in whatever the policy says. Default: never.", metavar="S"
        ),
    ]
    run_ahead: Annotated[
        Annotated[float, Interval(gt=0, le=1), Expected("seconds, above 0, at most 1")] | None,
        Option(
            "on a GPU, seconds of work that a lower job may have launched and the GPU not done yet, as predicted: a "
            "higher job that comes back waits for no more. Default there: 500 us with policies that make jobs wait.",
            metavar="S",
        ),
    ]
    device_priority: Annotated[Flag, Option("False leaves the order to the policy alone.", True)]
    max_slowdown: Annotated[
        float | None,
        Expected("a number"),
        Option(
            "a bound on the primary's slowdown, 0.05 for 5 %: its own steps, with and without the others beside it, "
            "set how much the others may run. See `bound_report`.",
            metavar="X",
        ),
    ]
    secondary_share: Annotated[
        float | None,
        Expected("a number"),
        Option(
            "instead of a bound, the share of the time in which jobs that another outranks may run.", metavar="SHARE"
        ),
    ]
    timeline_capacity: Annotated[
        int,
        Interval(ge=1),
        Expected("a whole number, at least 1"),
        Option("events kept of each job, and of all states and decisions; the oldest go first.", 1_000_000),
    ]


class JobOptions(TypedDict, total=False):
    """The keywords of Runtime.submit."""

    name: Annotated[Text | None, Option("default: the function's name. Unique in this runtime.")]
    priority: Annotated[Text, Option('"primary", "secondary" or "level-0" (= primary) to "level-9".', "secondary")]
    start: Annotated[
        str | float,
        Expected("a string or seconds"),
        Option(
            'when it starts: "now", "after:<job>" (when that job has ended), "step:<k>" (when the primary has done k '
            'steps or has ended), seconds after submission, or "auto": when that makes the average completion time of '
            "the pair least. With profiles that is planned; without, found out by a probe of a few steps of each job "
            'alone and of both. An "auto" job may be held meanwhile, and so may the one beside it, unless there is a '
            "`max_slowdown`.",
            "now",
            metavar="WHEN",
        ),
    ]
    sub_batch: Annotated[
        int | None,
        Interval(ge=1),
        Expected("a whole number of rows, at least 1"),
        Option("rows that run at once: the default of `job.batches`.", metavar="N"),
    ]
    threads: Annotated[
        int | None,
        Interval(ge=1, le=1024),
        Expected("a whole number, 1 to 1024"),
        Option(
            "intra-op threads. Default: `torch.get_num_threads()`. Bit-identity holds at equal `threads`.", metavar="N"
        ),
    ]
    seed: Annotated[
        int,
        Interval(ge=0, lt=2**64),
        Expected("a whole number, 0 to 2**64 - 1"),
        Option(
            "of the job's random state: torch, `random` and `numpy.random` start as if seeded with it.", 0, metavar="N"
        ),
    ]
    steps: Annotated[
        WholeNumber | None,
        Option(
            'steps of the whole job, where that is known; "auto" goes by it. Without `steps` or `epochs`, by the '
            "length of its loader, else it takes the job to be as long as the other.",
            metavar="N",
        ),
    ]
    epochs: Annotated[
        WholeNumber | None, Option("passes over its loader, where that is known; see `steps`.", metavar="N")
    ]
    profile: Annotated[
        Profile | str | os.PathLike[str] | None,
        Expected("a Profile, or the file of one"),
        Option("what `torchshare.profile` measured, or the file it is in.", metavar="FILE"),
    ]
    meter_memory: Annotated[
        Flag,
        Option(
            "count the job's tensors for `Result.memory_peak`; costs a lock per allocation. Jobs on a GPU always do.",
            False,
        ),
    ]
    memory_budget: Annotated[
        WholeNumber | None,
        Option(
            "bytes that the job's tensors may take on the device, workspaces of cuBLAS and cuDNN included. What goes "
            "over it raises `BudgetExceeded` in this job.",
            metavar="BYTES",
        ),
    ]
    sms: Annotated[
        WholeNumber | None,
        Option(
            "streaming multiprocessors of the GPU that the job's work may use (a green context). The driver rounds; "
            "`Job.sms` is what it gave.",
            metavar="N",
        ),
    ]
    record_ops: Annotated[Flag, Option("time every op of the job, for `torchshare.profile`.", False)]


@dataclass(frozen=True)
class Declared:
    """An option as it is declared."""

    name: str
    type: Any
    option: Option
    expected: str

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def number(self) -> type | None:
        """int or float, for an option that is nothing else."""
        kinds = set(_kinds(self.type)) - {type(None)}
        return kinds.pop() if len(kinds) == 1 and kinds <= {int, float} else None


def declared(options: type, profile: type = object) -> Iterator[Declared]:
    """What a class of options declares, in its order. `profile` stands for Profile, which takes a while to import."""
    for name, hint in get_type_hints(options, localns={"Profile": profile}, include_extras=True).items():
        found = list(_metadata(hint))
        option = next(value for value in found if isinstance(value, Option))
        expected = next(value.text for value in found if isinstance(value, Expected))
        yield Declared(name, hint, option, expected)


def on_the_command_line(options: type) -> list[Declared]:
    """Those that have a flag."""
    return [option for option in declared(options) if option.option.metavar is not None]


def _metadata(hint: Any) -> Iterator[Any]:
    """What a type is annotated with, and then what the types inside of it are."""
    yield from getattr(hint, "__metadata__", ())
    for argument in get_args(hint):
        yield from _metadata(argument)


def _kinds(hint: Any) -> Iterator[type]:
    """The plain types of a hint."""
    if hasattr(hint, "__metadata__"):
        yield from _kinds(hint.__origin__)
    elif arguments := get_args(hint):
        for argument in arguments:
            yield from _kinds(argument)
    else:
        yield hint


@functools.cache
def _checked(options: type) -> dict[str, tuple[Declared, TypeAdapter[Any]]]:
    from pydantic import TypeAdapter

    from torchshare.profiles.profile import Profile

    return {each.name: (each, TypeAdapter(each.type, config={"strict": True})) for each in declared(options, Profile)}


def check(options: type, given: Mapping[str, Any], caller: str, job: str | None = None) -> None:
    """Raises TypeError for a keyword that there is not, ValueError for a value that is not as declared."""
    from pydantic import ValidationError

    known = _checked(options)
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{caller}() has no option '{name}'; expected one of {', '.join(known)}")
        option, adapter = known[name]
        try:
            adapter.validate_python(value)
        except ValidationError:
            of_job = "" if job is None else f"job '{job}': "
            raise ValueError(f"{of_job}{name} is {value!r}; expected {option.expected}") from None


def fill(spec: _S, given: Mapping[str, Any]) -> _S:
    """Sets the fields that `spec`, of C++, has of the options given; None is its own default."""
    for name, value in given.items():
        if value is not None and hasattr(type(spec), name):
            setattr(spec, name, value)
    return spec


def documented(options: type) -> Callable[[_F], _F]:
    """Shows the options behind a function's `**options` in its signature, and in its docstring in the place of
    "{options}"."""

    def decorate(function: _F) -> _F:
        found = {each.name: each.option for each in declared(options)}
        signature = inspect.signature(function)
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default)
            for name, option in found.items()
        ]
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        if function.__doc__ is not None:  # as `python -OO` has it
            texts = [
                textwrap.fill(f"{name}: {option.help}", 120, initial_indent=_INDENT, subsequent_indent=_INDENT + "    ")
                for name, option in found.items()
            ]
            function.__doc__ = function.__doc__.replace("{options}", "\n".join(texts).lstrip())
        return function

    return decorate
