"""Mutation testing: changes one place at a time, builds and runs the tests, and lists the changes that no test noticed.

    python scripts/mutate.py csrc/policy csrc/sharing --count 200
    python scripts/mutate.py csrc/gate/*.cpp --program torchshare_tests --filter '*Gate*:OpWatch*'
    python scripts/mutate.py --set scripts/mutants.toml csrc/device

Works on a copy of the tree. A mutant is killed if a test fails, crashes or does not end in time. With `--set`, the
mutants are those of a file; the tests that a mutant names run first, then with `--all` the other C++ tests and those
marked gpu, on the emulated CUDA device of `make build-emulator`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("killed", "survived", "did not compile")

OPERATORS = [("<", "<="), (">", ">="), ("<", ">="), (">", "<="), ("==", "!="), ("&&", "||"), ("+", "-"), ("*", "/")]
SWAPS = {"any_of(": ["all_of("], "++": ["--"], "true": ["false"], "false": ["true"]}
for one, other in [*OPERATORS, ("+=", "-=")]:  # with spaces: clang-format puts none into templates and pointers
    SWAPS.setdefault(f" {one} ", []).append(f" {other} ")
    SWAPS.setdefault(f" {other} ", []).append(f" {one} ")
SWAPS |= {"std::min(": ["std::max("], "std::max(": ["std::min("]}
SWAP = re.compile("|".join(rf"\b{word}\b" if word.isalpha() else re.escape(word) for word in SWAPS))
NUMBER = re.compile(r"(?<![\w.'])(\d[\d']*(?:\.\d+)?(?:e-?\d+)?)(?=(?:[mun]?s|U)?\b)")
NOT = re.compile(r"(?<=[ (])!(?=[\w(])")
CONDITION = re.compile(r"\b(?:if|while) (?=\()")
# A call or an assignment that is a statement of its own; a declaration begins with two words.
STATEMENT = re.compile(
    r"^ +(?!return\b|throw\b|using\b|else\b|case\b)"
    r"((?:[\w:]+[.\[(>-]|[\w:.\[\]()>-]+ [-+*/|&%]?= |\+\+|--|\*\w)[^;{}]*;|(?:continue|break|return);)",
    re.MULTILINE,
)
NOT_CODE = re.compile(
    r'//[^\n]*|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^#[^\n]*', re.DOTALL | re.MULTILINE
)


class Mutant(NamedTuple):
    path: str
    begin: int
    end: int
    new: str
    line: int
    change: str  # its line, for the report


def without_comments(text: str) -> str:
    """`text` with comments, strings and directives blanked; offsets stay."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def closing(code: str, opening: int) -> int:
    """Where the parenthesis at `opening` closes."""
    depth = itertools.accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in code[opening:])
    return next(opening + at for at, level in enumerate(depth) if level == 0)


def other_number(text: str) -> str:
    if re.fullmatch(r"[\d']+", text):
        return str(int(text.replace("'", "")) + 1)
    return repr(2 * float(text) or 1.0)


def edits(code: str) -> Iterator[tuple[int, int, str]]:
    """All places to change: begin, end and the new text."""
    for found in SWAP.finditer(code):
        for new in SWAPS[found[0]]:
            yield *found.span(), new
    for found in NUMBER.finditer(code):
        yield *found.span(), other_number(found[0])
    for found in NOT.finditer(code):
        yield *found.span(), ""
    for found in CONDITION.finditer(code):
        end = closing(code, found.end())
        inner = code[found.end() : end + 1]
        if ";" not in inner and " = " not in inner:
            yield found.end(), end + 1, f"(!{inner})"
    for found in STATEMENT.finditer(code):
        if code[: found.start()].rstrip()[-1:] in (";", "{", "}", ":"):
            yield *found.span(1), ";"


def mutants_of(path: Path) -> Iterator[Mutant]:
    text = path.read_text()
    for begin, end, new in edits(without_comments(text)):
        line_begin = text.rfind("\n", 0, begin) + 1
        line_end = text.find("\n", end)
        before, after = text[line_begin:begin], text[end:line_end]
        change = " ".join(f"{before}[{text[begin:end].strip()} -> {new.strip()}]{after}".split())
        yield Mutant(str(path.relative_to(ROOT)), begin, end, new, text.count("\n", 0, begin) + 1, change)


class Copy:
    """A copy of the tree with a build of its own."""

    def __init__(self, folder: Path, emulated: bool = False) -> None:
        self.folder = folder
        self.build = folder / "build/mutants"
        left_out = shutil.ignore_patterns(".git", ".venv", "build", "*.so")
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=left_out)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        options = {
            "TORCHSHARE_PYTHON": folder / ".venv/bin/python",
            "TORCHSHARE_TESTS": "ON",
            "TORCHSHARE_UNITY_BATCH": 4,  # each mutant compiles as many files
            "CMAKE_BUILD_TYPE": "Debug",
            "CMAKE_CXX_FLAGS": "-w",  # a mutant may warn
        }
        configure = ["cmake", "-S", folder, "-B", self.build, *(f"-D{name}={value}" for name, value in options.items())]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"CMAKE_GENERATOR": "Ninja"})
        if emulated:
            for module in ("_C", "_core"):
                name = f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
                (folder / "torchshare" / name).symlink_to(self.build / name)

    def builds(self, *targets: str) -> bool:
        build = ["cmake", "--build", self.build, "--parallel", "2", "--target", *targets]
        return subprocess.run(build, capture_output=True).returncode == 0

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.path
        text = path.read_text()
        path.write_text(text[: mutant.begin] + mutant.new + text[mutant.end :])
        try:
            yield
        finally:
            path.write_text(text)

    def failure(self, command: list[str], limit: float, **environment: str) -> str | None:
        """The first test that fails, or how the command ended; None if all pass."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # it starts others
        )
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return "does not end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            return None
        found = re.search(r"^(?:FAILED|ERROR|\[  FAILED  \]) (\S+)", said, re.MULTILINE)
        return found[1] if found else f"ends with {process.returncode}"

    def cpp_failure(self, program: str, test_filter: str, limit: float) -> str | None:
        test = [str(self.build / "tests/cpp" / program), f"--gtest_filter={test_filter}", "--gtest_fail_fast"]
        return self.failure(test, limit)

    def gpu_failure(self, arguments: str, limit: float) -> str | None:
        """Of tests on the emulated device."""
        emulator = self.folder / "tests/emulator"
        pytest = [".venv/bin/python", "-m", "pytest", "-m", "gpu and not slow", "-x", "-p", "no:cacheprovider"]
        return self.failure(
            [str(emulator / "run.sh"), *pytest, "--timeout=120", *shlex.split(arguments)],
            limit,
            BUILD=str(ROOT / "build" / sys.implementation.cache_tag),
            PYTHONPATH=f"{emulator}:{self.folder}",
            PYTEST_PLUGINS="emulated_device",
            TORCHSHARE_REQUIRE_GPU="1",
        )


def is_python(test: str) -> bool:
    return test.startswith("tests/")


def sample(sources: list[str], count: int, seed: int) -> list[Mutant]:
    paths = itertools.chain.from_iterable([ROOT / source, *(ROOT / source).rglob("*")] for source in sources)
    files = sorted(path for path in paths if path.suffix in (".h", ".cpp"))
    every = list(itertools.chain.from_iterable(map(mutants_of, files)))
    print(f"{len(every)} possible mutants in {len(files)} files", flush=True)
    return sorted(random.Random(seed).sample(every, min(count, len(every))))  # by file: fewer are compiled again


def print_table(outcomes: dict[str, collections.Counter[str]]) -> None:
    print(f"\n{'':32}" + "".join(f"{outcome:>17}" for outcome in OUTCOMES))
    total: collections.Counter[str] = sum(outcomes.values(), collections.Counter())
    for name, counts in [*outcomes.items(), ("all", total)]:
        print(f"{name:32}" + "".join(f"{counts[outcome]:17}" for outcome in OUTCOMES))


class Listed(NamedTuple):
    """A mutant of a file of mutants."""

    mutant: Mutant
    tests: list[str]  # that should notice it


def read_set(path: Path, sources: Iterable[str] = ()) -> list[Listed]:
    """The mutants of a file, or those in `sources`. Raises ValueError if one does not apply to the tree."""
    import tomllib

    found = []
    for entry in tomllib.loads(path.read_text())["mutant"]:
        text = (ROOT / entry["file"]).read_text()
        if text.count(entry["old"]) != 1:
            raise ValueError(f"{entry['file']} must have once:\n{entry['old']}\ngot {text.count(entry['old'])} times")
        begin = text.index(entry["old"])
        line = text.count("\n", 0, begin) + 1
        mutant = Mutant(entry["file"], begin, begin + len(entry["old"]), entry["new"], line, entry["bug"])
        found.append(Listed(mutant, entry["tests"]))
    return [each for each in found if not sources or any(each.mutant.path.startswith(source) for source in sources)]


def first_failure(copy: Copy, tests: Iterable[str], limit: float = 90) -> str | None:
    """Builds what the tests need and runs them; the first that fails."""
    for test in tests:
        if not copy.builds("_C" if is_python(test) else "torchshare_tests"):
            return "did not compile"
        run = copy.gpu_failure(test, limit) if is_python(test) else copy.cpp_failure("torchshare_tests", test, limit)
        if run is not None:
            return run
    return None


def run_set(listed: list[Listed], folder: Path, run_all: bool) -> dict[str, collections.Counter[str]]:
    copy = Copy(folder, emulated=True)
    if not copy.builds("python_modules", "torchshare_tests"):
        sys.exit("the unchanged tree does not build")
    for test in dict.fromkeys(itertools.chain.from_iterable(each.tests for each in listed)):
        if (failed := first_failure(copy, [test])) is not None:
            sys.exit(f"the unchanged tree fails {test}: {failed}")
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for mutant, tests in listed:
        with copy.changed(mutant):
            by = first_failure(copy, tests)
            if by is None and run_all:
                by = first_failure(copy, ["*", "tests/python", "tests/emulator"], limit=1800)
        outcome = "survived" if by is None else by if by in OUTCOMES else "killed"
        outcomes[str(Path(mutant.path).parent)][outcome] += 1
        print(f"{outcome} {mutant.path}:{mutant.line}: {mutant.change} {by or ''}", flush=True)
    return outcomes


def run_random(
    copy: Copy, mutants: list[Mutant], program: str, test_filter: str
) -> dict[str, collections.Counter[str]]:
    if not copy.builds(program):
        sys.exit("the unchanged tree does not build")
    began = time.monotonic()
    if copy.cpp_failure(program, test_filter, 600):
        sys.exit("the tests of the unchanged tree fail")
    limit = 10 + 10 * (time.monotonic() - began)
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for mutant in mutants:
        with copy.changed(mutant):
            if not copy.builds(program):
                outcome = "did not compile"
            else:
                outcome = "killed" if copy.cpp_failure(program, test_filter, limit) else "survived"
        outcomes[mutant.path][outcome] += 1
        if outcome == "survived":
            print(f"survived {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="files and folders to change, such as csrc/policy")
    parser.add_argument("--program", default="torchshare_core_tests", help="the tests to run: a target of tests/cpp")
    parser.add_argument("--filter", default="*", help="which of its tests, as for --gtest_filter")
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="of their choice")
    parser.add_argument("--set", type=Path, help="a file of mutants, of which those in `sources` are made")
    parser.add_argument("--all", action="store_true", help="with --set: run all tests where those that are named pass")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        if options.set:
            outcomes = run_set(read_set(options.set, options.sources), Path(folder), options.all)
        else:
            mutants = sample(options.sources, options.count, options.seed)
            outcomes = run_random(Copy(Path(folder)), mutants, options.program, options.filter)
    print_table(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
