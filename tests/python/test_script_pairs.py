"""Scripts with the habits of published ones (tests/habits), every pair in both orders: the files of plain Python."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (TESTS / "habits").glob("*.py") if path.stem != "configurator")
FAST = [("language_model", "reinforcement"), ("reinforcement", "language_model"), ("double_precision", "threads")]

PAIRS = list(itertools.permutations(SCRIPTS, 2))
REFUSED = {pair: "torch.set_default_dtype is one per process" for pair in PAIRS if "double_precision" in pair}
"""Pairs of which the second script fails, with the text that says why. To become shorter, not longer."""
LOGS = {".log", ".txt", ".csv", ".json"}

Files = dict[str, bytes]


def path_of(script: str) -> str:
    return str(TESTS / "habits" / f"{script}.py")


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Programs:
    """Runs a script with plain Python, once, and pairs of scripts with script_pairs.py."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plain: dict[str, Files] = {}
        self._process = subprocess.Popen(
            [sys.executable, TESTS / "script_pairs.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def plain(self, script: str) -> Files:
        """The files that the script writes."""
        if script not in self._plain:
            folder = self._folder / script
            folder.mkdir()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, path_of(script)]
            subprocess.run(command, cwd=folder, check=True, timeout=100, env=environment)
            self._plain[script] = files_in(folder)
        return self._plain[script]

    def together(self, scripts: list[str], folder: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        case = {"scripts": list(map(path_of, scripts)), "folder": str(folder)}
        print(json.dumps(case), file=self._process.stdin, flush=True)
        outcome: dict[str, Any] = json.loads(self._process.stdout.readline())
        return outcome

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    programs = Programs(tmp_path_factory.mktemp("plain"))
    yield programs
    programs.close()


def test_there_are_66_pairs() -> None:
    assert len(SCRIPTS) == 12
    assert set(FAST) <= set(PAIRS)


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]
)
def test_a_pair_writes_the_files_of_plain_python(programs: Programs, tmp_path: Path, first: str, second: str) -> None:
    plain, partner = programs.plain(first), programs.plain(second)
    ran = programs.together([first, second], tmp_path)
    found = files_in(tmp_path)
    reason = REFUSED.get((first, second))
    if reason is not None:
        assert sum(reason in line for line in ran["printed"].splitlines()) == 1, ran["printed"]
        assert partner.keys() - found.keys(), "the refused script has come to its end"
        refused = {name for name in partner if name not in found or Path(name).suffix in LOGS}
        partner = {name: data for name, data in partner.items() if name not in refused}  # written before, as alone
        found = {name: data for name, data in found.items() if name not in refused}
    else:
        assert ran["overlap"] > 0, ran["printed"]
    expected = plain | partner
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert (ran["status"], wrong) == (int(reason is not None), []), ran["printed"]
