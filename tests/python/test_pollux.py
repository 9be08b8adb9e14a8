"""The policy like Pollux: its formulas, its choices of GPUs and batches, and the times of jobs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from test_simulate import random_trace

from torchshare.simulation.adaptdl import read_packaged
from torchshare.simulation.applications import APPLICATIONS
from torchshare.simulation.goodput import GPUS_PER_NODE, Goodput, StepModel, fit, goodput
from torchshare.simulation.job_trace import Limits
from torchshare.simulation.pollux import AdaptiveJob, _costs, allot, place, simulate_adaptive

MODEL = StepModel(0.1, 0.002, 0.05, 0.01, 0.3, 0.02, 2.0)
GPUS, ROWS = (column.ravel() for column in np.meshgrid([1.0, 2.0, 4.0, 8.0, 16.0], [32.0, 128.0, 512.0, 1024.0]))
BATCHES = np.array([128.0, 1024.0, 8192.0])


def made(noise: float, epochs: int = 3) -> Goodput:
    """An application whose measurements follow `MODEL`, with the same noise throughout."""
    last = MODEL.last(GPUS, ROWS)
    steps = np.column_stack([GPUS, ROWS, last, last - MODEL.gradient(ROWS)])
    return Goodput("cifar10", steps, BATCHES, np.full((3, epochs), noise), 100.0 * np.arange(1, epochs + 1))


def random_jobs(random: np.random.Generator, most: int) -> list[AdaptiveJob]:
    jobs = []
    for name in random.choice(list(APPLICATIONS), random.integers(1, most)):
        known = goodput(str(name))
        size = int(random.integers(0, min(len(known.gpus), 5)))
        most_gpus = known.gpus[size] * int(random.integers(1, 3))
        restarts, epoch = int(random.integers(0, 4)), int(random.integers(0, len(known.ends)))
        jobs.append(AdaptiveJob(known, 0.0, size, most_gpus=most_gpus, restarts=restarts, epoch=epoch))
    return jobs


def test_a_step_takes_what_the_formula_says():
    assert MODEL.gradient(np.array([50.0])) == pytest.approx([0.2])
    alone, within, between = MODEL.last(np.array([1.0, 4.0, 8.0]), np.full(3, 50.0))
    assert alone == pytest.approx(0.2)
    assert within == pytest.approx(math.hypot(0.2, 0.05 + 0.01 * 2))
    assert between == pytest.approx(math.hypot(0.2, 0.3 + 0.02 * 6))
    assert replace(MODEL, gamma=1.0).last(np.array([4.0]), np.array([50.0])) == pytest.approx([0.27])


def test_the_fit_finds_the_model_that_made_the_times():
    last = MODEL.last(GPUS, ROWS)
    assert vars(fit(GPUS, ROWS, last, MODEL.gradient(ROWS))) == pytest.approx(vars(MODEL), rel=1e-3)
    assert np.abs(made(1000.0).errors()).max() < 0.05  # of the measurements, which are interpolated


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_formulas_are_near_the_measurements(name):
    assert np.median(np.abs(goodput(name).errors())) < 0.1


def test_an_application_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"application must be one of bert, .*, got 'gpt'"):
        goodput("gpt")


def test_noisy_gradients_want_large_batches():
    largest = 49
    quiet, noisy = made(1e-3), made(1e9)
    four = quiet.gpus.index(4)
    rates, batches = quiet.best(0, 0, 0)
    assert batches[four] == 0  # every further row is in vain
    assert rates[0] == 0  # without GPUs
    rates, batches = noisy.best(0, 0, 0)
    assert batches[four] == largest
    # Efficiency is 1: goodput is throughput, in steps of 128 rows.
    rows = 8192 / 4 / 2
    step = MODEL.last(np.array([4.0]), np.array([rows]))[0] + MODEL.gradient(np.array([rows]))[0]
    assert rates[four] == pytest.approx(8192 / 128 / step, rel=1e-2)
    assert noisy.rate(four, largest, 0) == pytest.approx(8192 / 128 / step, rel=1e-5)


def test_more_rows_count_less_by_the_noise_scale():
    noise = 500.0
    application = made(noise)
    four = application.gpus.index(4)
    _, batches = application.best(four, 0, 0)
    rates = [application.rate(four, batch, 0) for batch in range(50)]
    assert batches[four] == pytest.approx(int(np.argmax(rates)), abs=1)
    assert 0 < batches[four] < 49
    rows = 8192 / 4 / 2
    step = MODEL.last(np.array([4.0]), np.array([rows]))[0] + MODEL.gradient(np.array([rows]))[0]
    assert rates[-1] == pytest.approx(8192 / 128 / step * (noise + 128) / (noise + 8192), rel=1e-5)


def test_the_greedy_steps_are_near_the_best_allotment():
    random = np.random.default_rng(0)
    worse = []
    for _ in range(100):
        jobs, now, gpus = random_jobs(random, 5), float(random.uniform(60, 4000)), int(random.choice([4, 8, 12, 16]))
        costs = [_costs(job, math.ceil(gpus / len(jobs)), now) for job in jobs]
        every = [
            sum(cost[size] for cost, size in zip(costs, sizes, strict=True))
            for sizes in itertools.product(*(range(len(cost)) for cost in costs))
            if sum(job.goodput.gpus[size] for job, size in zip(jobs, sizes, strict=True)) <= gpus
        ]
        found = sum(cost[size] for cost, size in zip(costs, allot(jobs, gpus, now), strict=True))
        worse.append(found / min(every) - 1)
    assert max(worse) < 0.05
    assert np.mean(np.array(worse) < 1e-9) > 0.95


def test_a_job_grows_by_twice_and_changes_only_for_enough():
    known = goodput("imagenet")
    new = AdaptiveJob(known, 0.0)
    assert known.gpus[allot([new], 64, 60.0)[0]] == 1
    grown = AdaptiveJob(known, 0.0, size=2, most_gpus=2)
    assert known.gpus[allot([grown], 64, 6000.0)[0]] == 4
    often = replace(grown, restarts=150)
    assert known.gpus[allot([often], 64, 6000.0)[0]] == 2


def test_all_jobs_find_nodes_and_keep_them():
    random = np.random.default_rng(1)
    for _ in range(100):
        nodes = int(random.integers(2, 17))
        jobs = random_jobs(random, 40)
        sizes = [0] * len(jobs)
        for now in (60.0, 120.0, 180.0):
            sizes = allot(jobs, nodes * GPUS_PER_NODE, now)
            placed = place(jobs, sizes, nodes)
            used = np.zeros(nodes)
            for job, size, mine in zip(jobs, sizes, placed, strict=True):
                gpus = job.goodput.gpus[size]
                assert len(mine) == len(set(mine)) == -(-gpus // GPUS_PER_NODE)
                used[mine] += min(gpus, GPUS_PER_NODE)
                job.move(size, mine)
            assert used.max() <= GPUS_PER_NODE
        assert place(jobs, sizes, nodes) == placed  # nothing has changed


def test_a_job_takes_the_time_of_its_epochs():
    application = made(1000.0)
    job = AdaptiveJob(application, 0.0)
    job.move(1, [0])
    assert job.restarts == 0
    job.run(0.0, 10.0)
    assert job.progress == pytest.approx(10 * application.rate(1, job.batch, 0))
    job.move(2, [0])
    assert job.restarts == 1
    job.run(10.0, 30.0)  # the restart
    assert job.progress == pytest.approx(10 * application.rate(1, application.best(0, 0, 0)[1][1], 0))
    before, rate = job.progress, application.rate(2, job.batch, 0)
    job.run(40.0, 1e6)
    assert job.ended == pytest.approx(40 + (300 - before) / rate)


def test_jobs_of_a_trace_end_once_and_do_not_depend_on_the_requested_gpus():
    (trace,) = read_packaged("adaptdl:80/1", Limits(64))
    jct = simulate_adaptive(trace, 16)
    assert (jct > 0).all() and len(jct) == 80
    assert simulate_adaptive(replace(trace, gpus=trace.gpus * 0 + 1, duration=trace.duration * 2), 16) == pytest.approx(
        jct
    )
    assert simulate_adaptive(trace, 4).mean() > jct.mean()


def test_a_trace_of_other_applications_is_refused():
    with pytest.raises(ValueError, match="application must be one of"):
        simulate_adaptive(random_trace(5, 0), 2)
