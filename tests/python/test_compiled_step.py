"""Compiled steps train like eager ones, and fall back to eager if they cannot be compiled."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_jobs import (
    COMPILING_S,
    ROWS,
    Training,
    assert_close,
    assert_identical,
    compiled,
    eagerly,
    run_one,
)
from conftest import Gatekeeper, wait_until
from torch import Tensor, nn
from torch.fx._symbolic_trace import is_fx_tracing
from torch.nn import functional as F

import torchshare
from torchshare import Job
from torchshare.context.loop import Pass
from torchshare.context.sub_batch_rows import SubBatchRows
from torchshare.training import batches
from torchshare.training.compiled_step import CompiledStep
from torchshare.training.optimizer_rules import rule_of
from torchshare.training.step_tracer import StepTracer

pytestmark = pytest.mark.timeout(2 * COMPILING_S)
SLOW = pytest.mark.slow  # compiles


@pytest.mark.parametrize(
    "kind", ["mlp", *(pytest.param(kind, marks=SLOW) for kind in ("cnn", "lstm", "transformer", "dropping"))]
)
def test_fifty_steps_are_those_of_eager(kind: str) -> None:
    """Including dropout: the masks are those of eager, from the job's own random state. The gradient of a bias of
    attention's keys is 0 but for rounding (1e-17), which AdamW divides by its size plus 1e-8."""
    tolerance = 1e-9 if kind == "transformer" else 1e-10
    assert_close(run_one(compiled(kind)).value, run_one(eagerly(kind)).value, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "lstms"])
def test_layers_with_ops_of_their_own_for_single_precision(kind: str) -> None:
    """torch's attention, and two LSTM layers with dropout between them."""
    done = run_one(compiled(kind, steps=10, dtype=torch.float32)).value
    eager = run_one(eagerly(kind, steps=10, dtype=torch.float32)).value
    for x, y in zip(done, eager, strict=True):
        assert torch.allclose(x, y, atol=1e-4)


@pytest.mark.slow
def test_a_batch_with_its_keys_in_another_order_trains_on_the_same_tensors() -> None:
    x, y = torch.ones(ROWS, 4), torch.zeros(ROWS, 4)

    def train(job: Job, compile: bool) -> list[Tensor]:
        model = nn.Linear(4, 4)
        nn.init.eye_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss_fn(data: dict[str, Tensor]) -> Tensor:
            return (model(data["x"]) - data["y"]).square().mean()

        loader = [{"x": x, "y": y}, {"y": y, "x": x}]
        step = job.compiled_step(model, loss_fn, optimizer, loader[0]) if compile else None
        for batch in job.batches(loader):
            if step is not None:
                step(batch)
            else:
                batch.backward(loss_fn)
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    done, eager = (run_one(functools.partial(train, compile=each)).value for each in (True, False))
    for a, b in zip(done, eager, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_fit_is_the_loop() -> None:
    assert_identical(run_one(compiled("dropping", fit=True)).value, run_one(compiled("dropping")).value)


def test_shared_is_alone_bit_for_bit(policy: str) -> None:
    alone = run_one(compiled("dropping", steps=300, dtype=torch.float32)).value
    with torchshare.Runtime(policy=policy, max_wait=0.005) as runtime:
        for name, priority, fit in (("first", "primary", False), ("second", "secondary", True)):
            function = compiled("dropping", steps=300, dtype=torch.float32, fit=fit)
            runtime.submit(function, name=name, priority=priority, threads=1)
        results = runtime.wait(timeout=COMPILING_S)
    assert_identical(results["first"].value, alone)
    assert_identical(results["second"].value, alone)


def test_schedulers_state_dicts_and_eager_steps_between() -> None:
    """A learning rate that changes every step, evaluation, a restored checkpoint, and an eager step in between."""

    def train(job: Job, compile: bool) -> list[Tensor]:
        training = Training("mlp")
        model, optimizer = training.model, training.optimizer
        step = training.step(job)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        saved: Any = None
        for number, batch in enumerate(itertools.islice(job.batches(training.endless()), 30)):
            if compile and number not in (7, 8):
                step(batch)
            else:
                training.eager_step(batch)
            scheduler.step()
            if number == 10:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            if number == 15:
                model.eval()
                with torch.no_grad():
                    assert training.loss(*training.batches[0]).isfinite()
                model.train()
            if number == 20:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])  # replaces every tensor of the state
        assert not compile or step.fallback is None
        return training.tensors()

    assert_close(run_one(lambda job: train(job, True)).value, run_one(lambda job: train(job, False)).value)


# Fallbacks


def reasons(job: Job, training: Training, loss: Callable[..., Tensor] | None = None) -> str:
    """Returns why the step falls back; it must still train like eager."""
    before = training.tensors()
    step = job.compiled_step(training.model, loss or training.loss, training.optimizer, training.batches[0])
    assert_identical(training.tensors(), before)  # making the step trains nothing
    losses = job.fit(step, training.batches)
    assert losses.shape == (len(training.batches),) and losses.isfinite().all()
    assert not torch.equal(training.tensors()[0], before[0])
    assert step.fallback is not None
    return step.fallback


def data_dependent(job: Job) -> str:
    training = Training("mlp")

    def loss(x: Tensor, y: Tensor) -> Tensor:
        value = training.loss(x, y)
        return value * 2 if value > 1 else value

    return reasons(job, training, loss)


def a_hook(job: Job) -> str:
    training = Training("mlp")
    training.model[0].register_forward_hook(lambda *_: None)
    return reasons(job, training)


def an_optimizer(job: Job) -> str:
    training = Training("mlp")
    training.optimizer = torch.optim.RMSprop(training.model.parameters())
    return reasons(job, training)


def python_random(job: Job) -> str:
    training = Training("mlp")
    return reasons(job, training, lambda x, y: training.loss(x, y) * (1 if random.random() < 2 else 0))


def a_counter(job: Job) -> str:
    training = Training("mlp")
    training.model.calls = 0

    def loss(x: Tensor, y: Tensor) -> Tensor:
        training.model.calls += 1
        return training.loss(x, y)

    reason = reasons(job, training, loss)
    assert training.model.calls == len(training.batches)
    return reason


def a_parameter_from_elsewhere(job: Job) -> str:
    training = Training("mlp")
    weight = training.model[0].weight
    return reasons(job, training, lambda x, y: training.loss(x, y) + weight.square().sum())


def a_branch_in_training(job: Job) -> str:
    """Found only by running the loss function beside its trace: its result depends on whether it is traced."""
    training = Training("mlp")
    scale = {True: 2.0, False: 1.0}
    return reasons(job, training, lambda x, y: training.loss(x, y) * scale[is_fx_tracing()])


def an_unknown_parameter(job: Job) -> str:
    training = Training("mlp")
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    return reasons(job, training)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (data_dependent, "data-dependent expression"),
        (a_hook, "module '0' (Linear) has a hook"),
        (an_optimizer, "the optimizer is RMSprop; supported are SGD, Adam, AdamW"),
        (python_random, "draws from Python's or numpy's random state"),
        (a_counter, "the forward pass changes 'calls' of the model"),
        (a_parameter_from_elsewhere, "uses a tensor of the model other than through the model"),
        (a_branch_in_training, "the traced loss differs from eager by"),
        (an_unknown_parameter, "the optimizer has a parameter that the model lacks"),
    ],
)
def test_what_cannot_be_compiled_runs_in_eager(
    job: Callable[[Job], str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert reason in run_one(job).value
    lines = [record.message for record in caplog.records if "runs in eager" in record.message]
    assert len(lines) == 1 and reason in lines[0] and "job 'alone'" in lines[0]


def test_a_tensor_of_the_loss_function_is_an_input() -> None:
    """Class weights that change between steps: the step uses the current ones."""

    def train(job: Job, compile: bool) -> list[Tensor]:
        training = Training("mlp")
        weights = torch.ones(4, dtype=torch.float64)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(training.model(x), y, weight=weights)

        step = job.compiled_step(training.model, loss, training.optimizer, training.batches[0])
        assert step.fallback is None
        for number, batch in enumerate(itertools.islice(job.batches(training.endless()), 10)):
            weights.fill_(1.0)
            weights[number % 4] = 5.0
            if compile:
                step(batch)
            else:
                batch.backward(loss)
                training.optimizer.step()
                training.optimizer.zero_grad()
        return training.tensors()

    assert_close(run_one(lambda job: train(job, True)).value, run_one(lambda job: train(job, False)).value)


def test_what_changes_after_compiling_runs_in_eager(caplog: pytest.LogCaptureFixture) -> None:
    """Frozen layers, other hyperparameters, evaluation mode; compiled steps resume afterwards."""

    def train(job: Job, compile: bool) -> list[Tensor]:
        training = Training("mlp")
        model, optimizer = training.model, training.optimizer
        step = training.step(job)
        for number, batch in enumerate(itertools.islice(job.batches(training.endless()), 40)):
            model[0].weight.requires_grad_(not 10 <= number < 15)
            optimizer.param_groups[0]["momentum"] = 0.5 if 20 <= number < 25 else 0.9
            model.train(not 30 <= number < 35)
            if compile:
                step(batch)
            else:
                training.eager_step(batch)
        return training.tensors()

    assert_close(run_one(lambda job: train(job, True)).value, run_one(lambda job: train(job, False)).value)
    lines = [record.message for record in caplog.records if "runs in eager" in record.message]
    assert len(lines) == 3
    assert "'momentum' in group 0 is 0.5, but was 0.9 when compiled" in lines[1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": 3}, "job 'alone': model must be an nn.Module, got int"),
        ({"loss_fn": None}, "job 'alone': loss_fn must be callable, got None"),
        ({"optimizer": None}, "job 'alone': optimizer must be a torch.optim.Optimizer, got NoneType"),
        ({"example_batch": []}, "job 'alone': example_batch must hold a tensor, got list"),
        ({"sub_batch": 0}, "job 'alone': sub_batch must be a positive integer, got 0"),
    ],
)
def test_bad_arguments(change: dict[str, Any], text: str) -> None:
    def train(job: Job) -> None:
        training = Training("mlp")
        arguments = {
            "model": training.model,
            "loss_fn": training.loss,
            "optimizer": training.optimizer,
            "example_batch": training.batches[0],
        }
        job.compiled_step(**{**arguments, **change})

    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        run_one(train)


def test_a_step_is_its_jobs_own() -> None:
    steps: list[CompiledStep] = []

    def train(job: Job) -> None:
        training = Training("mlp")
        training.optimizer = torch.optim.RMSprop(
            training.model.parameters()
        )  # falls back to eager, which is enough here
        steps.append(training.step(job))
        job.fit(steps[0], training.batches)

    run_one(train)
    with pytest.raises(ValueError, match="the compiled step must be one of this job, got one of job 'alone'"):
        run_one(train)
    with pytest.raises(ValueError, match="the compiled step must be one of this job, got one of job 'alone'"):
        run_one(lambda job: [steps[0](batch) for batch in job.batches(Training("mlp").batches)])
    with pytest.raises(TypeError, match="job 'alone': step must be a CompiledStep, got function"):
        run_one(lambda job: job.fit(train, []))  # type: ignore[arg-type]


def test_no_steps_are_no_losses() -> None:
    def train(job: Job) -> Tensor:
        training = Training("mlp")
        training.optimizer = torch.optim.RMSprop(
            training.model.parameters()
        )  # falls back to eager, which is enough here
        return job.fit(training.step(job), training.batches, steps=0)

    assert run_one(train).value.shape == (0,)


def test_a_loader_that_is_used_up() -> None:
    def train(job: Job) -> None:
        training = Training("mlp")
        job.fit(training.step(job), iter(training.batches), steps=12)

    with pytest.raises(ValueError, match="the loader must yield at least 1 batch, got none"):
        run_one(train)


# Cancel and suspend


def test_cancel_and_suspend_reach_a_job_in_fit() -> None:
    gate = Gatekeeper()

    def train(job: Job) -> None:
        training = Training("mlp")
        step = training.step(job)
        gate.pause()
        job.fit(step, training.batches, steps=100_000_000, prefetch=5)

    with torchshare.Runtime() as runtime:
        job = runtime.submit(train, threads=1)
        runtime.start()
        assert gate.reached.wait(300)
        gate.release.set()
        wait_until(lambda: job.result.steps > 100)
        job.suspend()
        wait_until(lambda: job.state == "suspended")
        steps = job.result.steps
        job.resume()
        wait_until(lambda: job.result.steps > steps + 100)
        job.cancel()
        results = runtime.wait(timeout=300)
    assert results["train"].state == "cancelled"


def test_a_cancelled_sub_batch_leaves_nothing_behind() -> None:
    """Cancelled between the sub-batches of a step; a job that continues trains as if that step had not begun."""

    def train(job: Job, cancel: bool) -> list[Tensor]:
        training = Training("mlp")
        step = training.step(job, sub_batch=4)
        options = batches.Options(4, "mean", None)
        fetched = list(itertools.islice(batches.fetch(job._context, training.endless(), options, Pass()), 7))
        for batch in fetched[:3]:
            step(batch)
        if cancel:
            pieces = step._pieces(fetched[3])
            assert pieces is not None and step._bound is not None
            broken = [pieces[0], ([torch.ones(1)], 0.5)]
            with pytest.raises(ValueError, match="has no package for these shapes"):
                step._bound.run(job._context.handle, broken)
            done = job.result.ops

            def cancel_in_the_middle() -> None:
                wait_until(lambda: job.result.ops > done + 10)
                job._context.handle.cancel()

            canceller = threading.Thread(target=cancel_in_the_middle)
            canceller.start()
            with pytest.raises(torchshare.Cancelled):
                step._bound.run(job._context.handle, pieces[:1] * 1_000_000)
            canceller.join()
        for batch in fetched[4:]:
            step(batch)
        return training.tensors()

    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: train(job, True), name="cancelled", threads=1)
        runtime.submit(lambda job: train(job, False), name="not", threads=1)
        results = runtime.wait(timeout=COMPILING_S)
    assert_identical(results["cancelled"].value, results["not"].value)


# On a GPU


@pytest.mark.gpu
def test_a_cuda_step_runs_on_the_jobs_stream_and_in_a_cuda_graph() -> None:
    """Runs on the current stream, like eager; then is captured in thread-local mode, and replayed."""

    def train(job: Job, compile: bool) -> list[Tensor]:
        training = Training("mlp", dtype=torch.float32, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            step = training.step(job)
            for batch in itertools.islice(job.batches(training.endless()), 20):
                if compile:
                    step(batch)
                else:
                    training.eager_step(batch)
            if compile:
                assert step.fallback is None and step._bound is not None
                pieces = [(list(training.batches[0]), 1.0)]
                graph = torch._C._CUDAGraph()  # torch.cuda.CUDAGraph refuses in a job
                torch.cuda.current_stream().synchronize()
                graph.capture_begin(None, "thread_local")
                step._bound.run(None, pieces)
                graph.capture_end()
                graph.replay()
            else:
                training.loss(*training.batches[0]).backward()
                training.optimizer.step()
            torch.cuda.current_stream().synchronize()
        return training.tensors()

    done = run_one(lambda job: train(job, True)).value
    for x, y in zip(done, run_one(lambda job: train(job, False)).value, strict=True):
        assert torch.allclose(x, y, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "lstm", "transformer", "dropping"])
def test_fifty_steps_on_a_gpu_are_those_of_eager(kind: str) -> None:
    compile, eager = (run_one(make(kind, device="cuda"), device="cuda").value for make in (compiled, eagerly))
    assert_close(compile, eager)


@pytest.mark.slow
@pytest.mark.parametrize("sub_batch", [None, 4])
def test_steps_that_are_counted_outside_of_the_graph(sub_batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but compiled for the CPU."""

    def train(job: Job, compile: bool) -> list[Tensor]:
        training = Training("mlp")
        training.optimizer = torch.optim.AdamW(training.model.parameters())
        training.eager_step(next(iter(job.batches(training.batches[:1]))))
        step = training.step(job, sub_batch=sub_batch)
        for batch in itertools.islice(job.batches(training.endless(), sub_batch), 10):
            if compile:
                step(batch)
            else:
                training.eager_step(batch)
        assert step.fallback is None
        assert {state["step"].item() for state in training.optimizer.state.values()} == {11.0}
        return training.tensors()

    eager = run_one(lambda job: train(job, False)).value
    monkeypatch.setattr(StepTracer, "_counts_apart", lambda *_: True)
    assert_close(run_one(lambda job: train(job, True)).value, eager)


def test_a_recurrent_layer_that_never_flattens_its_weights_is_traced() -> None:
    def job(_job: Job) -> None:
        training = Training("lstm")
        training.model.lstm.flatten_parameters = nothing = lambda: None
        rule = rule_of(training.optimizer)
        assert not isinstance(rule, str)
        StepTracer(training.model, training.loss, training.optimizer, rule).step(training.batches[0])
        assert training.model.lstm.flatten_parameters is nothing

    run_one(job)


@pytest.mark.gpu
def test_a_recurrent_layer_is_traced_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN looks at the addresses of its weights."""

    def job(_job: Job) -> None:
        training = Training("lstm", device="cuda")
        monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda _: True)
        rule = rule_of(training.optimizer)
        assert not isinstance(rule, str)
        tracer = StepTracer(training.model, training.loss, training.optimizer, rule)
        traced = tracer.step(training.batches[0])
        assert len(traced.graph.graph.nodes) > 100
        assert "flatten_parameters" not in vars(training.model.lstm)

    run_one(job, device="cuda")


@pytest.mark.gpu
def test_the_graph_of_a_gpu_reads_the_number_of_steps_only() -> None:
    """torch keeps it on the CPU. Of such a number that the graph changes, Inductor passes the address to a kernel."""

    def counts(_job: Job, capturable: bool) -> tuple[list[int], list[float]]:
        training = Training("mlp", device="cuda")
        training.optimizer = torch.optim.AdamW(training.model.parameters(), capturable=capturable)
        rule = rule_of(training.optimizer)
        assert not isinstance(rule, str)
        tracer = StepTracer(training.model, training.loss, training.optimizer, rule)
        traced = tracer.step(training.batches[0])
        inputs = [tensor.clone() for tensor in traced.inputs]
        with torch.no_grad():
            traced.graph(*inputs)
        state = inputs[len(tracer.tensors) :][: len(tracer.state_names())]
        steps = [t for t, (_, name) in zip(state, tracer.state_names(), strict=True) if name == "step"]
        assert {t.device.type for t in steps} == {"cuda" if capturable else "cpu"}
        return tracer.counts(), [t.item() for t in steps]

    assert run_one(lambda job: counts(job, False), device="cuda").value == ([0, 3, 6, 9], [3.0] * 4)
    assert run_one(lambda job: counts(job, True), device="cuda").value == ([], [4.0] * 4)


@pytest.mark.gpu
def test_a_trace_draws_the_masks_of_cudas_dropout() -> None:
    """And its check leaves the job's random state as it was."""

    def job(job: Job) -> None:
        training = Training("dropping", device="cuda")
        rule = rule_of(training.optimizer)
        assert not isinstance(rule, str)
        tracer = StepTracer(training.model, training.loss, training.optimizer, rule)
        traced = tracer.step(training.batches[0])
        handle = job._context.handle
        assert handle.device_generator is not None
        generators = [handle.generator, handle.device_generator]
        before = [generator.get_state() for generator in generators]
        tracer.check(traced, training.batches[0], generators)
        assert_identical([generator.get_state() for generator in generators], before)

    run_one(job, device="cuda")


# The update rules, without compiling


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, **o: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, **o),
        lambda p, **o: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01, **o),
        lambda p, **o: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **o),
        lambda p, **o: torch.optim.Adam(p, lr=0.1, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.01, **o),
        lambda p, **o: torch.optim.Adam(p, lr=0.1, amsgrad=True, **o),
        lambda p, **o: torch.optim.AdamW(p, lr=0.1, **o),
        lambda p, **o: torch.optim.AdamW(p, lr=0.0, weight_decay=0.5, **o),
    ],
)
def test_rules_are_those_of_torch(make: Callable[..., torch.optim.Optimizer], maximize: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = make([theirs], maximize=maximize)
    theirs.grad = torch.randn(5, dtype=torch.float64)
    optimizer.step()  # creates the state
    ours = theirs.detach().clone()
    state = copy.deepcopy(optimizer.state[theirs])
    rule = rule_of(optimizer)
    assert not isinstance(rule, str)
    group = optimizer.param_groups[0]
    for _ in range(20):
        theirs.grad = torch.randn(5, dtype=torch.float64)
        theirs.grad[0] = 0
        rule.update(group, ours, theirs.grad.clone(), state, torch.tensor(group["lr"], dtype=torch.float64))
        optimizer.step()
        assert_close([ours], [theirs.detach()])
    assert set(rule.state(group)) == {name for name, value in optimizer.state[theirs].items() if value is not None}


@pytest.mark.parametrize("failing", [0, 2])
def test_a_batch_that_runs_out_of_memory_is_repeated_in_halves(failing: int, caplog: pytest.LogCaptureFixture) -> None:
    """Refused at each allocation of a package's first run, and before a later run. The first step runs in eager."""

    def train(job: Job, sub_batch: int | None, refuse: int | None) -> list[Tensor]:
        job._context.retry, job._context.rows_at_once = None, SubBatchRows(regrow_after=0)
        torch.manual_seed(0)
        training = Training("mlp")
        warm_up = [training.batches[0], *training.batches[1 : 1 + failing]]
        step = training.step(job)
        for batch in job.batches(warm_up):
            step(batch)
        for number, batch in enumerate(job.batches(training.batches[2:], sub_batch)):
            if number == 0 and refuse is not None:
                job._context.handle.refuse_memory_after(refuse)
            step(batch)
            job._context.handle.refuse_memory_after(-1)
        assert step.fallback is None
        return training.tensors()

    def job(job: Job) -> int:
        whole, halves = train(job, None, None), train(job, ROWS // 2, None)
        for allocation in range(1, 200) if failing == 0 else [1]:  # 0 is of the random state that is kept
            caplog.clear()
            ended = train(job, None, allocation)
            if "ran out of memory" not in caplog.text:
                assert_identical(ended, whole)
                return allocation
            assert f"with {ROWS} rows at a time; it is repeated with {ROWS // 2}" in caplog.text
            assert_identical(ended, halves)
        return allocation

    assert run_one(job, memory_budget=2**30, timeout=250).value > (10 if failing == 0 else 0)
