"""The timeline: its events, its capacity, and its file."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path

import pytest
import torch

import torchshare
from torchshare import Job


def slow_loader(count: int):
    for _ in range(count):
        time.sleep(0.005)
        yield torch.ones(4, 2)


def train(job: Job) -> None:
    for batch in job.batches(slow_loader(3), sub_batch=2):
        batch.backward(lambda x: (x * torch.ones(2, requires_grad=True)).sum())


def test_every_step_sub_batch_and_input_is_recorded_with_its_times():
    before = time.monotonic_ns()
    with torchshare.Runtime() as runtime:
        runtime.submit(train, name="a")
        runtime.wait(300)
        events = runtime.events()
    after = time.monotonic_ns()
    assert all(before <= begin <= end <= after for _, _, begin, end, _, _ in events)
    of = {kind: [event for event in events if event[0] == kind] for kind in ("step", "sub_batch", "input", "wait")}
    assert [event[4] for event in of["step"]] == [0, 1, 2]
    assert [event[4] for event in of["sub_batch"]] == list(range(6))
    assert len(of["input"]) == 5  # the loader's start, three batches, and its end
    assert sum(end - begin >= 5_000_000 for _, _, begin, end, _, _ in of["input"]) >= 3
    assert len(of["wait"]) == 3  # the loader's sleeps, in which another job may run
    for sub in of["sub_batch"]:
        step = of["step"][sub[4] // 2]
        assert step[2] <= sub[2] <= sub[3] <= step[3]


def test_requests_overlap_and_are_on_the_trace_from_arrival_to_answer(tmp_path: Path):
    source = queue.Queue()
    for each in (torchshare.Request(1), torchshare.Request(2), None):
        source.put(each)

    def serve(job: Job) -> None:
        for request in job.requests(source):
            time.sleep(0.01)
            request.answer(request.data)

    with torchshare.Runtime() as runtime:
        runtime.submit(serve, name="server")
        runtime.wait(300)
        first, second = (event for event in runtime.events() if event[0] == "request")
        runtime.write_timeline(tmp_path / "trace.json")
    assert second[2] < first[3] < second[3]  # it came before the first was answered
    assert second[4] >= 10_000_000  # ns that it was queued
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ends = [(event["id"], event["ph"]) for event in trace if event.get("cat") == "request"]
    assert sorted(ends) == sorted((number, phase) for number in {each for each, _ in ends} for phase in "be")
    assert len(ends) == 4


def test_the_buffer_is_bounded_and_the_oldest_go():
    with torchshare.Runtime(timeline_capacity=10) as runtime:
        runtime.submit(lambda job: [list(batch) for batch in job.batches([torch.ones(1)] * 100)], name="a")
        runtime.wait(300)
        events = runtime.events()
        assert len([kind for kind, *_ in events if kind in ("step", "sub_batch", "input", "wait")]) == 10
        assert runtime._handle.dropped_events > 200
        assert events[-1][0::5] == ("state", "finished")


def test_the_trace_is_json_with_names_as_they_were(tmp_path: Path):
    name = 'a "quoted"\n\\ näme'
    path = tmp_path / "trace.json"
    with torchshare.Runtime() as runtime:
        runtime.submit(train, name=name)
        runtime.submit(train, name="b", start="after:" + name)
        runtime.wait(300)
        runtime.write_timeline(path)
        count = len(runtime.events())
    entries = json.loads(path.read_text())["traceEvents"]
    names = [entry["args"]["name"] for entry in entries if entry["name"] == "process_name"]
    assert names == [name, "b"]
    spans = [entry for entry in entries if entry["ph"] == "X"]
    instants = [entry for entry in entries if entry["ph"] == "i"]
    assert len(spans) + len(instants) == count
    assert all(entry["dur"] >= 0 and entry["ts"] >= 0 for entry in spans)
    assert any(entry["cat"] == "decision" and name in entry["name"] for entry in instants)


def test_a_path_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path):
    with torchshare.Runtime() as runtime:
        with pytest.raises(OSError, match=r"cannot write the timeline to '.*/missing/t.json': No such file"):
            runtime.write_timeline(tmp_path / "missing" / "t.json")
        (tmp_path / "folder").mkdir()
        with pytest.raises(OSError, match=r"cannot write the timeline to '.*/folder'"):
            runtime.write_timeline(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_results_print_as_a_table():
    with torchshare.Runtime() as runtime:
        runtime.submit(train, name="resnet", priority="primary")
        lines = str(runtime.wait(300)).splitlines()
    assert lines[0].split()[:4] == ["job", "priority", "state", "steps"]
    assert lines[1].split()[:5] == ["resnet", "primary", "finished", "3", "6"]
