"""Scripts with the habits of published ones (tests/habits), every pair in both orders: the files of plain Python."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import preloaded
import pytest
from conftest import Shared

TESTS = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (TESTS / "habits").glob("*.py") if path.stem != "configurator")
FAST = [("language_model", "reinforcement"), ("reinforcement", "language_model"), ("double_precision", "threads")]

PAIRS = list(itertools.permutations(SCRIPTS, 2))
REFUSED = {pair: "torch.set_default_dtype is one per process" for pair in PAIRS if "double_precision" in pair}
"""Pairs of which the second script fails, with the text that says why. To become shorter, not longer."""
LIMIT_S = 300
LOGS = {".log", ".txt", ".csv", ".json"}

Files = dict[str, bytes]


def path_of(script: str) -> str:
    return str(TESTS / "habits" / f"{script}.py")


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Programs:
    """Runs a script with plain Python, once, and pairs of scripts with script_pairs.py."""

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

    def together(self, scripts: list[str], folder: Path) -> tuple[int, str]:
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


def overlap(timeline: Path) -> float:
    """The milliseconds from when both jobs had begun an op until one had ended its last. 0 if one of them has run no
    op, or there is no timeline."""
    events = json.loads(timeline.read_text())["traceEvents"] if timeline.exists() else []
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"]] += [event["ts"], event["ts"] + event["dur"]]
    if len(spans) < 2:
        return 0.0
    return float(min(map(max, spans.values())) - max(map(min, spans.values()))) / 1e3


@pytest.fixture(scope="module")
def programs(shared: Shared) -> Programs:
    return Programs(shared)


def test_there_are_66_pairs() -> None:
    assert len(SCRIPTS) == 12
    assert set(FAST) <= set(PAIRS)


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]
)
def test_a_pair_writes_the_files_of_plain_python(programs: Programs, tmp_path: Path, first: str, second: str) -> None:
    plain, partner = programs.plain(first), programs.plain(second)
    status, printed = programs.together([first, second], tmp_path)
    found = files_in(tmp_path)
    reason = REFUSED.get((first, second))
    if reason is not None:
        assert sum(reason in line for line in printed.splitlines()) == 1, printed
        assert partner.keys() - found.keys(), "the refused script has come to its end"
        refused = {name for name in partner if name not in found or Path(name).suffix in LOGS}
        partner = {name: data for name, data in partner.items() if name not in refused}  # written before, as alone
        found = {name: data for name, data in found.items() if name not in refused}
    else:
        assert overlap(Path(f"{tmp_path}.json")) > 0, printed
    expected = plain | partner
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert (status, wrong) == (int(reason is not None), []), printed
