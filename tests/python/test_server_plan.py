"""Jobs that answer requests, in profiles, plans and start="auto"."""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import wait_until
from test_auto import decisions, training
from test_auto import profile as step_profile

import torchshare
from torchshare import Job
from torchshare.__main__ import main
from torchshare.context.results import ENDED
from torchshare.profiles.profile import Partner, Profile
from torchshare.profiles.requests import RequestTimes, ServedAlone, ServedBeside
from torchshare.profiling import measurement
from torchshare.profiling.server_plan import plan_server

QUICK: dict[str, Any] = {"window": 0.2, "rounds": 1, "threads": 1, "splits": 2}
Body = Callable[[Job], Any]


def answer(data: Any) -> torch.Tensor:
    """Takes longer than to hand a request over."""
    return torch.ones(200, 200) @ torch.ones(200, 200)


def arrivals(pause: float) -> Iterator[int]:
    for number in itertools.count():
        time.sleep(pause)
        yield number


def of_a_queue(job: Job) -> None:
    inbox: queue.Queue[Any] = queue.Queue()

    def client() -> None:
        while job.state not in ENDED:
            time.sleep(0.005)
            inbox.put(torch.ones(1))

    threading.Thread(target=client).start()
    for request in job.requests(inbox, max_batch=4, max_wait=0.001, slo="p99<5s"):
        request.answer(request.data)


def of_an_iterator(job: Job) -> None:
    for request in job.requests(arrivals(0.005)):
        request.answer(answer(request.data))


def back_to_back(job: Job) -> None:
    for request in job.requests(itertools.count()):
        request.answer(answer(request.data))


def hopeless(job: Job) -> None:
    for request in job.requests(arrivals(0.005), slo="p99<1us"):
        request.answer(answer(request.data))


def of_threads(job: Job) -> None:
    served = job.serve(answer)

    def handler() -> None:
        while True:
            time.sleep(0.005)
            try:
                served(0)
            except RuntimeError:  # the job has ended
                return

    threads = [threading.Thread(target=handler) for _ in range(2)]
    for thread in threads:
        thread.start()
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("body", [of_a_queue, of_an_iterator, back_to_back, hopeless, of_threads])
def test_a_job_that_answers_requests_is_profiled_by_these(body: Body):
    found = torchshare.profile(body, training(None), partner_name="train", partner_threads=1, **QUICK)
    assert found.requests is not None
    times = found.requests.times
    assert 0 < times.service_s[0] <= times.mean_s <= times.latency_s[2] < 60
    assert times.is_back_to_back == (body is back_to_back)
    if body is not back_to_back:
        assert 0 < times.per_s < 500
        assert times.answered / times.per_s >= 0.2
    assert found.requests.slo == {of_a_queue: "p99<5s", hopeless: "p99<1us"}.get(body)
    assert [(size.sub_batches, size.rows) for size in found.alone] == [(1, 1)]
    assert found.step_s(None) == pytest.approx(times.service_s[len(times.service_s) // 2], rel=0.5)
    (partner,) = found.partners
    assert partner.requests is not None and partner.requests.times.answered >= 5
    assert not partner.beside[0].starved, "its promise held the other while it was measured"


def test_two_servers_are_profiled_together():
    found = torchshare.profile(of_an_iterator, back_to_back, partner_threads=1, **QUICK)
    assert found.partners[0].requests is not None
    assert plan_server(
        [found, found.model_copy(update={"job": "back_to_back"})], "p50<10s", None, {"back_to_back": None}
    )


def test_a_profile_of_requests_is_saved(tmp_path: Path):
    found = torchshare.profile(of_an_iterator, training(None), partner_name="train", partner_threads=1, **QUICK)
    found.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == found


def test_a_server_that_nobody_asks_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measurement, "_MAX_WINDOWS", 1)

    def unasked(job: Job) -> None:
        for request in job.requests(queue.Queue()):
            request.answer(0)

    with pytest.raises(ValueError, match=r"job 'unasked' must answer at least 8 requests, got 0 in .* must send them"):
        torchshare.profile(unasked, **QUICK)


def requests(service: float, per_s: float = 20.0) -> RequestTimes:
    return RequestTimes.of([service] * 100, [service] * 100, per_s, 1)


def server_profile(alone: float = 0.005, beside: float = 0.015, slo: str | None = None, per_s: float = 20.0) -> Profile:
    """Its requests take `alone` seconds, and `beside` those beside 'train', which is then half as fast."""
    made = step_profile("server", alone, "train", (beside / alone, 2.0))
    measured = ServedBeside(times=requests(beside, per_s), op_s=1e-4)
    partner = Partner(job="train", role="primary", beside=made.partners[0].beside, requests=measured)
    served = ServedAlone(slo=slo, times=requests(alone, per_s))
    return made.model_copy(update={"partners": [partner], "requests": served})


TRAIN = step_profile("train", 0.01)


def planned(server: Profile, slo: str | None = None, max_slowdown: float | None = None) -> Any:
    return plan_server([server, TRAIN], slo, max_slowdown, {"train": 1000})


def test_the_largest_share_is_that_at_which_few_enough_requests_are_slow():
    found = planned(server_profile(), "p80<10ms")
    assert 0.03 < found.share < 0.2  # in slices as long as the promise, which a request sees from 5 ms before
    assert found.decision == f"'train' starts now beside 'server', for at most {100 * found.share:.3g}% of the time"
    alone, best, always = found.forecasts
    assert (alone.share, best.share, always.share) == (0, found.share, 1)
    assert alone.late < best.late <= 0.2 < always.late
    assert alone.p50_s == pytest.approx(0.005, rel=0.03) and always.p50_s == pytest.approx(0.015, rel=0.03)
    assert (best.speed, always.speed) == (found.share / 2, 0.5)
    assert f"'train' takes 10.0 s alone, {10 / best.speed:,.1f} s beside it" in found.reasons


def test_a_promise_that_always_or_never_holds_needs_no_share():
    assert planned(server_profile(slo="p99<1s")).decision == "'train' starts now beside 'server', for all of the time"
    assert planned(server_profile(slo="p99<1s"), "p99<4ms").decision == (
        "'train' starts after 'server', which does not hold p99<4ms even alone"
    )
    assert planned(server_profile(beside=2.0), "p99<50ms").decision == (
        "'train' starts after 'server': no share of the time leaves p99<50ms"
    )
    assert planned(server_profile()).slo is None


def test_requests_that_wait_for_others_are_as_late_as_measured():
    server = server_profile(beside=0.005)
    assert server.requests is not None
    waits = server.requests.times.model_copy(update={"latency_s": (0.025, 0.025, 0.025)})
    server = server.model_copy(update={"requests": ServedAlone(slo=None, times=waits)})
    assert planned(server, "p99<20ms").share == 0
    assert planned(server, "p99<200ms").forecasts[0].p50_s == pytest.approx(0.025, rel=0.03)


def test_a_bound_on_the_slowdown_is_one_on_the_service_time():
    assert planned(server_profile(), None, 0.5).share == pytest.approx(0.25)
    assert planned(server_profile(beside=0.0051), None, 0.05).share == 1
    with pytest.raises(ValueError, match="max_slowdown and the promise of 'server' cannot be given together"):
        planned(server_profile(slo="p99<1s"), None, 0.5)


def test_requests_that_come_faster_than_they_are_answered_beside_the_other_are_told():
    found = planned(server_profile(beside=0.06), "p99<1s")
    assert any("requests come faster than they are answered" in reason for reason in found.reasons)


def written(folder: Path, *profiles: Profile) -> list[str]:
    for each in profiles:
        each.save(folder / f"{each.job}.json")
    return [str(folder / f"{each.job}.json") for each in profiles]


def test_the_verb_prints_the_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = written(tmp_path, TRAIN, server_profile())
    assert main(["plan", *paths, "--slo", "p80<10ms", "--steps", "train=1000"]) == 0
    text = capsys.readouterr().out
    assert "'train' starts now beside 'server', for at most" in text
    assert "train may run  its speed  latency p50" in text
    assert "- 20 requests per second, taken to come at random times, are a load of 0.10" in text
    assert main(["plan", *paths, "--slo", "p80<10ms", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["share"] < 1


@pytest.mark.parametrize(
    ("profiles", "options", "message"),
    [
        ([server_profile(), TRAIN], ["--slo", "p99"], "slo must be a percentile below 100"),
        ([server_profile(), TRAIN], ["--png", "x.png"], "--png draws no plan beside a job that answers requests"),
        ([server_profile(), step_profile("other", 1)], [], "no profile has the requests of 'server' beside 'other'"),
        ([server_profile(), TRAIN, step_profile("other", 1)], [], "job 'server' answers requests and has no end"),
        ([TRAIN, step_profile("other", 1)], ["--slo", "p99<1s"], "--slo needs the profile of a job that answers"),
    ],
)
def test_what_cannot_be_planned_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], profiles: list[Profile], options: list[str], message: str
):
    assert main(["plan", *written(tmp_path, *profiles), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_verb_shows_a_profile_of_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "server.py").write_text(
        "import time, torch\n"
        "def arrivals():\n"
        "    while True:\n"
        "        time.sleep(0.005)\n"
        "        yield torch.ones(2)\n"
        "def serve(job):\n"
        "    for request in job.requests(arrivals(), slo='p99<5s'):\n"
        "        request.answer(request.data + 1)\n"
    )
    options = ["--threads", "1", "--window", "0.2", "--rounds", "1", "--cache", str(tmp_path / "cache")]
    assert main(["profile", f"{tmp_path}/server.py:serve", *options]) == 0
    text = capsys.readouterr().out
    assert "beside  requests  per s  load  service ms  latency p50   p95  p99 ms" in " ".join(text.split("\n"))
    assert "measured without its promise, p99<5s" in text


def serving(over: threading.Event) -> Callable[[Job], None]:
    """A job that answers requests until `over`."""

    def serve(job: Job) -> None:
        for request in job.requests(arrivals(0.005)):
            request.answer(answer(request.data))
            if over.is_set():
                return

    return serve


@pytest.mark.parametrize(("slo", "starts"), [("p99<1s", True), ("p99<4ms", False)])
def test_auto_follows_the_profile_of_a_server(slo: str, starts: bool):
    over = threading.Event()
    with torchshare.Runtime() as runtime:
        server = server_profile()
        runtime.submit(serving(over), name="server", priority="primary", threads=1, profile=server, slo=slo)
        trains = runtime.submit(training(20), name="train", threads=1, profile=TRAIN, start="auto")
        runtime.start()
        if starts:
            wait_until(lambda: trains.state == "finished")
        else:
            wait_until(lambda: decisions(runtime, "train") != [])
            assert trains.state in ("pending", "delayed")
        over.set()
        runtime.wait()
        first = decisions(runtime, "train")[0]
    if starts:
        assert first == "start: auto: 'server' keeps its promise while 'train' runs for 100 % of the time"
    else:
        assert first == "stay: auto: 'server' keeps its promise beside no share of 'train'"


def test_auto_starts_beside_a_server_when_it_has_answered(caplog: pytest.LogCaptureFixture):
    over = threading.Event()
    with torchshare.Runtime() as runtime:
        runtime.submit(serving(over), name="server", priority="primary", threads=1)
        trains = runtime.submit(training(20), name="train", threads=1, start="auto")
        runtime.start()
        wait_until(lambda: trains.state == "finished")
        over.set()
        runtime.wait()
        assert decisions(runtime, "train")[0] == "start: auto: 'server' answers requests; 'train' runs beside it"
    assert "had no effect" not in caplog.text
