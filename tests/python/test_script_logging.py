"""What `logging` has one of per process is each script's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import MEET, Ran, script

IMPORTS = "import logging, logging.config, logging.handlers, warnings"


def ran(folder: Path, text: str) -> tuple[list[str], list[str]]:
    script(folder, "logs.py", MEET + IMPORTS + text)
    ran = Ran(folder, "a=logs.py a", "b=logs.py b")
    assert ran.code == 0, ran.text()
    return ran.of("a"), ran.of("b")


SETS = """
class Loud(logging.getLoggerClass()):
    def info(self, message, *args): super().info(message.upper(), *args)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
if who == "a":
    former = logging.getLogRecordFactory()
    def factory(*args, **kwargs):
        record = former(*args, **kwargs)
        record.msg = f"record {record.msg}"
        return record
    logging.setLogRecordFactory(factory)
    logging.setLoggerClass(Loud)
    logging.addLevelName(25, "NOTICE")
meet("set")
logging.getLogger(f"new.{who}").info("one")
logging.log(25, "two")
print(logging.getLoggerClass().__name__, logging.getLevelName("NOTICE"), logging.getLogRecordFactory().__name__)
"""


def test_classes_records_and_levels_are_those_of_the_script_that_set_them(tmp_path: Path) -> None:
    a, b = ran(tmp_path, SETS)
    assert a == ["INFO record ONE", "NOTICE record two", "Loud 25 factory"]
    assert b == ["INFO one", "Level 25 two", "Logger Level NOTICE LogRecord"]


def test_a_level_that_one_script_disables_is_logged_by_the_other(tmp_path: Path) -> None:
    text = """
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
logging.info("before")
meet("begun")
if who == "a":
    logging.disable(logging.INFO)
meet("disabled")
logging.info("while")
logging.warning("warned")
if who == "a":
    logging.disable(logging.NOTSET)
logging.info("after")
"""
    a, b = ran(tmp_path, text)
    assert a == ["before", "warned", "after"]
    assert b == ["before", "while", "warned", "after"]


def test_a_configuration_closes_the_handlers_of_its_own_script_only(tmp_path: Path) -> None:
    text = """
file = logging.FileHandler(f"{who}.log", mode="w")
file.setFormatter(logging.Formatter("%(message)s"))
kept = logging.handlers.MemoryHandler(100, target=file)
logging.getLogger("file").addHandler(file)
logging.getLogger("kept").addHandler(kept)
meet("opened")
if who == "a":
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
meet("configured")
logging.getLogger("file").warning("one")
logging.getLogger("kept").warning("two")
"""
    ran(tmp_path, text)
    assert (tmp_path / "b.log").read_text() == "one\ntwo\n"
    assert (tmp_path / "a.log").read_text() == ""  # as in plain Python


def test_each_script_may_capture_its_warnings(tmp_path: Path) -> None:
    text = """
logging.basicConfig(stream=sys.stdout, format="%(name)s")
logging.captureWarnings(True)
meet("captured")
warnings.warn("said")
if who == "a":
    logging.captureWarnings(False)
meet("again")
warnings.warn("said again")
"""
    a, b = ran(tmp_path, text)
    assert (a, b) == (["py.warnings"], ["py.warnings"] * 2)


def test_what_an_installed_package_sets_while_it_is_imported_is_for_both(tmp_path: Path) -> None:
    text = """
import pathlib, torch
logging.basicConfig(level=1, stream=sys.stdout, format="%(levelname)s %(message)s")
if who == "a":
    import installed_trace
meet("imported")
import installed_trace
logging.log(5, "one")
logging.getLogger().setLevel("TRACE")
meet("done")
"""
    package = Path(torch.__file__).parents[1] / "installed_trace.py"
    package.write_text("import logging\nlogging.addLevelName(5, 'TRACE')\n")
    try:
        assert ran(tmp_path, text) == (["TRACE one"], ["TRACE one"])
    finally:
        package.unlink()


def test_another_manager_of_loggers_is_as_in_plain_python(tmp_path: Path) -> None:
    text = """
logging.disable(logging.CRITICAL)
manager = logging.Manager(logging.RootLogger(30))
print(manager.getLogger("x").name, manager.disable, logging.root.manager.disable)
"""
    assert ran(tmp_path, text) == (["x 0 50"], ["x 0 50"])


def test_each_script_has_handlers_of_the_same_name(tmp_path: Path) -> None:
    text = """
handler = {"console": {"class": "logging.StreamHandler", "stream": sys.stdout, "level": "INFO"}}
logging.config.dictConfig({"version": 1, "handlers": handler, "root": {"handlers": ["console"], "level": "INFO"}})
meet("configured")
if who == "a":
    logging.config.dictConfig({"version": 1, "incremental": True, "handlers": {"console": {"level": "ERROR"}}})
meet("changed")
logging.info("one")
"""
    assert ran(tmp_path, text) == ([], ["one"])


@pytest.mark.parametrize(
    "disables",
    ["logging.disable(logging.CRITICAL)", "import logging.config; logging.config.dictConfig({'version': 1})"],
)
def test_a_script_that_disables_logging_does_not_disable_what_torchshare_says(tmp_path: Path, disables: str) -> None:
    fails = f"import logging, torch._dynamo\n{disables}\ntorch._dynamo.reset()\nraise ValueError('wrong')\n"
    script(tmp_path, "fails.py", fails)
    for _ in range(2):  # in one process, which keeps what its loggers have looked up
        both = Ran(tmp_path, "a=fails.py", "b=fails.py")
        assert (both.code, both.states()) == (1, ["failed", "failed"])
        assert both.text().count("ValueError: wrong") == 2, both.text()
        assert both.text().count("torch._dynamo.reset() does nothing in a job") == 2, both.text()
