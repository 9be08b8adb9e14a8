"""`torchshare cluster`, as far as it needs no Ray."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import torchshare_command
from test_plan import MIB, profile

from torchshare import _core, cluster
from torchshare.checkpoints.interval import EXPECTED
from torchshare.cli import cluster as verb
from torchshare.cluster import client, connection
from torchshare.cluster.array import EXPECTED as EXPECTED_ARRAY
from torchshare.cluster.host_actor import ShutDown
from torchshare.cluster.job_spec import JobSpec
from torchshare.context.durations import EXPECTED as DURATION
from torchshare.profiles.profile import Fit, Profile
from torchshare.scripts import targets


def test_without_ray_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "train.py").touch()
    for words in (["up"], ["submit", "train.py"], ["list"], ["status"], ["logs", "a"], ["stop", "a"], ["down"]):
        done = torchshare_command("cluster", *words, folder=tmp_path)
        assert done.returncode == 2
        assert done.stderr == "torchshare: error: a cluster needs Ray: pip install 'ray[default]>=2.40'\n"
    with pytest.raises(ValueError, match="a cluster needs Ray"):
        cluster.submit("train.py")


class Submitted:
    """Takes the place of `prepared`, and of the queue."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, ...]] = []
        self.sent: list[JobSpec] = []

    def __call__(self, target: str, **options: Any) -> client.Prepared:
        self.jobs.append((target, {key: value for key, value in options.items() if value is not None}))
        name = options["name"] or targets.default_name(target)
        after = options.get("after") or []
        spec = JobSpec(name, f"id-{name}", target, "/", "m", after=[after] if isinstance(after, str) else after)
        return client.Prepared(spec, target, options["name"] is not None)


def noting(sent: list[JobSpec]) -> Callable[..., list[str]]:
    """In place of `client.call`: accepts all jobs."""

    def call(method: str, jobs: list[tuple[JobSpec, bool]], functions: dict[str, bytes]) -> list[str]:
        assert (method, functions) == ("submit", {})
        sent.extend(spec for spec, _ in jobs)
        return [spec.name for spec, _ in jobs]

    return call


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    found = Submitted()
    monkeypatch.setattr(verb.client, "prepared", found)
    monkeypatch.setattr(verb.connection, "up", lambda address: None)
    monkeypatch.setattr(client, "call", noting(found.sent))
    return found


def test_options_are_of_all_jobs_or_of_one(tmp_path: Path, submitted: Submitted) -> None:
    words = ["--no-wait", "--priority", "a=primary", "--threads", "2", "--env", '{"pip": ["x"]}', "a=train.py", "m.b:f"]
    done = torchshare_command("cluster", "submit", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    common = {"threads": 2, "env": {"pip": ["x"]}}
    assert submitted.jobs == [
        ("train.py", {"name": "a", "priority": "primary", **common}),
        ("m.b:f", common),
    ]
    assert done.stderr == "Job 'a' is submitted\nJob 'f' is submitted\n"


def test_a_script_keeps_its_arguments(tmp_path: Path, submitted: Submitted) -> None:
    torchshare_command("cluster", "submit", "--no-wait", "--", "train.py", "--epochs", "3", folder=tmp_path)
    assert submitted.jobs == [("train.py --epochs 3", {})]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="job files need Python 3.11")
def test_a_job_file(tmp_path: Path, submitted: Submitted) -> None:
    (tmp_path / "jobs.toml").write_text(
        '[jobs.cnn]\nrun = "train.py --x"\nduration = 60\n[jobs.text]\nrun = "-m pkg.b"\npriority = "primary"\n'
    )
    torchshare_command("cluster", "submit", "--no-wait", "jobs.toml", folder=tmp_path)
    assert submitted.jobs == [
        ("train.py --x", {"name": "cnn", "duration": 60.0}),
        ("-m pkg.b", {"name": "text", "priority": "primary"}),
    ]
    (tmp_path / "jobs.toml").write_text('[jobs.cnn]\nrun = "train.py"\nstart = "auto"\n')
    done = torchshare_command("cluster", "submit", "jobs.toml", folder=tmp_path)
    assert "jobs.toml, line 3: unknown key 'start'" in done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="job files need Python 3.11")
def test_flags_come_before_variables_and_those_before_a_job_file(
    tmp_path: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `torchshare run`; options of a job come before those of all jobs."""
    (tmp_path / "jobs.toml").write_text(
        '[jobs.a]\nrun = "a.py"\nthreads = 1\nseed = 1\ngpus = 2\n[jobs.b]\nrun = "b.py"\n'
    )
    monkeypatch.setenv("TORCHSHARE_THREADS", "2")
    monkeypatch.setenv("TORCHSHARE_SEED", "a=2")
    words = ["--seed", "3", "--seed", "b=4", "jobs.toml"]
    done = torchshare_command("cluster", "submit", "--no-wait", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert submitted.jobs == [
        ("a.py", {"name": "a", "threads": 2, "seed": 3, "gpus": 2}),
        ("b.py", {"name": "b", "threads": 2, "seed": 4}),
    ]


def test_the_settings_of_a_queue_are_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(verb.connection, "up", lambda _, settings: given.append(settings))
    words = ["--storage", str(tmp_path), "--device-memory", "5", "--policy", "fifo", "--every", "20"]
    for more in (words, []):
        done = torchshare_command("cluster", "up", *more, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    queue = cluster.QueueSettings("fifo", memory=5)
    default = str(Path("~/.torchshare/cluster").expanduser())
    assert given == [cluster.ClusterSettings(str(tmp_path), queue, "20"), cluster.ClusterSettings(default)]


def unexpected(*_: Any) -> None:
    raise AssertionError("it connects to a cluster")


def check_refused(words: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is started."""
    monkeypatch.setattr(verb.connection, "up", unexpected)
    done = torchshare_command("cluster", *words, folder=folder)
    assert (done.returncode, done.stderr) == (2, f"torchshare: error: {message}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "x", "train.py"], "--gpus must be a positive integer below 2**31, got x"),
        (["--env", "{", "train.py"], "--env must be a dict of JSON values with strings as keys, got {"),
        (["--memory", "0", "train.py"], "job 'train': memory must be a positive integer below 2**63, got 0"),
        (["train.py", "3"], f"target must be {targets.FORMS}, a script with its arguments in quotes, got '3'"),
        (["--gpus", "0", "train.py"], "job 'train': gpus must be a positive integer below 2**31, got 0"),
        (["--env", "5", "train.py"], "job 'train': env must be a dict of JSON values with strings as keys, got 5"),
        (["--env", "[]", "train.py"], "job 'train': env must be a dict of JSON values with strings as keys, got []"),
        (["--threads", "0", "train.py"], "job 'train': threads must be an integer from 1 to 1024, got 0"),
        (["--priority", "b=primary", "a=train.py"], "--priority names job 'b', must be one of a"),
        (
            ["--priority", "train=primary", "train.py"],
            "--priority names job 'train', must be one of those with NAME=TARGET",
        ),
        (
            ["--priority", "high", "train.py"],
            "priority must be 'primary', 'secondary' or 'level-0' to 'level-9', got 'high'",
        ),
    ],
)
def test_invalid_options_are_one_line(
    tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(["submit", *words], message, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--every", "soon"], f"--every must be {EXPECTED}, got soon"),
        (["--device", "tpu"], "--device must be auto, cpu or cuda, got tpu"),
        (["--hosts-per-node", "0"], "--hosts-per-node must be a positive integer below 2**31, got 0"),
        (["--policy", "fair"], f"--policy must be one of {', '.join(_core.cluster_policy_names())}, got fair"),
        (["--device-memory", "-1"], "--device-memory must be a non-negative integer below 2**63, got -1"),
        (["--restart-cost", "-1"], "--restart-cost must be a number of at least 0, got -1"),
    ],
)
def test_invalid_settings_start_nothing(
    tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(["up", *words], message, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": 5}, "job '5': name must be a string of at most 255 characters without lone surrogates, got 5"),
        ({"env": {"x": object}}, "job 'a': the options must be values of JSON: Object of type type is not JSON"),
        ({"memory": 1.5}, "job 'a': memory must be a positive integer below 2**63, got 1.5"),
        ({"deadline": "soon"}, f"job 'a': deadline must be {DURATION}, got 'soon'"),
        ({"deadline": 0}, f"job 'a': deadline must be {DURATION}, got 0"),
        ({"after": 5}, "job 'a': after must be a job's name or several, got 5"),
        ({"after": ["\ud800"]}, "job 'a': after must be a job's name or several, got ['\\ud800']"),
        ({"after": "ok:"}, "job 'a': after must be '<job>', 'any:<job>' or 'ok:<job>', got 'ok:'"),
    ],
)
def test_what_is_no_option_is_refused_before_it_is_sent(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        client.prepared("train.py", **{"name": "a", **options})
    with pytest.raises(TypeError, match=r"submit\(\) got an unknown option 'unknown'"):
        client.prepared("train.py", unknown=1)


def test_a_profile_gives_the_duration_and_the_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cnn.json"
    profile("cnn", 50, {"text": (1.3, 1.8)}).save(path)
    sent: list[Any] = []
    monkeypatch.setattr(client, "call", noting(sent))
    client.send([client.prepared("cnn.py", profile=str(path))])
    client.send([client.prepared("cnn.py", profile=str(path), duration=5)])
    client.send([client.prepared("cnn.py", profile=Profile.load(path))])
    assert [spec.ratios for spec in sent] == [{"text": [1.3, 1.8]}] * 3
    assert [spec.duration for spec in sent] == [pytest.approx(50), 5, pytest.approx(50)]
    with pytest.raises(ValueError, match=r"profile .*none\.json: No such file"):
        client.prepared("cnn.py", profile=str(tmp_path / "none.json"))


def test_a_profile_says_what_sub_batches_save_and_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cnn.json"
    fit = {"alpha_s": 0.025, "beta_s": 0.05, "communication_s": 0.075, "delta": 1.0, "memory_fixed": 40 * MIB}
    fitted = Fit(**fit, memory_per_row=20 * MIB, left_out_errors=[])
    profile("cnn", 50, fit=fitted).save(path)
    sent: list[Any] = []
    monkeypatch.setattr(client, "call", noting(sent))
    client.send([client.prepared("cnn.py", profile=str(path), sub_batches=8)])
    client.send([client.prepared("cnn.py", profile=str(path), sub_batches=4, sub_batch=4, memory=2**20)])
    client.send([client.prepared("cnn.py", profile=str(path))])
    assert [spec.sub_batches for spec in sent] == [8, 4, 1]
    assert [spec.memory for spec in sent] == [225 * MIB, 2**20, 225 * MIB]  # 9/8 of 40 + 20 * 8
    assert all("profile" not in spec.options for spec in sent), "it need not be on the nodes"
    assert [spec.fixed_memory for spec in sent] == pytest.approx([0.2, 1 / 3, 0.2])
    assert sent[0].memory_in(4) == 90 * MIB
    assert [spec.fixed_time for spec in sent] == pytest.approx([0.05, 0.05 / 0.525, 0.05])
    with pytest.raises(
        ValueError, match=r"^job 'cnn': sub_batches must come with a profile, which says how much memory they need$"
    ):
        client.prepared("cnn.py", sub_batches=8)
    with pytest.raises(ValueError, match=r"^job 'cnn': sub_batches must divide the 8 rows that run at once, got 16$"):
        client.prepared("cnn.py", profile=str(path), sub_batches=16)


class Log:
    """Takes the place of `call`: a job that has ended, and its log, which is sent in pieces."""

    def __init__(self, *pieces: bytes, error: str = "", interrupts: bool = False) -> None:
        self._pieces = iter(pieces)
        self._row = {"name": "a", "state": "failed", "error": error, "after": [], "held": False}
        self._interrupts = interrupts

    def __call__(self, method: str, *_: Any) -> Any:
        if method == "log" and self._interrupts:
            raise KeyboardInterrupt
        log = next(self._pieces, b"") if method == "log" else None
        return {"submit": ["a"], "rows": [self._row], "log": log}[method]


def test_a_character_in_two_pieces_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    data = "a é".encode()
    monkeypatch.setattr(client, "call", Log(data[:-1], data[-1:], b"\xc3"))
    assert "".join(client.Handle("a").logs()) == "a é\ufffd"


def test_the_reason_of_a_failure_is_one_line(
    tmp_path: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "call", Log(error="RuntimeError: two\nlines"))
    done = torchshare_command("cluster", "submit", "a=train.py", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["Job 'a' has failed: RuntimeError: two\\nlines"]


def test_the_status_says_why_a_device_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"node": "n" * 20, "index": 0, "up": False, "jobs": [], "error": "No module\nnamed 'torch'"}
    monkeypatch.setattr(connection, "connect", lambda _: None)
    monkeypatch.setattr(client, "call", lambda method, *_: [host] if method == "hosts" else [])
    done = torchshare_command("cluster", "status", folder=tmp_path)
    assert "Device nnnnnnnn:0 cannot be started: No module\\nnamed 'torch'\n" in done.stdout


@pytest.mark.parametrize("given", ["2h", "7200", 7200, "1h60m", "120min"])
def test_a_deadline_is_kept_in_seconds(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    sent: list[JobSpec] = []
    monkeypatch.setattr(client, "call", noting(sent))
    client.send([client.prepared("train.py", deadline=given)])
    assert sent[0].deadline == 7200.0
    assert sent[0].options == {}


def test_a_deadline_is_a_flag_and_a_key_of_a_job_file(tmp_path: Path, submitted: Submitted) -> None:
    (tmp_path / "jobs.toml").write_text('[jobs.a]\nrun = "train.py"\ndeadline = "90m"\n')
    for words in (["--deadline", "90m", "a=train.py"], ["--deadline", "a=90m", "a=train.py"], ["jobs.toml"]):
        submitted.jobs.clear()
        done = torchshare_command("cluster", "submit", "--no-wait", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert submitted.jobs[0][1]["deadline"] == "90m"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="job files need Python 3.11")
def test_jobs_are_submitted_after_those_that_they_wait_for(tmp_path: Path, submitted: Submitted) -> None:
    (tmp_path / "jobs.toml").write_text(
        '[jobs.test]\nrun = "test.py"\nafter = ["ok:tune", "ok:pre"]\n[jobs.other]\nrun = "other.py"\n'
        '[jobs.tune]\nrun = "tune.py"\nafter = "ok:pre"\n[jobs.pre]\nrun = "pre.py"\nafter = "earlier"\n'
    )
    assert torchshare_command("cluster", "submit", "--no-wait", "jobs.toml", folder=tmp_path).returncode == 0
    sent = {spec.name: spec.after for spec in submitted.sent}
    assert sent == {
        "other": [],
        "pre": ["any:earlier"],
        "tune": ["ok:id-pre"],
        "test": ["ok:id-tune", "ok:id-pre"],
    }
    order = list(sent)
    assert order.index("pre") < order.index("tune") < order.index("test")


def test_a_name_means_a_job_of_the_same_command_first(tmp_path: Path, submitted: Submitted) -> None:
    words = ["--after", "a=ok:train", "--after", "b=a,x", "b=b.py", "a=a.py", "train.py"]
    assert torchshare_command("cluster", "submit", "--no-wait", *words, folder=tmp_path).returncode == 0
    expected = [("train", []), ("a", ["ok:id-train"]), ("b", ["any:id-a", "any:x"])]
    assert [(spec.name, spec.after) for spec in submitted.sent] == expected
    submitted.sent.clear()
    words = ["--after", "ok:train", "--no-wait", "train.py"]
    assert torchshare_command("cluster", "submit", *words, folder=tmp_path).returncode == 0
    assert submitted.sent[0].after == ["ok:train"], "an earlier one"


def test_jobs_that_wait_for_each_other_are_not_submitted(tmp_path: Path, submitted: Submitted) -> None:
    words = ["--after", "a=ok:c", "--after", "b=a", "--after", "c=b", "a=a.py", "b=b.py", "c=c.py"]
    done = torchshare_command("cluster", "submit", *words, folder=tmp_path)
    assert (done.returncode, submitted.sent) == (2, [])
    assert done.stderr == "torchshare: error: jobs wait for each other to start: 'a' -> 'c' -> 'b' -> 'a'\n"


def test_the_list_says_for_what_a_job_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(("state", "priority", "device", "beside", "deadline_s", "deadline", "error"), "")
    row |= {"state": "pending", "name": "b", "steps": 0, "elapsed_s": 9.0, "ran_s": 0.0, "deadline_s": None}
    monkeypatch.setattr(connection, "connect", lambda _: None)
    monkeypatch.setattr(client, "call", lambda *_: [{**row, "after": ["a", "c"], "held": False}])
    assert "waits for a, c" in torchshare_command("cluster", "list", folder=tmp_path).stdout
    monkeypatch.setattr(client, "call", lambda *_: [{**row, "after": [], "held": True}])
    assert "waits for a place in its array" in torchshare_command("cluster", "list", folder=tmp_path).stdout


@pytest.mark.skipif(sys.version_info < (3, 11), reason="job files need Python 3.11")
def test_an_array_is_a_flag_and_a_key_of_a_job_file(tmp_path: Path, submitted: Submitted) -> None:
    words = ["--array", "sweep=0-4:2%2", "--after", "sweep=data", "--after", "test=ok:sweep"]
    words += ["test=test.py", "sweep=train.py", "data=data.py"]
    done = torchshare_command("cluster", "submit", "--no-wait", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    text = '[jobs.test]\nrun = "test.py"\nafter = "ok:sweep"\n[jobs.data]\nrun = "data.py"\n'
    text += '[jobs.sweep]\nrun = "train.py"\nafter = "data"\narray = "0-4:2%2"\n'
    (tmp_path / "jobs.toml").write_text(text)
    assert torchshare_command("cluster", "submit", "--no-wait", "jobs.toml", folder=tmp_path).returncode == 0
    half = len(submitted.sent) // 2
    for sent in (submitted.sent[:half], submitted.sent[half:]):
        members = {spec.submission: spec for spec in sent if spec.array}
        assert [(spec.array, spec.index, spec.at_once) for spec in members.values()] == [
            ("sweep", 0, 2),
            ("sweep", 2, 2),
            ("sweep", 4, 2),
        ]
        data, test = sent[0], sent[-1]
        assert all(spec.after == [f"any:{data.submission}"] for spec in members.values())
        assert test.after == [f"ok:{submission}" for submission in members]


def test_jobs_of_an_array_can_be_waited_for_one_by_one(tmp_path: Path, submitted: Submitted) -> None:
    words = ["--no-wait", "--array", "n=0-1", "--after", "c=ok:n_1", "c=c.py", "n=t.py"]
    assert torchshare_command("cluster", "submit", *words, folder=tmp_path).returncode == 0
    *members, last = submitted.sent
    assert [spec.name for spec in members] == ["n_0", "n_1"]
    assert (last.name, last.after) == ("c", [f"ok:{members[1].submission}"])


def test_names_that_are_given_stay(tmp_path: Path, submitted: Submitted) -> None:
    """Those that are not, here of a.py, get a number in the queue if they are taken."""
    words = ["--no-wait", "--array", "a=0-1", "--after", "c=a", "a.py", "a=b.py", "c=c.py"]
    assert torchshare_command("cluster", "submit", *words, folder=tmp_path).returncode == 0
    assert [(spec.name, spec.target, spec.array) for spec in submitted.sent[:3]] == [
        ("a", "a.py", ""),
        ("a_0", "b.py", "a"),
        ("a_1", "b.py", "a"),
    ]
    assert submitted.sent[3].after == [f"any:{spec.submission}" for spec in submitted.sent[1:3]]


@pytest.mark.parametrize(
    ("given", "indices", "at_once"),
    [
        ("3", [3], 0),
        ("0-3", [0, 1, 2, 3], 0),
        ("7-9, 0 ,3", [7, 8, 9, 0, 3], 0),
        ("0 - 15 : 5 % 10", [0, 5, 10, 15], 10),
    ],
)
def test_indices_are_written_as_slurm_does(given: str, indices: list[int], at_once: int) -> None:
    jobs = client.prepared_array("train.py", name="a", array=given)
    assert [job.spec.index for job in jobs] == indices
    assert {job.spec.at_once for job in jobs} == {at_once}
    assert len({job.spec.submission for job in jobs}) == len(indices)


@pytest.mark.parametrize(
    "given", ["", "a", "3-1", "0-", "0,0", "0-3%0", "0-3%", "%4", "0-1000", "1-2-3", "-1", "1 2", "0-999999999", "٣", 5]
)
def test_what_are_no_indices_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=f"^job 'a': array must be {re.escape(EXPECTED_ARRAY)}, got {given!r}$"):
        client.prepared_array("train.py", name="a", array=given)


def test_of_an_array_with_a_limit_no_deadline_is_promised() -> None:
    with pytest.raises(
        ValueError, match=r"^job 'a': deadline must not be given if only 4 of its array run at once, got 7200 s$"
    ):
        client.prepared_array("train.py", name="a", array="0-9%4", deadline="2h")
    assert len(client.prepared_array("train.py", name="a", array="0-9", deadline="2h")) == 10
    with pytest.raises(ValueError, match=r"^job 'train': array must be indices such as"):
        cluster.submit_array("train.py")
    with pytest.raises(TypeError, match=r"submit\(\) got an unknown option 'array'"):
        client.prepared("train.py", array="0-3")  # type: ignore[call-arg]


def test_the_status_has_a_column_of_deadlines_only_if_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"state": "running", "priority": "secondary", "device": "n:0", "beside": None, "steps": 3, "error": ""}
    row |= {"elapsed_s": 9.0, "ran_s": 9.0, "deadline_s": None, "deadline": None, "after": [], "held": False}
    rows = [{**row, "name": "a"}, {**row, "name": "b"}]
    host = {"node": "n", "index": 0, "up": True, "jobs": ["a", "b"], "error": "", "note": ""}
    monkeypatch.setattr(connection, "connect", lambda _: None)
    monkeypatch.setattr(client, "call", lambda method, *_: [host] if method == "hosts" else rows)
    for what in ("list", "status"):
        assert "deadline" not in torchshare_command("cluster", what, folder=tmp_path).stdout
    rows[0] |= {"deadline_s": 5400.0, "deadline": "open"}
    for what in ("list", "status"):
        lines = torchshare_command("cluster", what, folder=tmp_path).stdout.splitlines()
        assert lines[0].rstrip().endswith("deadline")
        assert lines[1].rstrip().endswith("1h30m: open")
        assert lines[2].rstrip().endswith("-")
    assert lines[-1] == "Deadlines: 0 met, 0 missed, 1 open"


def test_ctrl_c_leaves_the_job_in_the_queue(
    tmp_path: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "call", Log(interrupts=True))
    before = signal.getsignal(signal.SIGINT)
    try:
        done = torchshare_command("cluster", "submit", "a=train.py", folder=tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # Ray disconnects
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 130
    assert done.stderr.splitlines()[1:] == [
        "Job 'a' stays in the queue; `torchshare cluster stop` ends it",
        "torchshare: interrupted",
    ]


def test_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: Any) -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        verb._run(gone, argparse.Namespace())


def test_a_scheduler_that_ends_is_asked_again_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And `down` does so too: it waits for the one that an earlier `down` is ending."""
    ray = pytest.importorskip("ray")
    asked: list[str] = []

    def get_actor(*_: Any) -> Any:
        if len(asked) == 2:
            raise ValueError("Failed to look up actor")
        return SimpleNamespace(**{
            name: SimpleNamespace(remote=lambda name=name: asked.append(name)) for name in ("rows", "shut_down")
        })  # fmt: skip

    def is_ending(*_: Any, **__: Any) -> None:
        raise ray.exceptions.RayTaskError(asked[-1], "Traceback", ShutDown())

    for name, function in (("is_initialized", lambda: True), ("get_actor", get_actor), ("get", is_ending)):
        monkeypatch.setattr(ray, name, function)
    with pytest.raises(ValueError, match="the cluster is not up"):
        verb.connection.call("rows")
    assert asked == ["rows", "rows"]
    asked.clear()
    verb.connection.down()
    assert asked == ["shut_down", "shut_down"]
    with pytest.raises(ValueError, match="the cluster is not up"):
        verb.connection.down()
    asked.clear()
    monkeypatch.setattr(verb.connection, "_PATIENCE_S", 0.0)
    with pytest.raises(ValueError, match="the cluster's scheduler has been shut down, and has not ended yet"):
        verb.connection.call("rows")


@pytest.mark.parametrize("cause", [KeyError("x"), OSError("No space left")])
def test_what_rays_calls_raise_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cause: Exception) -> None:
    ray = pytest.importorskip("ray")

    def fails(*_: Any, **__: Any) -> None:
        raise ray.exceptions.RayTaskError("rows", "Traceback\nof many\nlines", cause)

    actor = SimpleNamespace(rows=SimpleNamespace(remote=lambda: None))
    for name, function in (("is_initialized", lambda: True), ("get_actor", lambda *_: actor), ("get", fails)):
        monkeypatch.setattr(ray, name, function)
    monkeypatch.setattr(verb.connection, "connect", lambda _: None)
    done = torchshare_command("cluster", "list", folder=tmp_path)
    assert done.returncode == 2
    assert str(cause) in done.stderr
    assert done.stderr.count("\n") == 1

    def refuses(*_: Any, **__: Any) -> None:
        raise ray.exceptions.RaySystemError("bad\nadvice")

    monkeypatch.setattr(ray, "get", refuses)
    assert (
        torchshare_command("cluster", "list", folder=tmp_path).stderr == "torchshare: error: Ray: System error: bad\n"
    )
