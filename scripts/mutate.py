"""Mutation testing of the C++ sources: changes one place at a time, builds and runs the tests, and lists the changes
that no test noticed.

    python scripts/mutate.py csrc/policy csrc/sharing --count 200
    python scripts/mutate.py csrc/gate/*.cpp --program torchshare_tests --filter '*Gate*:OpWatch*'

Works on a copy of the tree. A mutant is killed if a test fails, crashes or does not end in time.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.program, self.test_filter = folder, options.program, options.filter
        self.build = folder / "build/mutants"  # as deep as build/cpython-*, whose objects ccache has
        left_out = shutil.ignore_patterns(".git", ".venv", "build", "*.so")
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=left_out)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        with (folder / "CMakeLists.txt").open("a") as file:  # a mutant may warn
            globs = " ".join(f"{source}/*.cpp {source}" for source in options.sources)
            file.write(f"file(GLOB mutated {globs})\n")
            file.write('set_source_files_properties(${mutated} PROPERTIES COMPILE_OPTIONS "-w;-O0")\n')
        python = f"-DTORCHSHARE_PYTHON={folder / '.venv/bin/python'}"
        configure = ["cmake", "-S", str(folder), "-B", str(self.build), "-DTORCHSHARE_TESTS=ON", python]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"CMAKE_GENERATOR": "Ninja"})

    def builds(self) -> bool:
        build = ["cmake", "--build", self.build, "--target", self.program, "-j1"]
        return subprocess.run(build, capture_output=True).returncode == 0

    def passes(self, limit: float) -> bool:
        test = [self.build / "tests/cpp" / self.program, f"--gtest_filter={self.test_filter}", "--gtest_fail_fast"]
        try:
            return subprocess.run(test, capture_output=True, timeout=limit).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def outcome(self, mutant: Mutant, limit: float) -> str:
        path = self.folder / mutant.path
        text = path.read_text()
        path.write_text(text[: mutant.begin] + mutant.new + text[mutant.end :])
        try:
            return "did not compile" if not self.builds() else "survived" if self.passes(limit) else "killed"
        finally:
            path.write_text(text)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="files and folders to change, such as csrc/policy")
    parser.add_argument("--program", default="torchshare_core_tests", help="the tests to run: a target of tests/cpp")
    parser.add_argument("--filter", default="*", help="which of its tests, as for --gtest_filter")
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="of their choice")
    options = parser.parse_args()
    mutants = sample(options.sources, options.count, options.seed)
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        copy = Copy(Path(folder), options)
        if not copy.builds():
            parser.exit(1, "the unchanged tree does not build\n")
        began = time.monotonic()
        if not copy.passes(600):
            parser.exit(1, "the tests of the unchanged tree fail\n")
        limit = 10 + 10 * (time.monotonic() - began)
        for mutant in mutants:
            outcome = copy.outcome(mutant, limit)
            outcomes[mutant.path][outcome] += 1
            if outcome == "survived":
                print(f"survived {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
    print_table(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
