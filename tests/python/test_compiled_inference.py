"""A compiled model answers as the model does, in any thread, and runs in eager where it cannot."""

from __future__ import annotations

import functools
import logging
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import conftest
import pytest
import torch
from conftest import SOON_S, wait_until
from torch import Tensor, nn

import torchshare
from torchshare import CompiledModel, Job, Request

COMPILING_S = 300.0  # for a few packages, on a busy machine
SLOW = pytest.mark.slow  # compiles
pytestmark = pytest.mark.timeout(2 * COMPILING_S)
run_one = functools.partial(conftest.run_one, timeout=COMPILING_S)


def classifier(inputs: int = 6) -> nn.Module:
    layers = nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)
    return nn.Sequential(*layers).eval()


class Scorer(nn.Module):
    """Takes a mask by name, and returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor, *, scale: float, mask: Tensor, bias: Tensor) -> dict[str, Any]:
        hidden = self.linear(x) * mask * scale + bias
        return {"scores": hidden, "pooled": [hidden.sum(0), x.shape[1]]}


class Shifted(nn.Module):
    """Reads a tensor that is neither a parameter nor a buffer; returns an input and a parameter, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.shift = torch.randn(6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.linear(x) + self.shift, x, self.linear.weight


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.size(0) > 3 else x - 1


class OnValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)


class HostDrawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


class Counted(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x * 2, x.size(0)


def eager(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def assert_answers(infer: Callable[..., Any], model: nn.Module, *rows: int, inputs: int = 6) -> None:
    for count in rows:
        x = torch.randn(count, inputs)
        answer = infer(x)
        torch.testing.assert_close(answer, eager(model, x))
        assert not answer.requires_grad


def compiled(job: Job, model: nn.Module, *args: Any, **kwargs: Any) -> CompiledModel:
    infer = job.compiled(model, *args, **kwargs)
    assert infer.fallback is None, infer.fallback
    return infer


@SLOW
def test_any_number_of_rows_is_answered_as_in_eager_without_warning(caplog: pytest.LogCaptureFixture) -> None:
    def body(job: Job) -> None:
        model = classifier()
        assert_answers(compiled(job, model, torch.randn(4, 6)), model, 4, 1, 2, 3, 8, 100)

    with caplog.at_level(logging.WARNING):
        run_one(body)
    assert not caplog.records


@SLOW
def test_requests_in_batches_of_changing_size_get_the_models_answers() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    data = [torch.randn(1 + number % 3, 6) for number in range(30)]
    requests = [Request(each) for each in data]
    for request in (*requests, None):
        source.put(request)
    model, sizes = classifier(), []

    def body(job: Job) -> None:
        infer = compiled(job, model, torch.randn(8, 6))
        for batch in job.requests(source, max_batch=8):
            sizes.append(batch.rows)
            batch.answer(infer(batch.data))

    run_one(body)
    for each, request in zip(data, requests, strict=True):
        torch.testing.assert_close(request.result(0), eager(model, each))
    assert len(set(sizes)) > 1


@SLOW
def test_8_threads_at_once_get_the_same_answers_and_each_call_is_one_op() -> None:
    model = classifier()
    inputs = [torch.randn(1 + number % 5, 6) for number in range(8)]
    ready, over = threading.Event(), threading.Event()
    served: list[Callable[[Tensor], Tensor]] = []

    def body(job: Job) -> None:
        served.append(job.serve(compiled(job, model, torch.randn(4, 6))))
        ready.set()
        over.wait(COMPILING_S)

    with torchshare.Runtime("cpu", policy="strict") as runtime:
        job = runtime.submit(body, name="server", priority="primary", threads=1)
        runtime.submit(lambda _: [torch.ones(8, 8) @ torch.ones(8, 8) for _ in range(1000)], name="other")
        runtime.start()
        assert ready.wait(COMPILING_S)
        before = job.result.ops
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda number: served[0](inputs[number % 8]), range(400)))
        ops = job.result.ops - before
        over.set()
        runtime.wait()
    for number, answer in enumerate(answers):
        assert torch.equal(answer, answers[number % 8])
        torch.testing.assert_close(answer, eager(model, inputs[number % 8]))
    assert ops == 400
    assert job.result.requests is not None and job.result.requests.answered == 400


@SLOW
def test_tensors_that_are_no_parameters_are_read_at_each_call_too() -> None:
    def body(job: Job) -> None:
        model = Shifted().eval()
        infer = compiled(job, model, torch.randn(4, 6))
        for rows in (4, 2):
            model.shift.add_(1)
            x = torch.randn(rows, 6)
            torch.testing.assert_close(infer(x), eager(model, x))

    run_one(body)


@SLOW
def test_a_call_over_the_memory_budget_fails_and_the_next_one_is_answered() -> None:
    def body(job: Job) -> None:
        model = nn.Sequential(nn.Linear(6, 1 << 16), nn.Linear(1 << 16, 2)).eval()
        infer = compiled(job, model, torch.randn(2, 6))
        with pytest.raises(torchshare.BudgetExceeded, match="job 'alone': memory budget exceeded in a compiled model"):
            infer(torch.randn(100, 6))
        assert_answers(infer, model, 2)

    run_one(body, memory_budget=20 << 20)


@SLOW
def test_two_compiled_models_of_one_job_are_chained() -> None:
    def body(job: Job) -> None:
        first, second = classifier(), classifier(4)
        encode, decode = compiled(job, first, torch.randn(4, 6)), compiled(job, second, torch.randn(4, 4))
        chained = nn.Sequential(first, second)
        assert_answers(lambda x: decode(encode(x)), chained, 4, 7)

    run_one(body)


@SLOW
def test_the_next_answer_uses_weights_that_were_loaded_or_trained_in_place() -> None:
    def body(job: Job) -> None:
        model = classifier()
        infer = compiled(job, model, torch.randn(4, 6))
        model.load_state_dict(classifier().state_dict())
        assert_answers(infer, model, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        model.train()
        model(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()
        model.eval()
        assert_answers(infer, model, 4)

    run_one(body)


@SLOW
def test_a_backward_pass_goes_on_after_a_compiled_call_in_between() -> None:
    def body(job: Job) -> None:
        model = classifier()
        infer = compiled(job, model, torch.randn(4, 6))
        loss = model(torch.randn(4, 6)).sum()
        infer(torch.randn(4, 6))
        loss.backward()

    run_one(body)


@SLOW
def test_arguments_by_name_and_a_dictionary_of_answers() -> None:
    def body(job: Job) -> None:
        model = Scorer().eval()

        def inputs(rows: int) -> dict[str, Any]:
            return {"mask": torch.randn(rows, 5), "bias": torch.randn(5), "scale": 2.0}

        infer = compiled(job, model, torch.randn(4, 6), **inputs(4))
        for rows in (4, 2):
            x, named = torch.randn(rows, 6), inputs(rows)
            answer = infer(x, **named)
            torch.testing.assert_close(answer, eager(model, x, **named))
            assert list(answer) == ["scores", "pooled"] and answer["pooled"][1] == 6

    run_one(body)


class Concatenated(nn.Module):
    """Its answer depends on the order of its arguments."""

    def forward(self, **features: Tensor) -> Tensor:
        return torch.cat(list(features.values()), 1)


class Masked(nn.Module):
    """Has Boolean arguments, buffers and answers, and numbers that are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("allowed", torch.tensor([True, False, True, True, True, True]))
        self._offset = torch.zeros(6)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        kept = mask & self.allowed
        return (x + self._offset).masked_fill(~kept, float("-inf")), kept


class Caching(nn.Module):
    """Computes what it needs for a size once, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        size = int(x.size(1))
        if size not in self.tables:
            self.tables[size] = torch.arange(size, dtype=torch.float32)
        return x * self.tables[size]


@SLOW
def test_models_of_users(caplog: pytest.LogCaptureFixture) -> None:
    """Each of these gave a wrong answer or failed the job once."""

    def body(job: Job) -> None:
        named = {"user": torch.randn(4, 2), "item": torch.randn(4, 3)}
        concatenated, masked, caching = (model.eval() for model in (Concatenated(), Masked(), Caching()))
        concatenate = compiled(job, concatenated, **named)
        torch.testing.assert_close(concatenate(**named), eager(concatenated, **named))
        mask_rows = compiled(job, masked, torch.randn(4, 6), torch.ones(4, 6, dtype=torch.bool))
        x, mask = torch.randn(2, 6), torch.rand(2, 6) > 0.5
        torch.testing.assert_close(mask_rows(x, mask), eager(masked, x, mask))
        infer = job.compiled(caching, torch.randn(4, 6))
        assert type(eager(caching, torch.randn(4, 6))) is Tensor
        assert_answers(infer, caching, 4, 2)
        assert not caplog.records
        masked._offset = torch.ones(6)
        torch.testing.assert_close(mask_rows(x, mask), eager(masked, x, mask))
        in_another_order = {"item": named["item"], "user": named["user"]}
        torch.testing.assert_close(concatenate(**in_another_order), eager(concatenated, **in_another_order))
        z = torch.randn(4, 6, dtype=torch.complex64)
        infer = compiled(job, nn.Identity().eval(), z.imag)
        torch.testing.assert_close(infer(z.conj().imag), z.conj().imag)

    run_one(body)


@SLOW
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.train(), "'training' of the model is True, but was False when compiled"),
        (lambda model: model.register_forward_hook(lambda *_: None), "has a hook"),
        (lambda model: model.double(), "is another one than"),
        (lambda model: model.load_state_dict(classifier().state_dict(), assign=True), "is another one than"),
    ],
)
def test_a_model_that_has_changed_runs_in_eager_after_one_warning(
    change: Callable[[nn.Module], object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(job: Job) -> None:
        model = classifier()
        model[3].p = 0.0  # two calls in training mode are equal
        infer = compiled(job, model, torch.randn(4, 6))
        change(model)
        x = torch.randn(4, 6, dtype=model[0].weight.dtype)
        for _ in range(2):
            torch.testing.assert_close(infer(x), eager(model, x))

    run_one(body)
    (record,) = caplog.records
    assert message in record.getMessage() and "job 'alone': the compiled model runs in eager" in record.getMessage()


@SLOW
def test_other_shapes_and_arguments_run_in_eager_after_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    def body(job: Job) -> None:
        model = classifier()
        infer = compiled(job, model, torch.randn(4, 6))
        for x in (torch.randn(4, 12)[:, ::2], torch.randn(6, 4).t(), torch.randn(0, 6)):
            torch.testing.assert_close(infer(x), eager(model, x))
        x = torch.randn(4, 6)
        torch.testing.assert_close(infer(input=x), eager(model, x))

    run_one(body)
    shapes, arguments = (record.getMessage() for record in caplog.records)
    assert shapes.endswith(
        "an argument is Float[*, 6] strides [12, 2] cpu, but was Float[*, 6] strides [6, 1] cpu when compiled"
    )
    assert arguments.endswith("its arguments differ from those it was compiled for in more than tensors")


@SLOW
def test_tensors_with_different_numbers_of_rows_never_reach_the_compiled_code() -> None:
    def body(job: Job) -> None:
        model = Scorer().eval()
        named = {"bias": torch.randn(5), "scale": 2.0}
        infer = compiled(job, model, torch.randn(4, 6), mask=torch.randn(4, 5), **named)
        x, mask = torch.randn(4, 6), torch.randn(1, 5)
        torch.testing.assert_close(infer(x, mask=mask, **named), eager(model, x, mask=mask, **named))
        with pytest.raises(RuntimeError, match="size of tensor a"):
            infer(x, mask=torch.randn(3, 5), **named)

    run_one(body)


@SLOW
@pytest.mark.parametrize("model", [Branching(), Counted()])
def test_a_model_that_depends_on_the_number_of_rows_is_compiled_for_one(model: nn.Module) -> None:
    def body(job: Job) -> None:
        infer = compiled(job, model.eval(), torch.randn(4, 6))
        for rows in (4, 2, 5):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(infer(x), eager(model, x))

    run_one(body)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (OnValues(), "data-dependent"),
        (Drawing(), "the forward pass draws random numbers"),
        (HostDrawing(), "the model draws from Python's or numpy's random state"),
        (Counting(), "the forward pass changes a buffer"),
    ],
)
def test_a_model_that_cannot_be_compiled_runs_in_eager_and_says_why(
    model: nn.Module, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(job: Job) -> str | None:
        infer = job.compiled(model.eval(), torch.ones(4, 6))
        assert infer(torch.ones(2, 6)).shape == (2, 6)
        if isinstance(model, Counting):
            assert model.calls == 1
        return infer.fallback

    fallback = run_one(body).value
    assert reason in fallback, fallback
    assert [record.getMessage() for record in caplog.records] == [
        f"job 'alone': the compiled model runs in eager: {fallback}"
    ]


@SLOW
def test_inference_mode_and_an_example_made_in_it() -> None:
    def body(job: Job) -> None:
        model = classifier()
        with torch.inference_mode():
            infer = compiled(job, model, torch.randn(4, 6))
            assert_answers(infer, model, 4, 2)
        assert_answers(infer, model, 4)

    run_one(body)


@SLOW
def test_compiled_code_runs_without_the_gil() -> None:
    is_inside, seen = False, threading.Event()

    def look() -> None:
        while not seen.is_set():
            if is_inside:
                seen.set()
            time.sleep(0)

    def body(job: Job) -> None:
        nonlocal is_inside
        infer = compiled(job, classifier(), torch.randn(4, 6))
        x = [torch.randn(4, 6)]
        former = sys.getswitchinterval()
        looking = threading.Thread(target=look)
        looking.start()
        try:
            sys.setswitchinterval(1e3)  # a thread runs until it releases the GIL by itself
            deadline = time.monotonic() + SOON_S
            while not seen.is_set() and time.monotonic() < deadline:
                is_inside = True
                infer._run(x)
                is_inside = False
                time.sleep(0)
        finally:
            sys.setswitchinterval(former)
        has_seen = seen.is_set()
        seen.set()
        looking.join()
        assert has_seen

    run_one(body)


@SLOW
def test_a_cancelled_job_stops_at_its_next_call() -> None:
    def body(job: Job) -> None:
        infer, x = compiled(job, classifier(), torch.randn(4, 6)), torch.randn(4, 6)
        while True:
            infer(x)

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(body, name="server", priority="primary", threads=1)
        runtime.start()
        wait_until(lambda: job.result.ops > 1000, COMPILING_S)
        job.cancel()
        runtime.wait(SOON_S, check=False)
    assert job.state == "cancelled"


@SLOW
def test_calls_in_another_job_and_compiling_outside_of_the_job_are_refused() -> None:
    models: list[CompiledModel] = []

    def body(job: Job) -> None:
        models.append(compiled(job, classifier(), torch.randn(4, 6)))
        errors: list[BaseException] = []

        def compile_in_thread() -> None:
            try:
                job.compiled(classifier(), torch.randn(4, 6))
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=compile_in_thread)
        thread.start()
        thread.join()
        assert "job 'alone': models must be compiled in its own thread" in str(errors[0])

    run_one(body)
    with pytest.raises(RuntimeError, match="job 'alone': its compiled model must not be called in another"):
        run_one(lambda _: models[0](torch.randn(4, 6)))


def test_wrong_arguments_are_refused_with_the_name_of_the_job() -> None:
    def body(job: Job) -> None:
        x = torch.randn(4, 6)
        with pytest.raises(TypeError, match=r"job 'alone': model must be an nn\.Module, got function"):
            job.compiled(lambda x: x, x)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"evaluation mode, got Dropout '3' in training mode: call \.eval\(\)"):
            model = classifier()
            model[3].train()
            job.compiled(model, x)
        with pytest.raises(ValueError, match="job 'alone': the arguments of the model must hold a tensor"):
            job.compiled(classifier(), 3)

    run_one(body)


SCRIPT = """
from torchshare import compiled  # before torch
import torch
import torchshare
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)).eval()
infer = compiled(model, torch.randn(4, 6))
answer = infer(torch.ones(3, 6))
print(isinstance(infer, torchshare.CompiledModel), answer.requires_grad, infer.fallback)
torch.save(answer, OUTPUT)
"""


@SLOW
@pytest.mark.usefixtures("whole_exit")
def test_a_script_gets_the_same_answers_from_plain_python_and_from_torchshare(tmp_path: Path) -> None:
    plain, shared = tmp_path / "plain.pt", tmp_path / "shared.pt"
    done = conftest.python(SCRIPT.replace("OUTPUT", repr(str(plain))))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False False torchshare does not run this program\n"
    (tmp_path / "serve.py").write_text(SCRIPT.replace("OUTPUT", repr(str(shared))))
    done = conftest.completed("-m", "torchshare", "run", "serve.py", folder=tmp_path, timeout=COMPILING_S)
    assert done.returncode == 0, done.stderr
    assert "True False None" in done.stdout, done.stdout + done.stderr
    torch.testing.assert_close(torch.load(plain), torch.load(shared))


def test_plain_python_refuses_a_model_in_training_mode() -> None:
    with pytest.raises(ValueError, match=r"torchshare\.compiled: model must be in evaluation mode"):
        torchshare.compiled(nn.Dropout(), torch.randn(4, 6))


@SLOW
def test_the_error_of_a_compiled_model_is_that_of_the_model(caplog: pytest.LogCaptureFixture) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.embedding(x).mean(1)

    def body(job: Job) -> None:
        infer = job.compiled(Looks().eval(), torch.zeros(4, 3, dtype=torch.long))
        assert infer.fallback is None
        for _ in range(2):
            with pytest.raises(IndexError, match="index out of range in self"):
                infer(torch.full((4, 3), 99))
        infer(torch.ones(4, 3, dtype=torch.long))

    run_one(body, threads=1)
    assert [text for text in caplog.messages if "its code failed" in text] == [
        "job 'alone': the compiled model runs in eager: its code failed in a call, which is made again"
    ]
