"""Run by torchrun: all ranks take the same decisions about starts, suspensions, the bound and the end of jobs."""

import threading
import time

import torch
from lines import line
from store import RANK, from_both, until

import torchshare


def work_for_ever(job) -> None:
    while True:
        torch.ones(1)
        time.sleep(0.001)


def step_40_times(job) -> list[float]:
    """Slower on the first rank, and without collectives. Returns when each step began."""
    begins = []
    for batch in job.batches([torch.ones(1)] * 40):
        begins.append(time.monotonic())
        batch.data.add_(1)
        time.sleep(0.01 if RANK else 0.05)
    return begins


def started_at(job) -> float:
    return time.monotonic()


def jobs_start_on_all_ranks_at_once() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(step_40_times, name="a", priority="primary")
        runtime.submit(started_at, name="b", start="step:30")
        runtime.submit(started_at, name="c", start="after:a")
        results = runtime.wait(timeout=300)
    begins, *_ = from_both(results["a"].value)  # the first rank decides
    for name, step in (("b", 29), ("c", 39)):
        times = from_both(results[name].value)
        assert min(times) > begins[step], (name, times, begins)


def queued_jobs_start_in_one_order() -> None:
    """Threads may ask in any order; each job waits for itself on the other rank."""

    def meet(job) -> None:
        torch.distributed.init_process_group("gloo")
        for _ in range(20):
            torch.distributed.all_reduce(torch.ones(1))
            time.sleep(0.02 * (int(job.name, 16) % 2 == RANK))

    with torchshare.Runtime(device="cpu", max_concurrent=1) as runtime:
        for name in "abcd":
            runtime.submit(meet, name=name)
        results = runtime.wait(timeout=300)
    starts = [job for kind, job, _, _, _, detail in runtime.events() if kind == "decision" and "places free" in detail]
    assert starts == list("abcd"), starts
    assert {result.state for result in results.values()} == {"finished"}


def opposite_orders_end_alike() -> None:
    """Both ranks say something at the same time; the job has one state on both afterwards."""
    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(work_for_ever, name="a")
        runtime.start()
        for _ in range(5):
            from_both("ready")
            (job.suspend if RANK else job.resume)()
            until(lambda: len(set(from_both(job.state))) == 1)
        runtime.cancel()


def bound_is_kept_by_one_pace() -> None:
    may_end = threading.Event()

    def steps_and_waits(job) -> None:
        step_40_times(job)
        job.log(done=1)
        may_end.wait(300)

    with torchshare.Runtime(device="cpu", max_slowdown=0.1) as runtime:
        a = runtime.submit(steps_and_waits, name="a", priority="primary")
        b = runtime.submit(work_for_ever, name="b")
        first, _, _ = runtime._handle.pace()
        runtime.start()
        until(lambda: a.result.metrics)
        from_both("done")
        time.sleep(0.3)

        def is_one_pace() -> bool:
            """Unless a rank got no core between its two clocks."""
            share, cycle, age = runtime._handle.pace()
            paces = from_both([share, cycle, (time.time() - age) % cycle])
            apart = abs(paces[0][2] - paces[1][2])
            return paces[0][:2] == paces[1][:2] and share not in (first, 1) and min(apart, cycle - apart) < 0.02

        until(is_one_pace)
        may_end.set()
        until(lambda: a.state == "finished")
        until(lambda: runtime._handle.pace()[0] == 1)  # on both: without a primary, no job is held
        assert not runtime.bound_report() or RANK == 0
        from_both("open")
        b.cancel()


def cancellation_reaches_jobs_that_have_not_started() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(work_for_ever, name="a", priority="primary")
        runtime.submit(started_at, name="b", start="after:a")
        runtime.start()
        if RANK == 0:
            until(lambda: runtime.jobs[1].state == "delayed")
            runtime.cancel()
        results = runtime.wait(timeout=300)
    assert [result.state for result in results.values()] == ["cancelled", "cancelled"]


def fail(job) -> None:
    if RANK == 0:
        raise ValueError("no data")
    work_for_ever(job)


def jobs_submitted_late_end_too() -> None:
    """The first rank's has failed before the other rank submits it."""
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(work_for_ever, name="a")
        runtime.start()
        if RANK == 1:
            time.sleep(0.5)
        late = runtime.submit(fail, name="late", start=0.1)
        until(lambda: late.state == ("cancelled" if RANK else "failed"))
        runtime.cancel()
        runtime.wait(timeout=300, check=False)


def ranks_may_have_runtimes_of_their_own() -> None:
    for number in range(1 + RANK):
        with torchshare.Runtime(device="cpu", ranks=False) as runtime:
            runtime.submit(started_at, name=f"{number} of rank {RANK}")
            runtime.wait(timeout=300)
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(started_at, name="both")
        runtime.wait(timeout=300)


for check in (
    jobs_start_on_all_ranks_at_once,
    queued_jobs_start_in_one_order,
    opposite_orders_end_alike,
    bound_is_kept_by_one_pace,
    cancellation_reaches_jobs_that_have_not_started,
    jobs_submitted_late_end_too,
    ranks_may_have_runtimes_of_their_own,
):
    check()
    line(check.__name__)
