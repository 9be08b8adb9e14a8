"""The report of a run as a page."""

from __future__ import annotations

import dataclasses
import json
import queue
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.style
import numpy as np
import pages
import pytest
import torch
from conftest import torchshare_command, wait_until
from torch import nn

import torchshare
from torchshare import Job
from torchshare.report import figures, numbers
from torchshare.runtime import job_timelines, run_report, sharing
from torchshare.runtime.job_timelines import Timeline

MIB = 2**20
HOSTILE = "<script>alert(1)</script> & \U0001f600 $x_1$ '\"\n\x1b[31m"


def train(job: Job) -> None:
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in job.batches([torch.randn(32, 64)] * 60, sub_batch=8):
        batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a pair with every section."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    with torchshare.Runtime(device="cpu", policy="best_fit", max_slowdown=0.5) as runtime:

        def long(job: Job) -> None:
            began = time.monotonic()
            while time.monotonic() < began + 2.5 or not (bounded() and resumed.is_set()):
                train(job)

        resumed = threading.Event()

        def bounded() -> bool:
            bound = runtime.jobs[0]._context.handle.bound()
            return bound is not None and bound.windows > 0

        runtime.submit(long, name=HOSTILE, priority="primary", memory_budget=64 * MIB)
        second = runtime.submit(long, name="second", memory_budget=32 * MIB)
        runtime.start()
        time.sleep(0.5)
        second.suspend()
        wait_until(lambda: second.state == "suspended")
        time.sleep(0.1)
        second.resume()
        resumed.set()
        runtime.wait(300)
        runtime.write_report(path)
    return path


def spans(*rows: tuple[float, float]) -> np.ndarray:
    return np.array(rows, dtype=float).reshape(-1, 2)


def timeline(ends: list[float], *running: tuple[float, float]) -> Timeline:
    return Timeline(np.array(ends), spans(), {}, spans(), spans(*running))


def test_how_much_of_intervals_spans_cover() -> None:
    begins, ends = np.array([0.0, 2.0, 4.0, 9.0]), np.array([2.0, 4.0, 9.0, 10.0])
    covered = job_timelines.overlap(begins, ends, spans((6, 7), (1, 3), (8, 9.5)))
    assert covered == pytest.approx([1, 1, 2, 0.5])
    assert job_timelines.overlap(begins, ends, spans()) == pytest.approx(0)


def step_times(mine: Timeline, *others: Timeline) -> tuple[float | None, float | None]:
    first, *_ = job_timelines.steps_of([mine, *others])
    return None if first.alone is None else first.alone.mean, first.shared_s


def test_step_times_alone_and_shared() -> None:
    alone = list(np.arange(30) * 0.1)  # the first steps are left out
    shared = [alone[-1] + 0.2 * step for step in range(1, 11)]
    mine, other = timeline(alone + shared, (0, 9)), timeline([], (alone[-1], 9))
    assert step_times(mine, other) == pytest.approx((0.1, 0.2))
    few = timeline(alone[:10] + shared, (0, 9))
    assert step_times(few, timeline([], (alone[9], 9)))[0] is None
    assert step_times(mine) == pytest.approx((np.diff(mine.steps[3:]).mean(), None))


def test_a_step_between_two_times_of_another_job_is_alone() -> None:
    ends = [0.1 * step for step in range(100)]
    for begin in np.arange(0.33, 0.7, 0.01):
        other = timeline([], (0.0, 0.3), (begin, begin + 0.07), (9.7, 9.8))
        first, _ = job_timelines.steps_of([timeline(ends), other])
        assert not first.shared[9:90].any()


def test_spans_that_overlap_become_one() -> None:
    united = job_timelines.union(spans((5, 6), (0, 2), (1, 3), (1, 1.5), (3, 4), (5.5, 7)))
    assert united == pytest.approx(spans((0, 4), (5, 7)))
    assert job_timelines.union(spans()).shape == (0, 2)


@pytest.mark.parametrize("reason", ["suspended", "held"])
def test_the_time_of_a_suspension_is_in_no_step(reason: str) -> None:
    mine = Timeline(np.array([0, 1, 2, 3, 4, 15.0]), spans(), {reason: spans((5, 14))}, spans(), spans((0, 15)))
    assert step_times(mine, timeline([], (0, 15))) == (None, pytest.approx(1.5))


def test_an_evaluation_is_no_step_but_steps_that_sharing_slows_are() -> None:
    alone, shared = np.full(60, 0.1), np.full(30, 0.7)
    alone[[20, 40]] = shared[10] = 10
    ends = np.cumsum([*alone, *shared])
    mine = timeline(list(ends), (0, 100))
    assert step_times(mine, timeline([], (ends[59], 100))) == pytest.approx((0.1, 0.7))


def result(name: str) -> torchshare.Result:
    fields = dict.fromkeys((field.name for field in dataclasses.fields(torchshare.Result)), 0)
    known = {"name": name, "priority": "primary", "state": "finished", "exception": None}
    return torchshare.Result(**{**fields, **known, "requests": None, "periods": None})


def verdict(rows: list[dict[str, object]], found: list[Timeline]) -> list[str]:
    return sharing.verdict(rows, found, job_timelines.steps_of(found))


def row(
    name: str,
    alone: float | None,
    state: str = "finished",
    slowdown: float | None = None,
    priority: str = "primary",
    steps: int = 5,
    shared: float | None = None,
) -> dict[str, object]:
    times = {"alone_s": alone, "slowdown": slowdown, "shared_s": shared}
    return {"name": name, "priority": priority, "state": state, "steps": steps, "run_steps": steps, **times}


def test_the_verdict_compares_with_one_after_the_other() -> None:
    found = [timeline([3, 4, 5, 6, 7], (1, 7)), timeline([5, 7, 9, 10, 11], (2, 11))]
    first, second, weights = verdict([row("a", 1, slowdown=0.25), row("b", 1)], found)
    assert "Together the jobs took 8 s from the first step to the last." in first
    assert "would take about 10 s" in first, "4 steps of each, and 2 s until the first of b"
    assert "1.25 times as fast" in first
    assert second == "A step of 'a' (primary) took 1.25 times as long while it shared as alone."
    assert "weights" in weights
    slower, *_ = verdict([row("a", 0.25), row("b", 0.25)], found)
    assert "sharing was slower, it took 2.00 times as long." in slower
    unknown, failed, _ = verdict([row("a", None), row("b", None, "failed")], found)
    assert "no step time alone of 'a', 'b'" in unknown
    assert failed == "'b' failed after 5 steps."


def test_the_verdict_where_one_job_was_never_alone() -> None:
    """a: 4 steps from 3 to 7 s; b: 4 steps, of 8 s, and 2 s until its first. It starts after 8 s together."""
    found = [timeline([3, 4, 5, 6, 7], (1, 7)), timeline([5, 7, 9, 10, 11], (2, 11))]

    def said(alone: float) -> str:
        return verdict([row("a", None), row("b", alone, slowdown=0.5)], found)[0]

    assert said(1.0) == (
        "Together the jobs took 8 s from the first step to the last. Sharing was faster if 'a' takes more than 2 s "
        "alone, which is not known; shared it took 4 s."
    )
    assert said(1.5).endswith("Sharing was faster, however long 'a' takes alone.")
    assert said(0.4).endswith("Sharing was slower, even if 'a' takes 4 s alone, as it did shared.")
    assert "A step of 'b' (primary) took 1.50 times" in verdict([row("a", None), row("b", 1, slowdown=0.5)], found)[1]


def test_steps_right_after_another_job_ended_are_not_alone_yet() -> None:
    shared, change, alone = np.full(20, 0.3), np.full(3, 0.25), np.tile([0.1, 0.1, 0.1, 0.2], 10)
    ends = 1 + np.cumsum([*shared, *change, *alone])
    mine, other = timeline(list(ends), (0, ends[-1])), timeline([], (0, ends[19] - 0.01))
    lone = job_timelines.steps_of([mine, other])[0].alone
    assert lone is not None
    assert (lone.mean, lone.quartiles) == (pytest.approx(0.125), pytest.approx((0.1, 0.125)))
    assert (lone.count, lone.first, lone.last) == (40, 24, 63)
    few = timeline(list(ends[:42]), (0, ends[41]))
    assert job_timelines.steps_of([few, other])[0].alone is None, "19 steps"


JOBS = """
import threading, torch
both = threading.Barrier(2)  # they begin and end together
def train(job):
    weights = torch.ones(4, 2, requires_grad=True)
    for batch in job.batches([torch.ones(8, 4)] * 30):
        batch.backward(lambda x: (x @ weights).sum())
def first(job):
    train(job)
def pair(job):
    both.wait(300)
    train(job)
    both.wait(300)
def second(job):
    pair(job)
def third(job):
    pair(job)
"""


def test_jobs_that_start_together_learn_what_a_step_takes_alone(tmp_path: Path) -> None:
    """By the steps of the one after the other has ended: the same on the page, in JSON, and printed."""
    alone: dict[str, Any] = {}

    def short(job: Job) -> None:
        wait_until(lambda: runtime.jobs[1].result.steps > 10)
        train(job)
        alone["since"] = runtime.jobs[1].result.steps + 1  # its state changes only some steps later

    def long(job: Job) -> None:
        wait_until(lambda: runtime.jobs[0].state == "running")  # or the first steps are alone, too
        x = torch.ones(8, 4, requires_grad=True)
        for batch in job.batches(iter(lambda: None if alone.get("enough") else torch.ones(8, 4), None)):
            batch.backward(lambda data: (data * x).sum())
            if runtime.jobs[0].state == "finished":
                alone["enough"] = job.result.steps > alone.setdefault("at", job.result.steps) + 40

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(short, name="short", priority="primary")
        runtime.submit(long, name="long")
        runtime.start()
        runtime.wait(300)
    report = runtime.sharing_report()
    runtime.write_report(tmp_path / "out.html")
    first, second = (report.jobs[name] for name in ("short", "long"))
    assert first["alone_s"] is None and first["shared_s"] > 0
    found = re.fullmatch(
        r"the mean of (\d+) steps from step (\d+) to (\d+), alone in this run; half of them took .* to .*",
        second["alone_from"],
    )
    assert found is not None, second["alone_from"]
    count, begin, end = map(int, found.groups())
    assert 20 <= count <= end - begin + 1
    assert alone["since"] + 2 <= begin and end <= runtime.results["long"].steps
    page = pages.Page((tmp_path / "out.html").read_text())
    assert [{key: row[key] for key in first} for row in page.data["jobs"]] == [first, second]
    assert page.data["verdict"] == report.verdict
    assert report.verdict[0].startswith("Together the jobs took") and "'short'" in report.verdict[0]
    printed = str(report).splitlines()
    assert printed[0] == f"sharing: {report.verdict[0]}"
    assert printed[-1] == f"sharing: 'long': the time of a step alone is {second['alone_from']}."


def test_run_prints_what_sharing_gained_and_has_it_as_json(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    command = ("run", "jobs.py:second", "jobs.py:third", "--threads", "1")
    printed = torchshare_command(*command, folder=tmp_path)
    lines = [line for line in printed.stdout.splitlines() if line.startswith("sharing: ")]
    assert printed.returncode == 0 and lines[0].startswith("sharing: What sharing gained is not known: no step time")
    done = torchshare_command(*command, "--json", "--report", "out.html", folder=tmp_path)
    document, page = json.loads(done.stdout), pages.Page((tmp_path / "out.html").read_text())
    assert document["verdict"] == page.data["verdict"]
    keys = ("alone_s", "alone_from", "alone_quartiles_s", "shared_s", "slowdown")
    assert [[job[key] for key in keys] for job in document["jobs"]] == [
        [job[key] for key in keys] for job in page.data["jobs"]
    ]
    alone = torchshare_command("run", "jobs.py:first", folder=tmp_path)
    assert "sharing" not in alone.stdout, "of one job"


def test_the_verdict_counts_what_is_no_step_as_alone() -> None:
    evaluates = np.tile([*[0.1] * 9, 10.1], 10).cumsum()  # 110 s
    found = [timeline(list(evaluates), (0, 110)), timeline(list(evaluates), (0, 110))]
    assert "sharing was 2.00 times as fast" in verdict([row("a", 0.1), row("b", 0.1)], found)[0]


def test_the_verdict_is_open_where_long_steps_may_be_waits_for_the_other_job() -> None:
    """Two jobs of tiny steps that pass the interpreter lock to each other: they look as if they evaluated."""
    waits = np.tile([*[0.1] * 9, 10.1], 10).cumsum()  # 110 s, of which 101 in long steps
    found = [timeline(list(waits), (0, 110)), timeline(list(waits), (0, 110))]

    def said(*stalled: float) -> str:
        rows = [{**row(name, 0.1), "stalled_s": each} for name, each in zip("ab", stalled, strict=True)]
        return verdict(rows, found)[0]

    assert "not known: it was 0.16 to 2.00 times as fast as one after the other" in said(500, 500)
    assert "sharing was 2.00 times as fast" in said(1, 1)
    assert "Sharing was 1.09 to 2.00 times as fast as one after the other" in said(50, 50)


def test_the_verdict_counts_no_time_in_which_nothing_ran_nor_waits_at_the_gate() -> None:
    half = np.arange(0, 10, 0.1)
    ends, apart = [*half, *(3600 + half)], [(0, 10), (3600, 3610)]
    first = timeline(ends, *apart)
    suspended = {"suspended": spans((9.9, 3600))}
    starved = Timeline(np.array([0, 1, 2, 3, 9.8]), spans(), {"gate": spans((3.1, 9.7))}, spans(), spans((0, 9.8)))
    rows = [row("a", 0.1), row("b", 1)]
    said = verdict(rows, [Timeline(first.steps, spans(), suspended, spans(), first.running), starved])[0]
    assert "Together the jobs took 19.9 s" in said
    assert "would take about 23.9 s" in said, "199 steps of a; 4 of b, which waited"


def test_the_verdict_names_the_primary_wherever_it_was_submitted() -> None:
    found = [timeline([3, 4, 5], (1, 6)), timeline([5, 7, 9], (2, 9))]
    rows = [row("low", 1, slowdown=3.0, priority="secondary"), row("high", 1, slowdown=0.5)]
    assert "'high' (primary) took 1.50 times" in verdict(rows, found)[1]


def test_the_verdict_of_jobs_that_did_not_share() -> None:
    nothing = "No two jobs ran at the same time: nothing was shared."
    a, b = row("a", 0.04), row("b", 0.04)
    assert verdict([], []) == [nothing]
    assert verdict([a], [timeline([1, 6], (1, 6))]) == [nothing]
    assert verdict([a, b], [timeline([1, 6], (1, 6)), timeline([7, 9], (6, 9))]) == [nothing]
    waiting = row("b", None, "cancelled", steps=0)
    assert verdict([a, waiting], [timeline([1, 6], (1, 6)), timeline([])])[0] == nothing
    without = [row("a", None, steps=0), row("b", None, steps=0)]
    assert "too few steps" in verdict(without, [timeline([], (0, 1))] * 2)[0]


def test_the_verdict_compares_what_a_full_timeline_still_has() -> None:
    found = [timeline([8, 9, 10, 11], (0, 11)), timeline([1, 3, 5, 7, 9, 11], (0, 11))]
    first = verdict([row("a", 0.5, steps=100), row("b", 1.0, steps=6)], found)[0]
    assert "took 3 s" in first
    assert "about 3.5 s" in first


def test_a_report_of_a_full_timeline(tmp_path: Path) -> None:
    with torchshare.Runtime(device="cpu", timeline_capacity=1) as runtime:
        runtime.submit(train, name="a", priority="primary")
        runtime.submit(train, name="b")
        runtime.wait(300)
        found, _ = job_timelines.timelines([job._context.handle for job in runtime.jobs], runtime.events())
        runtime.write_report(tmp_path / "out.html")
    for name in "ab":
        assert np.ptp(found[name].running) == pytest.approx(runtime.results[name].ran_s)
    assert pages.Page((tmp_path / "out.html").read_text()).data["dropped_events"] > 0


def test_an_ended_job_is_in_no_figure_of_the_job_that_has_its_name() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(train, name="a")
        runtime.wait(300)
        looked: list[bool] = []
        runtime.submit(lambda job: wait_until(lambda: looked), name="gatekeeper")
        runtime.submit(train, name="a", start="after:gatekeeper")
        before, _ = job_timelines.timelines([job._context.handle for job in runtime.jobs], runtime.events())
        looked.append(True)
        runtime.wait(300)
        after, _ = job_timelines.timelines([job._context.handle for job in runtime.jobs], runtime.events())
    assert len(before["a"].steps) == len(before["a"].running) == 0
    assert len(after["a"].steps) == runtime.results["a"].steps == 60
    assert np.ptp(after["a"].running) == pytest.approx(runtime.results["a"].ran_s)


def test_a_job_that_is_suspended_now_has_been_since_then() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        first = runtime.submit(train, name="a")
        first.suspend()
        runtime.start()
        wait_until(lambda: first.state == "suspended")
        reached = first.result.ran_s
        wait_until(lambda: first.result.ran_s > reached + 0.2)
        found, _ = job_timelines.timelines([first._context.handle], runtime.events())
        first.resume()
        runtime.wait(300)
    assert np.ptp(found["a"].waits["suspended"]) >= 0.2
    assert np.diff(found["a"].running).sum() <= reached


def test_a_report_shows_the_latencies_of_requests_alone_and_beside_another_job(tmp_path: Path) -> None:
    alone, beside = threading.Event(), threading.Event()

    def serve(job: Job) -> None:
        for number in job.requests(iter(range(2000)), slo="p99<60s"):
            number.answer(None)
            if number.data == 999:
                alone.set()
                assert beside.wait(300)

    def train(_job: Job) -> None:
        beside.set()
        wait_until(lambda: server.state == "finished")

    with torchshare.Runtime(device="cpu") as runtime:
        server = runtime.submit(serve, name="server", priority="primary")
        runtime.start()
        assert alone.wait(300)
        runtime.submit(train, name="training")
        runtime.wait(300)
        runtime.write_report(tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert len(text) < 300_000
    shown = pages.Page(text)
    (requests,) = shown.data["requests"]
    assert (requests["answered"], requests["slo"], requests["late"]) == (2000, "p99<60s", 0)
    assert requests["alone_p99_s"] > 0 < requests["shared_p99_s"]
    assert shown.tables["requests"][1][:3] == ["server", "2,000", "0"]
    curves = {tag["id"] for name, tag in shown.tags if name == "g" and tag.get("id")}
    assert {"latencies.0", "latencies_alone.0", "latencies_slo.0"} <= curves
    assert "latencies.1" not in curves


def test_a_request_that_is_older_than_the_job_counts_with_all_of_its_latency(tmp_path: Path) -> None:
    source: queue.Queue[Any] = queue.Queue()
    source.put(torchshare.Request(1))
    source.put(None)
    time.sleep(0.2)
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: [each.answer(None) for each in job.requests(source)], name="server")
        runtime.wait(300)
        runtime.write_report(tmp_path / "out.html")
    (requests,) = pages.Page((tmp_path / "out.html").read_text()).data["requests"]
    assert requests["alone_p99_s"] > 0.2


def test_which_requests_were_beside_another_job() -> None:
    mine = dataclasses.replace(timeline([], (0, 10)), requests=spans((1, 1.5), (2, 4), (3.5, 3.75), (9, 9.5)))
    (alone, shared), _ = job_timelines.latencies_of([mine, timeline([], (3, 3.6), (9.2, 9.3))])
    assert list(alone) == [0.5]
    assert list(shared) == [2, 0.25, 0.5]


def test_a_report_stays_small(tmp_path: Path) -> None:
    def fail(job: Job) -> None:
        raise ValueError("<\x1b" * 2_000)

    with torchshare.Runtime(device="cpu", max_concurrent=2) as runtime:
        for number in range(100):
            runtime.submit(fail if number % 10 == 0 else train, name=f"{number}" + "<\U0001f600" * 120)
        runtime.wait(300, check=False)
        runtime.write_report(tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size < 300_000
    shown = pages.Page((tmp_path / "out.html").read_text())
    assert len(shown.data["jobs"]) + shown.data["more_jobs"] == 100
    recent = [(second * 10**9, (second + 1) * 10**9, second / 3600) for second in range(3600)]
    chart = run_report.bound_chart(recent, 0.5, 3600.0, 0)
    assert len(figures.svg("bound", chart)) < 100_000


def test_the_bound_of_a_late_job_is_shown_and_its_decisions_hide_no_other() -> None:
    names = [f"job {number}" for number in range(11)]
    told = [("decision", names[10], second, second, 0, f"bound: lower jobs may run {second}") for second in range(300)]
    events = [*told, ("state", "job 3", 300, 300, 0, "failed")]
    bound = SimpleNamespace(recent=[(0, 1, 0.1)], windows=1, alone=0.01)
    jobs = [
        SimpleNamespace(
            name=name,
            span_ns=(1, 300),
            bound=lambda: bound,
            memory_limit=None,
            profiled_step_s=None,
        )
        for name in names
    ]
    results = {name: result(name) for name in names}
    reports = [SimpleNamespace(job=names[10], max_slowdown=0.5)]
    content, drawn = run_report.document(jobs, results, events, reports, [], {}, 0)
    assert [each["text"] for each in content["decisions"]] == ["bound: lower jobs may run 299", "failed"]
    assert content["bounded"] == names[10]
    assert "bound" in drawn


def test_charts_do_not_take_the_settings_of_scripts(report: Path) -> None:
    with matplotlib.rc_context():
        matplotlib.style.use("ggplot")
        matplotlib.rcParams["text.usetex"] = True
        text = figures.svg("waits", figures.waits(np.array([1e-3, 1.0]), [np.array([1])]))
    assert "#1f77b4" in text
    assert matplotlib.rcParams["text.usetex"] is False


def test_units() -> None:
    assert [numbers.seconds(value) for value in (0, 1.5, 0.0125, 2e-6, 5e-9, None)] == [
        "0 s",
        "1.5 s",
        "12.5 ms",
        "2 µs",
        "5 ns",
        "-",
    ]
    assert [numbers.seconds(value) for value in (0.9996, 9.9999e-4, 0.9994)] == ["1 s", "1 ms", "999 ms"]
    assert (numbers.number(999.6), numbers.size(999.7 * MIB)) == ("1,000", "1,000 MiB")
    assert [numbers.number(value) for value in (12345, 1234.5, 0.12345, float("nan"))] == [
        "12,345",
        "1,234",
        "0.123",
        "-",
    ]
    assert numbers.size(3 * MIB) == "3 MiB"


def check_numbers(shown: pages.Page) -> None:
    """The tables say what the data says."""
    data = shown.data
    _, *jobs = shown.tables["jobs"]
    assert [cells[0] for cells in jobs] == [HOSTILE.replace("\n", "\n").replace("\x1b", "\\x1b").strip(), "second"]
    for cells, job in zip(jobs, data["jobs"], strict=True):
        assert cells[1:4] == [job["priority"], "finished", numbers.number(job["steps"])]
        assert cells[4] == numbers.seconds(job["ran_s"])
        assert cells[9:] == [numbers.size(job["memory_peak"]), numbers.size(job["budget"])]
        assert job["budget"] in (64 * MIB, 32 * MIB)
    header, *times = shown.tables["times"]
    assert header[2:] == data["parts"]
    for cells, job in zip(times, data["jobs"], strict=True):
        assert cells[2:] == [numbers.seconds(job["time"][part]) for part in data["parts"]]
        assert sum(job["time"].values()) == pytest.approx(job["ran_s"], rel=0.02)
    assert data["jobs"][1]["time"]["suspended"] > 0
    assert len(shown.tables["decisions"]) == len(data["decisions"]) + 1
    assert len(shown.tables["gaps"]) == len(data["gaps"]) + 1 == 2


def test_a_report_says_what_its_data_says(report: Path) -> None:
    text = report.read_text()
    assert len(text) < 300_000
    shown = pages.Page(text)
    check_numbers(shown)
    assert {"throughput", "memory", "bound", "waits"} <= {
        tag["id"].partition(".")[0].partition("-")[0] for name, tag in shown.tags if name == "g" and tag.get("id")
    }
    assert "<script>alert(1)</script>" in shown.text
    ids = [tag["id"] for _, tag in shown.tags if "id" in tag]
    assert len(ids) == len(set(ids))


def test_a_report_loads_nothing(report: Path) -> None:
    shown = pages.Page(report.read_text())
    assert shown.policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    loaded = [
        (name, key, value)
        for name, tag in shown.tags
        for key, value in tag.items()
        if key in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#")
    ]
    assert loaded == []
    assert [tag for name, tag in shown.tags if name == "script"] == [{"type": "application/json", "id": "data"}, {}]


@pytest.mark.skipif(pages.browser() is None, reason=f"needs {' or '.join(pages.BROWSERS)}")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_a_report(report: Path, width: int, dark: bool) -> None:
    shown, console = pages.rendered(report, width=width, dark=dark)
    assert console == []
    check_numbers(shown)
    boxes = [tag for name, tag in shown.tags if name == "input"]
    assert len(boxes) == 2, "the script ran"


WIDER = """<script>
const cut = [...document.querySelectorAll("table")].filter((each) => each.scrollWidth > each.parentElement.clientWidth);
document.body.setAttribute("data-cut", cut.map((each) => each.id || "facts").join(" "));
</script>"""


@pytest.mark.skipif(pages.browser() is None, reason=f"needs {' or '.join(pages.BROWSERS)}")
@pytest.mark.parametrize("width", [420, 1280])
def test_no_table_is_wider_than_the_page(report: Path, tmp_path: Path, width: int) -> None:
    text = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", report.read_text())
    asks = tmp_path / "asks.html"
    asks.write_text(text.replace("</body>", f"{WIDER}</body>"))
    shown, _ = pages.rendered(asks, width=width)
    assert [tag["data-cut"] for name, tag in shown.tags if name == "body"] == [""]


def test_run_writes_a_report_and_says_why_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("def a(job):\n    pass\n\ndef b(job):\n    1 / 0\n")
    done = torchshare_command("run", "jobs.py:a", "jobs.py:b", "--report", "out.html", folder=tmp_path)
    assert done.returncode == 1
    shown = pages.Page((tmp_path / "out.html").read_text())
    assert "'b' failed: ZeroDivisionError: division by zero" in " ".join(shown.text.split())
    assert [job["state"] for job in shown.data["jobs"]] == ["finished", "failed"]
    refused = torchshare_command("run", "jobs.py:a", "--report", "no/out.html", folder=tmp_path)
    assert refused.returncode == 2
    assert "--report must be a file in an existing folder, got no/out.html" in refused.stderr
