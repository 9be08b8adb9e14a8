"""Scripts that answer requests, in `torchshare run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import script, torchshare_command

SERVER = """
from concurrent.futures import ThreadPoolExecutor
import torch, torchshare

@torchshare.serve
@torch.no_grad()
def infer(x):
    return float(torch.nn.functional.relu(x).sum())

with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(infer, [torch.full((4,), float(number)) for number in range(40)]))
assert answers == [4.0 * number for number in range(40)]
for request in torchshare.requests([torch.ones(1)] * 10):
    request.answer(request.data)
    assert request.requests[0].result(0) == 1
try:
    infer(None)
except TypeError:
    print("refused")
"""

TRAIN = """
import torch
for _ in range(200):
    torch.ones(8, 8) @ torch.ones(8, 8)
"""

JOBS = """
[jobs.server]
run = "server.py"
slo = "p90<1us"

[jobs.train]
run = "train.py"
"""


@pytest.mark.parametrize(
    "arguments",
    [["--slo", "server=p90<1us", "server.py", "train.py"], ["jobs.toml"]],
    ids=["the flag", "jobs.toml"],
)
def test_requests_and_their_promise_are_in_the_results_of_scripts(tmp_path: Path, arguments: list[str]) -> None:
    for name, text in (("server.py", SERVER), ("train.py", TRAIN), ("jobs.toml", JOBS)):
        script(tmp_path, name, text)
    ran = torchshare_command("run", "--json", "--threads", "1", *arguments, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "server: refused" in ran.stderr.splitlines()
    server, train = json.loads(ran.stdout)["jobs"]
    requests = server["requests"]
    assert server["state"] == "finished" and train["requests"] is None
    assert (requests["answered"], requests["failed"]) == (50, 1)
    assert (requests["slo"], requests["late"]) == ("p90<1us", 50)  # no answer is computed in 1 us
    for times in (requests[name] for name in ("latency", "service")):
        assert 0 < times["p50"] <= times["p95"] <= times["p99"]
    assert requests["queued"]["p99"] <= requests["latency"]["p99"]


def test_the_same_script_runs_as_plain_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(SERVER, "server.py", "exec"), {"__name__": "__main__"})
