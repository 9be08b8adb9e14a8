"""Metrics of a runtime for Prometheus."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest
import torch
from conftest import torchshare_command
from prometheus_client.parser import text_string_to_metric_families

import torchshare
from torchshare import Job

MIB = 2**20
NAME = 'a "quoted"\n\\ name'


def train(job: Job) -> None:
    weight = torch.ones(8, requires_grad=True)
    for batch in job.batches([torch.ones(2, 8)] * 7):
        batch.backward(lambda x: (x * weight).sum())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    families = text_string_to_metric_families(text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_metrics_say_what_the_results_say() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(train, name=NAME, priority="primary", memory_budget=MIB)
        runtime.submit(train, name="b", start=f"after:{NAME}")
        before = samples(runtime.metrics())
        results = runtime.wait(300)
        after = samples(runtime.metrics())
    assert before["torchshare_job_state", NAME, "pending"] == 1
    assert before["torchshare_job_steps_total", NAME, "primary"] == 0
    assert after["torchshare_job_state", "b", "finished"] == 1
    assert after["torchshare_job_state", "b", "running"] == 0
    assert after["torchshare_job_steps_total", "b", "secondary"] == results["b"].steps == 7
    assert after["torchshare_job_run_seconds_total", NAME, "primary"] == pytest.approx(results[NAME].ran_s)
    assert after["torchshare_job_memory_limit_bytes", NAME] == MIB
    assert ("torchshare_job_memory_limit_bytes", "b") not in after
    assert after["torchshare_job_memory_peak_bytes", NAME] == results[NAME].memory_peak > 0


def test_requests_are_histograms_in_seconds() -> None:
    def serve(job: Job) -> None:
        for request in job.requests(range(20)):
            request.answer(request.data) if request.data % 4 else request.fail(ValueError("a multiple of 4"))

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(serve, name="a", priority="primary")
        runtime.submit(train, name="b")
        result = runtime.wait(300)["a"]
        after = samples(runtime.metrics())
    assert result.requests is not None
    buckets = [value for (name, *labels), value in after.items() if name == "torchshare_request_latency_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1] == 15
    assert after["torchshare_request_latency_seconds_count", "a"] == 15
    assert after["torchshare_request_service_seconds_sum", "a"] == pytest.approx(15 * result.requests.service.mean)
    assert after["torchshare_requests_failed_total", "a"] == 5
    assert ("torchshare_requests_failed_total", "b") not in after


def test_metrics_are_served_to_this_machine() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(train, name="a")
        with runtime.serve_metrics(0) as address:
            assert address.startswith("http://127.0.0.1:")
            runtime.wait(300)
            with urllib.request.urlopen(address, timeout=300) as answer:
                served = samples(answer.read().decode())
        assert served["torchshare_job_steps_total", "a", "secondary"] == 7
        with pytest.raises(OSError):
            urllib.request.urlopen(address, timeout=300)


def test_a_name_that_is_used_again_is_one_series() -> None:
    with torchshare.Runtime(device="cpu", policy="best_fit", max_slowdown=0.5) as runtime:
        runtime.submit(train, name="a", priority="primary")
        runtime.submit(train, name="b")
        runtime.wait(300)
        runtime.submit(train, name="a", priority="primary")
        runtime.wait(300)
        families = text_string_to_metric_families(runtime.metrics())
        assert [gap.job for gap in runtime.gap_report()] == ["a"]
    named = [(each.name, *each.labels.items()) for family in families for each in family.samples]
    assert len(named) == len(set(named))


def test_a_result_is_final_once_it_says_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends while its numbers are read."""
    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a")
        handle = job._context.handle

        class Ending:
            def __getattr__(self, name: str) -> object:
                return getattr(handle, name)

            def stats(self) -> object:
                before = handle.stats()
                runtime.wait(300)
                return before

        monkeypatch.setattr(job._context, "handle", Ending())
        result = job.result
    assert (result.state, result.steps) == ("pending", 0)
    assert (job.state, handle.stats().steps) == ("finished", 7)


def test_run_serves_metrics_and_refuses_bad_ports(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "import re, sys, urllib.request\n"
        "def ask(job):\n"
        "    address = re.search('http://.*', sys.stderr.getvalue()).group()\n"
        "    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))\n"
        "    print(direct.open(address).read().decode())\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for given, message in {
            port: f"--metrics-port must be a free port, got {port}: Address already in use",
            "70000": "--metrics-port must be a port from 0 to 65535, got 70000",
            "x": "--metrics-port must be a port from 0 to 65535, got x",
        }.items():
            done = torchshare_command("run", "jobs.py:ask", "--metrics-port", given, folder=tmp_path)
            assert done.returncode == 2
            assert message in done.stderr
    done = torchshare_command("run", "jobs.py:ask", "--metrics-port", "0", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'torchshare_job_state{job="ask",state="running"} 1.0' in done.stdout
    assert "torchshare: metrics at http://127.0.0.1:" in done.stderr
