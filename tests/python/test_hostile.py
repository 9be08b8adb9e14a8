"""Files and options that anyone may have written: one line and exit status 1 or 2, soon, and no traceback.

TORCHSHARE_FUZZ_CASES=10000 runs more cases than CI does.
"""

from __future__ import annotations

import functools
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import launch, torchshare_command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_plan import profile

from torchshare.profiles.ops import OpTrace

CASES = int(os.environ.get("TORCHSHARE_FUZZ_CASES", "60"))
SECONDS = 10.0  # of a core; it takes 2
fuzzed = settings(
    max_examples=CASES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMBERS = [0, -1, 1, 2, 1e-300, 1e300, -1e300, float("inf"), float("nan"), 2**31, 2**63, 2**64, 10**400]
TEXTS = ["", "\udc80", "\ud800", "\0", "\x1b[2J", "[red]", "../../x", "a" * 10_000, "1", "nan", "1e400", "9" * 5000]
ANY = st.one_of(
    st.sampled_from([*NUMBERS, *TEXTS, None, True, [], {}, [[]], {"a": 1}]), st.integers(), st.floats(), st.text()
)


def check(*words: str, folder: Path, may_succeed: bool = True) -> None:
    """Runs a verb on hostile input."""
    begin = time.process_time()
    done = torchshare_command(*words, folder=folder)
    took = time.process_time() - begin
    lines = done.stderr.splitlines()
    assert took < SECONDS, f"{took} s"
    if done.returncode == 0 and may_succeed:
        return
    assert done.returncode in (1, 2), done.stderr
    assert len(lines) == 1 and len(lines[0]) < 1000, done.stderr[:3000]
    assert lines[0].startswith("torchshare: error: ") and lines[0].isprintable()
    assert not any(word in lines[0] for word in ("pydantic", "Input should", "incompatible function arguments"))


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in paths_in(each, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a place; without it if the value is `...`."""
    if not path:
        return value
    copy = json.loads(json.dumps(document))
    place = functools.reduce(lambda inner, key: inner[key], path[:-1], copy)
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


PROFILE = json.loads(profile("a", 100, {"b": (1.1, 1.2)}).model_dump_json())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    profile("b", 50).save(tmp_path / "b.json")
    recorded().save(tmp_path / "good.npz")
    return tmp_path


def recorded(ops: int = 40, **columns: Any) -> OpTrace:
    times = np.full(ops, 1e-3)
    fields = {
        "job": "a",
        "threads": 1,
        "context": np.arange(ops, dtype=np.uint64),
        "gap": times,
        "idle": times / 2,
        "duration": times,
        "step_ends": np.arange(4, ops + 1, 4, dtype=np.uint64),
        "kind": np.zeros(ops, np.uint8),
    }
    return OpTrace(**{**fields, **columns})


@fuzzed
@given(st.sampled_from(paths_in(PROFILE)), st.one_of(ANY, st.just(...)))
def test_plan_reads_any_profile(folder: Path, path: tuple[Any, ...], value: Any) -> None:
    document = changed(PROFILE, path, value if path or value is not ... else None)
    (folder / "a.json").write_text(json.dumps(document))
    check("plan", "a.json", "b.json", "--ratios", "out.csv", folder=folder)


DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * DEEP, "nested too deeply"),
        (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "nested too deeply"),
        (b"\xff\xfe", "not valid JSON"),
        (b"", "not valid JSON"),
        (json.dumps(PROFILE).encode()[:300], "not valid JSON"),
        (json.dumps(changed(PROFILE, ("fit", "alpha_s"), ...)).encode(), "'fit.alpha_s' is missing"),
        (json.dumps(changed(PROFILE, ("alone", 0, "row"), 1)).encode(), "unknown key 'alone.0.row'"),
        (json.dumps(changed(PROFILE, ("threads",), 10**400)).encode(), "invalid threads, got 1000"),
        (json.dumps(changed(PROFILE, ("alone", 0, "rows"), "x" * 999)).encode(), "invalid alone.0.rows, got 'xxxx"),
        (json.dumps(changed(PROFILE, ("partners", 0, "beside"), [])).encode(), "must have the pair of whole batches"),
        (json.dumps(changed(PROFILE, ("fit", "left_out_errors"), [0.1])).encode(), "one number per size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_profile_is_refused_in_our_words(folder: Path, text: bytes, message: str) -> None:
    (folder / "a.json").write_bytes(text)
    check("plan", "a.json", "b.json", folder=folder, may_succeed=False)
    assert message in torchshare_command("plan", "a.json", "b.json", folder=folder).stderr


@fuzzed
@given(st.integers(0, 2**32), st.sampled_from(["flip", "cut", "insert"]))
def test_replay_reads_any_bytes(folder: Path, seed: int, how: str) -> None:
    data, draw = bytearray((folder / "good.npz").read_bytes()), random.Random(seed)
    at = draw.randrange(len(data))
    if how == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del data[at:]
    else:
        data[at:at] = draw.randbytes(3)
    (folder / "a.npz").write_bytes(data)
    check("replay", "a.npz", "good.npz", "--policy", "strict", folder=folder)


COLUMNS = ["context", "gap", "idle", "duration", "step_ends", "kind", "threads", "job"]
VALUES = [*NUMBERS[:-1], "text"]


@fuzzed
@given(st.sampled_from(COLUMNS), st.sampled_from(VALUES), st.sampled_from(["one", "all", "scalar", "square", "empty"]))
def test_replay_reads_any_column(folder: Path, column: str, value: Any, how: str) -> None:
    good = {name: np.array(getattr(recorded(), name)) for name in COLUMNS}
    bad = good[column].copy()
    with np.errstate(all="ignore"):
        if how == "one" and bad.ndim:
            bad = bad.astype(np.array(value).dtype)
            bad[len(bad) // 2] = value
        else:
            shapes: dict[str, Any] = {"scalar": (), "square": (2, 2), "empty": (0,)}
            bad = np.full(shapes.get(how, bad.shape), value)
    np.savez(folder / "a.npz", **{**good, column: bad})
    check("replay", "a.npz", "good.npz", "--policy", "all", folder=folder)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"gap": np.zeros(40), "idle": np.zeros(40), "duration": np.zeros(40)}, "must take at least 1e-08 s per op"),
        ({"gap": np.full(40, np.inf)}, "must have times from 0 to 1e+06 s"),
        ({"duration": np.full(40, np.nan)}, "must have times from 0 to 1e+06 s"),
        ({"duration": np.full(40, -1.0)}, "must have times from 0 to 1e+06 s"),
        ({"idle": np.full(40, 1.0)}, "must not have more idle time than gaps"),
        ({"step_ends": np.array([4, 41], np.uint64)}, "must have steps that end one after the other"),
        ({"step_ends": np.array([0, 4], np.uint64)}, "must have steps that end one after the other"),
        ({"threads": 0}, "must have 1 to 4096 threads, has 0"),
        ({"kind": np.full(40, 9, np.uint8)}, "must have kinds of ops up to 2"),
        ({"gap": np.full((40, 1), 1.0)}, "has a column 'gap' of the wrong type or shape: float64 [40, 1]"),
    ],
)
def test_an_impossible_trace_is_refused(folder: Path, columns: dict[str, Any], message: str) -> None:
    recorded(**columns).save(folder / "a.npz")
    check("replay", "a.npz", folder=folder, may_succeed=False)
    assert message in torchshare_command("replay", "a.npz", folder=folder).stderr


def test_an_archive_that_grows_beyond_its_size_is_refused(folder: Path) -> None:
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(1 << 25))
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gap.npy", zeros.getvalue())
    check("replay", "a.npz", folder=folder, may_succeed=False)


ROW = ["a", "0", "1", "10", "1", "m"]
FIELD = st.one_of(st.sampled_from([*map(str, NUMBERS), *TEXTS[3:]]), st.text(max_size=20).map(lambda t: t))


@fuzzed
@given(st.integers(0, 5), FIELD, st.sampled_from([(), ("--skip-bad-rows",)]))
def test_simulate_reads_any_row(folder: Path, at: int, value: str, options: tuple[str, ...]) -> None:
    row = [*ROW[:at], value.replace("\ud800", "").replace("\udc80", ""), *ROW[at + 1 :]]
    text = "\n".join(["job,arrival_s,gpus,duration_s,memory_gib,model", ",".join(row), "b,1,1,5,1,m"])
    (folder / "t.csv").write_text(text, errors="surrogatepass")
    check("simulate", "--trace", "t.csv", *options, folder=folder) if not options else torchshare_command(
        "simulate", "--trace", "t.csv", *options, folder=folder
    )


@pytest.mark.slow
def test_a_long_trace_takes_little_memory(folder: Path) -> None:
    """A row of 17 bytes takes up to 245 in memory; an object per row took twice as much."""
    rows = 600_000
    with (folder / "t.csv").open("w") as file:
        file.write("job,arrival_s,gpus,duration_s\n")
        file.writelines(f"j{row},{row},1,10\n" for row in range(rows))
    code = (
        "import resource; from pathlib import Path; from torchshare.simulation import job_trace as traces\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = used(); trace = traces.read_trace(Path('t.csv'), 'csv', traces.Limits(64)); print(used() - before)\n"
    )
    # Not forked: pages that the parent shares count when the child first touches them.
    used = subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True, timeout=300)
    assert int(used) < 250 * rows


OPTIONS = [
    *("--gpus", "--gpus-per-node", "--gpu-memory", "--fixed-memory", "--fixed-time", "--interference"),
    "--sub-batches",
    *("--restart-cost", "--estimate-error", "--seed"),
]


GENERATOR = ["--generate", "--load", "--jobs-per-hour", "--mix", "--seed"]


@pytest.mark.parametrize(
    ("source", "option"),
    [*((("--trace", "t.csv"), option) for option in OPTIONS), *((("--generate=9",), option) for option in GENERATOR)],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
@pytest.mark.parametrize("value", ["1e300", "inf", "nan", "-1", "0", "9" * 30, "9" * 400])
def test_simulate_takes_any_number(folder: Path, source: tuple[str, ...], option: str, value: str) -> None:
    (folder / "t.csv").write_text("job,arrival_s,gpus,duration_s\na,0,1,10\nb,1,1,5\n")
    done = torchshare_command("simulate", *source, f"{option}={value}", folder=folder)
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr
    assert "incompatible" not in done.stderr and "inf" not in done.stdout and "nan" not in done.stdout


@pytest.mark.parametrize("sweep", ["0:1e9:1e-9", "0:1e300:1", "nan:1:1", "0:inf:1", "0:1:nan", "1:2:1e-300"])
def test_a_huge_sweep_is_refused(folder: Path, sweep: str) -> None:
    (folder / "t.csv").write_text("job,arrival_s,gpus,duration_s\na,0,1,10\n")
    check("simulate", "--trace", "t.csv", f"--sweep=restart-cost={sweep}", folder=folder, may_succeed=False)


JOBS = 'max_slowdown = 0.05\n[jobs.a]\nrun = "missing.py"\nthreads = 1\n'


@fuzzed
@given(
    st.integers(0, len(JOBS)), st.one_of(st.text(max_size=9), st.sampled_from(["=" + "[" * 5000, "9" * 400, *TEXTS]))
)
def test_run_reads_any_job_file(folder: Path, at: int, inserted: str) -> None:
    (folder / "jobs.toml").write_text(JOBS[:at] + inserted + JOBS[at:], errors="surrogatepass")
    check("run", "jobs.toml", folder=folder, may_succeed=False)


@pytest.mark.parametrize(
    "words",
    [
        "plan a.json b.json --memory nan",
        "plan a.json b.json --memory -1",
        "plan a.json b.json --suspend-cost inf",
        "plan a.json b.json --max-slowdown 5",
        f"plan a.json b.json --steps a={'9' * 400}",
        f"plan a.json b.json --done a={'9' * 5000}",
        "plan a.json b.json --steps a=²",
        f"replay good.npz --cores {'9' * 30}",
        "replay good.npz --grace nan",
        f"run {'x' * 5000}.py",
        f"run {'x' * 5000}.py:train",
    ],
)
def test_options_are_checked(folder: Path, words: str) -> None:
    profile("a", 100, {"b": (1.1, 1.2)}).save(folder / "a.json")
    check(*words.split(), folder=folder, may_succeed=False)


def test_replay_hears_ctrl_c(tmp_path: Path) -> None:
    long = recorded(2_000_000, gap=np.full(2_000_000, 0.1))
    long.save(tmp_path / "a.npz")
    process = launch(
        "-c",
        "import sys, torchshare.profiling.replay as module\n"
        "replay = module.replay\n"
        "def told(*a):\n    print('begins', flush=True)\n    return replay(*a)\n"
        "module.replay = told\n"
        "from torchshare.__main__ import main\n"
        "sys.exit(main(['replay', 'a.npz', 'a.npz', 'a.npz']))",
        folder=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    time.sleep(3)  # converting the traces
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert process.stderr is not None
    assert process.stderr.readline() == "torchshare: interrupted\n"
    assert time.monotonic() - begin < 100  # 0.2 s where a core is free; a replay takes minutes
    process.communicate(timeout=300)
    assert process.returncode == 130
