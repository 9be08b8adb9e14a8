"""scripts/mutate.py: the changes that it makes."""

import runpy
from pathlib import Path

MUTATE = runpy.run_path(str(Path(__file__).parents[2] / "scripts/mutate.py"))
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
