"""Scripts with the habits of published ones (tests/habits), every pair in both orders, most of them three at a time:
the files of plain Python."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import preloaded
import pytest
from conftest import Shared

Files = dict[str, bytes]
Scripts = tuple[str, ...]

TESTS = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (TESTS / "habits").glob("*.py") if path.stem != "configurator")
FAST = [("language_model", "reinforcement"), ("reinforcement", "language_model"), ("double_precision", "threads")]

PAIRS = list(itertools.permutations(SCRIPTS, 2))


def pairs_of(scripts: Scripts) -> set[Scripts]:
    """The pairs in a run, the job of the higher priority first."""
    return set(itertools.combinations(scripts, 2))


def runs_with(pairs: list[Scripts]) -> list[Scripts]:
    """Scripts that run together, three at most, such that each of the pairs does. Two that fail do by themselves."""
    runs = [pair for pair in pairs if pair in REFUSED]
    left = set(pairs) - set(runs)
    triples = list(itertools.permutations(sorted({script for pair in left for script in pair}), 3))
    while left:
        runs.append(max(triples, key=lambda triple: len(pairs_of(triple) & left)))
        left -= pairs_of(runs[-1])
    return runs


REFUSED = {pair: "torch.set_default_dtype is one per process" for pair in PAIRS if "double_precision" in pair}
"""Pairs of which the second script fails, with the text that says why. To become shorter, not longer."""
SLOW = runs_with([pair for pair in PAIRS if pair not in FAST])
LIMIT_S = 300
LOGS = {".log", ".txt", ".csv", ".json"}


def path_of(script: str) -> str:
    return str(TESTS / "habits" / f"{script}.py")


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Programs:
    """Runs a script with plain Python, once, and several with script_pairs.py."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._plain: dict[str, Files] = {}

    def plain(self, script: str) -> Files:
        """The files that the script writes."""

        def run(folder: Path) -> None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, path_of(script)], cwd=folder, check=True, timeout=LIMIT_S, env=environment)

        if script not in self._plain:
            self._plain[script] = files_in(self._shared.folder(f"plain_{script}", run))
        return self._plain[script]

    def together(self, scripts: Scripts, folder: Path) -> tuple[int, str]:
        """The exit status, and what was printed."""
        arguments = [str(TESTS / "script_pairs.py"), str(folder), *map(path_of, scripts)]
        process = preloaded.Process(
            arguments, cwd=folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            printed, _ = process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has left behind
        return process.returncode, printed


def overlap(timeline: Path, jobs: int) -> float:
    """The milliseconds from when all jobs had begun an op until one had ended its last. 0 if one of them has run no op,
    or there is no timeline."""
    events = json.loads(timeline.read_text())["traceEvents"] if timeline.exists() else []
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"]] += [event["ts"], event["ts"] + event["dur"]]
    if len(spans) < jobs:
        return 0.0
    return float(min(map(max, spans.values())) - max(map(min, spans.values()))) / 1e3


@pytest.fixture(scope="module")
def programs(shared: Shared) -> Programs:
    return Programs(shared)


def test_all_66_pairs_run_in_both_orders() -> None:
    assert len(SCRIPTS) == 12
    assert len(SLOW) < len(PAIRS) / 2
    assert set().union(*map(pairs_of, FAST + SLOW)) == set(PAIRS)


@pytest.mark.parametrize(
    "scripts",
    [pytest.param(run, id="-".join(run), marks=[] if run in FAST else pytest.mark.slow) for run in FAST + SLOW],
)
def test_scripts_write_the_files_of_plain_python(programs: Programs, tmp_path: Path, scripts: Scripts) -> None:
    *others, last = map(programs.plain, scripts)
    status, printed = programs.together(scripts, tmp_path)
    found = files_in(tmp_path)
    reason = REFUSED.get(scripts)
    if reason is not None:
        assert sum(reason in line for line in printed.splitlines()) == 1, printed
        assert last.keys() - found.keys(), "the refused script has come to its end"
        refused = {name for name in last if name not in found or Path(name).suffix in LOGS}
        last = {name: data for name, data in last.items() if name not in refused}  # written before, as alone
        found = {name: data for name, data in found.items() if name not in refused}
    else:
        assert overlap(Path(f"{tmp_path}.json"), len(scripts)) > 0, printed
    expected = functools.reduce(operator.or_, others, last)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert (status, wrong) == (int(reason is not None), []), printed
