"""The state of a queue as one event, with which a journal can begin."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchshare import _core
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Event
from torchshare.cluster.queue_state import QueueState
from torchshare.cluster.queued_job import Gone, HostRecord, QueuedJob

_LIVE = ("number", "wanted", "wanted_split", "spec", "step_times", "trouble")  # made anew
_OF_HOST = ("node", "index", "token", "env", "up", "replacing", "heard")
# Ranks of another version are made anew. 2: pair-srsf ages 16 times slower than in 1, which snapshots did not name.
_RANKS = 2


def take(state: QueueState) -> Event:
    """Takes a snapshot. The step times of running jobs are not part of it."""
    return {
        "event": "snapshot",
        "time": state.time,
        "origin": state.origin,
        "ranks": _RANKS,
        "learned": state.learned.saved(),
        "hosts": {str(gpu): {name: getattr(host, name) for name in _OF_HOST} for gpu, host in state.hosts.items()},
        "spans": state.spans,
        "jobs": [_saved(job, state.live) for job in state.jobs.values()],
    }


def _saved(job: QueuedJob, live: _core.LiveScheduler) -> dict[str, Any]:
    own = {name: value for name, value in _given(job).items() if name not in _LIVE}
    own["spec"] = _given(job.spec)
    own["gone"] = {gpu: dataclasses.astuple(gone) for gpu, gone in job.gone.items()}
    if not job.outcome and not job.cancelled and job.has_entered:
        own["live"] = [live.progress(job.number), live.gpus(job.number)]
    return own


def _given(value: Any) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    found = {}
    for each in dataclasses.fields(value):
        default = each.default_factory() if callable(each.default_factory) else each.default
        if getattr(value, each.name) != default:
            found[each.name] = getattr(value, each.name)
    return found


def restore(state: QueueState, event: Event) -> None:
    """Brings an empty state to where the snapshot was taken."""
    state.origin, state.now = event["origin"], event["time"] - event["origin"]
    state.learned.restore(event["learned"])
    state.tell_ratios(sorted(state.learned.pairs))
    for gpu, saved in event["hosts"].items():
        state.hosts[int(gpu)] = HostRecord(**saved)
        if int(gpu) > 0:
            state.live.add_node()
        if saved["up"]:
            state.live.gain(int(gpu), state.now)
    state.spans = [(name, gpu, begin, end) for name, gpu, begin, end in event["spans"]]
    for saved in event["jobs"]:
        _restore_job(state, saved, keeps_rank=event.get("ranks") == _RANKS)
    state.apply({"event": "look", "time": event["time"]})  # the policy does not remember when it wanted to decide again


def _restore_job(state: QueueState, saved: dict[str, Any], *, keeps_rank: bool) -> None:
    live = saved.pop("live", None)
    spec = JobSpec(**saved.pop("spec"))
    gone = {int(gpu): Gone(*left) for gpu, left in saved.pop("gone").items()}
    devices = tuple(saved.pop("devices", saved.pop("place", ())))  # place: in journals of earlier versions
    estimate = saved["estimate"]
    number = -1 if "outcome" in saved else state.add(spec, estimate, saved["submitted"] - (state.origin or 0.0))
    saved.setdefault("has_entered", live is not None or bool(devices))  # not in journals of earlier versions
    job = QueuedJob(spec, number, gone=gone, devices=devices, **saved)
    state.know(job)
    if job.outcome:
        return
    state.numbers.append(job)
    state.open[spec.name] = job
    state.set_suspect(job, job.is_suspect)
    state.expect_ends(job)
    for gpu in devices:
        if gpu not in gone:
            state.hosts[gpu].jobs[spec.name] = job
    if live is not None:
        progress, gpus = live
        # In journals of earlier versions, none is held, is split, or has lost its deadline.
        missing = (False, 1, False)[len(progress) - 6 :]
        if not keeps_rank:
            progress[5] = None
        state.live.restore(number, (*progress, *missing), gpus, state.now)
        state.live.set_pinned(number, bool(devices) and not job.can_save)
        job.wanted, job.wanted_split = tuple(gpus), state.live.sub_batches(number)
    state.look_at(job)
