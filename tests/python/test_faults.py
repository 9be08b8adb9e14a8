"""One fault at a time in torchshare's C++ code while two jobs train; see tests/faults.

TORCHSHARE_FAULT_CASES=100000 walks all chances for it in the slow tests, which takes an hour.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "faults"
KINDS = ["allocation", "tensor", "thread", "throw", "delay"]
SAMPLED = 8  # positions of each kind in the fast test
SAMPLED_SLOWLY = int(os.environ.get("TORCHSHARE_FAULT_CASES", "20"))
CAUSES = ["bad_alloc", "MemoryError", "out of memory", "allocate memory", "injected", "be created", "new thread"]

Pair = dict[str, str]
Outcome = dict[str, Any]

PAIR = {"policy": "priority", "start": "step:1"}


class Cases:
    """Runs cases one after the other; see fault_cases.py."""

    def __init__(self, folder: Path) -> None:
        self.library = library = folder / "libfaults.so"
        options = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([os.environ.get("CXX", "c++"), *options, FOLDER / "faults.cpp", "-o", library], check=True)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", FOLDER / "fault_cases.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": str(library)},
        )

    def run(self, pair: Pair, kind: str = "none", position: int = 0) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        case = {**pair, "kind": kind, "position": position}
        print(json.dumps(case), file=self._process.stdin, flush=True)
        outcome: Outcome = json.loads(self._process.stdout.readline())
        return outcome

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


ASSIGNMENTS = """
import ctypes, os, types
from torchshare import _C

faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
assigned = []
watched = (lambda *arguments: assigned.append(arguments) is not None, frozenset(), property)
_C.watch_attributes(*watched)
_C.watch_fields(watched[0])
own, other = (types.ModuleType(f"package_with_a_long_name_{each}.module") for each in ("of_its_own", "of_another"))
exec("def function(): pass\\nclass Class: pass", other.__dict__)
changes = "own.a = other.b = 1; other.function.__defaults__ = (1,); other.Class.c = 1; "
changes += "other.Class.__module__ = []; other.Class.d = 1"
code = compile(changes, "code", "exec")
variables = {"__name__": own.__name__, "own": own, "other": other}
faults.faults_arm(1, ctypes.c_uint64(1))
exec(code, variables)
faults.faults_arm(0, ctypes.c_uint64(0))
assert [each[1] for each in assigned] == ["b", "__defaults__", "c", "d"], assigned
faults.faults_arm(1, ctypes.c_uint64(0))  # counts only
_C.variables_with([{"a": own}], [own])
assert faults.faults_chances() > 0, "the library sees no allocation"
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    cases = Cases(tmp_path_factory.mktemp("faults"))
    yield cases
    cases.close()


def is_pybind11s(error: str) -> bool:
    """If pybind11 finds no memory to register an object, it deallocates the object, finds it unregistered and throws
    through the interpreter, or frees twice what its holder has freed. Then anything may happen: the process ends, or
    `finally` of a job that has suspended another is skipped. True if the backtrace begins there."""
    frames = re.findall(r"(\S+/_(?:C|core)\.\S+\.so)\(\+(0x[0-9a-f]+)\)", error)[:2]
    names = [
        subprocess.run(["addr2line", "-Cife", *frame], capture_output=True, text=True, check=True).stdout
        for frame in frames
    ]
    return any("pybind11::detail::register_instance(" in name for name in names)


def complaint(kind: str, outcome: Outcome, clean: dict[str, str]) -> str | None:
    """What is wrong with the outcome, or None: the fault was absorbed, or is the error of one job or of the runtime."""
    wrong = fault_in(kind, outcome, clean)
    return None if wrong is not None and is_pybind11s(outcome["error"]) else wrong


def fault_in(kind: str, outcome: Outcome, clean: dict[str, str]) -> str | None:
    if outcome["status"] != 0:
        return f"the process ended with {outcome['status']}: {outcome['error']}"
    if outcome["left"]:
        return f"threads are left: {outcome['left']}"
    failed = {job: said for job, said in outcome["jobs"].items() if said != clean[job]}
    said = [outcome["runtime"], *failed.values()] if outcome["runtime"] is not None else [*failed.values()]
    if kind == "delay" and said:
        return f"a delay changed the outcome: {said}"
    if len(said) > 1:
        return f"one fault, several errors: {said}"
    if said and not any(cause in str(said[0]) for cause in CAUSES):
        return f"the error is another one: {said[0]}"
    return None


def check(cases: Cases, pair: Pair, kind: str, most: int) -> None:
    clean = cases.run(pair)
    assert clean == {**clean, "status": 0, "runtime": None, "left": []}
    assert all(len(digest) == 64 for digest in clean["jobs"].values()), clean["jobs"]
    chances = cases.run(pair, kind)["chances"]
    assert chances >= 4
    every = max(1, chances // most)
    positions = range(1, chances + 1, every)
    complaints = [
        f"{kind} {position} of {chances}: {wrong}"
        for position in positions
        if (wrong := complaint(kind, cases.run(pair, kind, position), clean["jobs"])) is not None
    ]
    print(f"{pair}, {kind}: {len(positions)} cases, {len(complaints)} findings")
    assert not complaints, f"{len(complaints)} of {len(positions)} cases:\n" + "\n".join(complaints)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_ends_in_a_clean_state(cases: Cases, kind: str) -> None:
    check(cases, PAIR, kind, SAMPLED)


def test_a_watched_assignment_allocates_nothing(cases: Cases) -> None:
    """An exception cannot leave the interpreter's slots: the process would end."""
    done = subprocess.run(
        [sys.executable, "-c", ASSIGNMENTS],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(cases.library)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", [PAIR, {**PAIR, "policy": "best_fit"}, {**PAIR, "start": "auto"}], ids=str)
def test_a_fault_at_any_chance_ends_in_a_clean_state(cases: Cases, pair: Pair, kind: str) -> None:
    check(cases, pair, kind, SAMPLED_SLOWLY)
