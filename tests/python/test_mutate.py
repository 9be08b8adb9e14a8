"""scripts/mutate.py: the changes that it makes, and those of scripts/mutants.toml."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTATE = runpy.run_path(str(ROOT / "scripts/mutate.py"))
SOURCE = """\
bool f(int n) {  // n < 1
  const std::string text = "a < b";
  if (n < 10) {
    stop(n,
         2);
  }
  return true;
}
"""


def test_each_change_is_in_one_place_and_none_in_comments_and_strings():
    code = MUTATE["without_comments"](SOURCE)
    changes = {(SOURCE[begin:end], new) for begin, end, new in MUTATE["edits"](code)}
    assert changes == {
        (" < ", " <= "),
        (" < ", " >= "),
        ("10", "11"),
        ("(n < 10)", "(!(n < 10))"),
        ("stop(n,\n         2);", ";"),
        ("2", "3"),
        ("true", "false"),
    }


def test_the_mutants_of_the_set_apply_to_the_tree():
    pytest.importorskip("tomllib")
    listed = MUTATE["read_set"](ROOT / "scripts/mutants.toml")
    assert len(listed) >= 60
    assert len({each.mutant.change for each in listed}) == len(listed)
    for mutant, tests in listed:
        old = (ROOT / mutant.path).read_text()[mutant.begin : mutant.end]
        assert tests and old != mutant.new, mutant.change


def test_the_tests_that_mutants_name_are_there():
    pytest.importorskip("tomllib")
    cpp = "".join(path.read_text() for path in (ROOT / "tests/cpp").glob("*_test.cpp"))
    for _, tests in MUTATE["read_set"](ROOT / "scripts/mutants.toml"):
        for test in tests:
            if MUTATE["is_python"](test):
                path, _, name = shlex.split(test)[0].partition("::")
                assert f"def {name}" in (ROOT / path).read_text(), test
            else:
                suite, _, name = test.partition(".")
                assert re.search(rf"\b{suite}, {name.removesuffix('*')}", cpp), test


def test_a_mutant_that_does_not_apply_is_an_error(tmp_path):
    pytest.importorskip("tomllib")
    path = tmp_path / "mutants.toml"
    path.write_text("[[mutant]]\nbug = 'none'\nfile = 'README.md'\nold = 'not in it'\nnew = ''\ntests = ['A.*']\n")
    with pytest.raises(ValueError, match=r"README.md must have once:\nnot in it\ngot 0 times"):
        MUTATE["read_set"](path)
