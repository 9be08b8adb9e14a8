"""Jobs whose code launches work on CUDA's legacy default stream past torch, as cupy, numba and kernels of extensions
do. The emulated device reports what is not in order, whether or not the numbers show it."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from gpu_jobs import MIB, SLEEP_CYCLES, alone, conv, enters_beside, identical, on_gpu, run_pair, trainer
from torch import Tensor

import torchshare
from torchshare import Job

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]

runtime_api = ctypes.CDLL(None)
runtime_api.cudaMemsetAsync.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
runtime_api.cudaMemcpyAsync.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]
runtime_api.cudaStreamCreateWithFlags.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]
runtime_api.cudaStreamDestroy.argtypes = [ctypes.c_void_p]

LEGACY = None  # the handle


def legacy_sleeps(cycles: int = SLEEP_CYCLES // 10) -> torch.cuda.Event:
    """A kernel on the legacy stream, 50 ms, and an event behind it."""
    former, done = torch.cuda.current_stream(), torch.cuda.Event()
    torch._C._cuda_setStream(stream_id=0, device_index=0, device_type=1)
    torch.cuda._sleep(cycles)
    done.record()
    torch.cuda.set_stream(former)
    return done


def legacy_fills(pointer: int, value: int, count: int) -> None:
    """What an extension launches: a slow kernel that writes `count` bytes."""
    legacy_sleeps()
    assert runtime_api.cudaMemsetAsync(pointer, value, count, LEGACY) == 0


def legacy_copies(to: int, source: int, count: int) -> None:
    assert runtime_api.cudaMemcpyAsync(to, source, count, 3, LEGACY) == 0


def slow_add(x: Tensor) -> None:
    torch.cuda._sleep(SLEEP_CYCLES // 20)
    x.add_(1)


def array_interface(x: Tensor) -> int:
    """As numba and cupy get a tensor."""
    return x.__cuda_array_interface__["data"][0]


def dlpack(x: Tensor) -> int:
    """As cupy.from_dlpack gets it, which passes 1, or a library that follows the protocol and passes nothing."""
    x.__dlpack__(stream=1)
    return x.data_ptr()


def old_dlpack(x: Tensor) -> int:
    x.__dlpack__(stream=None)
    return x.data_ptr()


@contextmanager
def warned(*jobs: str) -> Iterator[None]:
    """Each of the jobs is named in one warning, and no other is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = [str(each.message) for each in caught if "legacy default stream" in str(each.message)]
    assert sorted(line.split("'")[1] for line in said) == sorted(jobs)


@pytest.mark.parametrize("give_out", [array_interface, dlpack, old_dlpack])
def test_a_tensor_that_is_given_out_is_read_and_written_in_order(give_out: Callable[[Tensor], int]) -> None:
    """The copy read zeros, and torch read the copy before it was made."""

    def job(_job: Job) -> list[int]:
        x, y = (torch.zeros(8, dtype=torch.uint8, device="cuda") for _ in range(2))
        totals = []
        for _ in range(4):
            slow_add(x)
            source, to = give_out(x), give_out(y)
            legacy_sleeps()
            legacy_copies(to, source, 8)
            totals.append(y.sum())
        return [int(total) for total in totals]

    assert on_gpu(job) == [8, 16, 24, 32]


def test_a_pointer_that_is_kept_is_read_and_written_in_order() -> None:
    """A cupy array that is made once. From the first work of it that is found on, nothing of torch's is asked."""

    def job(_job: Job) -> list[int]:
        x, y = (torch.zeros(8, dtype=torch.uint8, device="cuda") for _ in range(2))
        source, to = array_interface(x), array_interface(y)
        torch.cuda.synchronize()
        totals = []
        for _ in range(4):
            legacy_sleeps()
            slow_add(x)
            legacy_copies(to, source, 8)
            totals.append(y.sum())
        return [int(total) for total in totals]

    with warned("alone"):
        assert on_gpu(job) == [8, 16, 24, 32]


def extension(x: Tensor, value: int) -> None:
    """A kernel of an extension that takes tensors, so that torch does not see that it gives them out."""
    legacy_fills(x.data_ptr(), value, x.numel())


def test_an_extension_is_found_within_a_few_ops() -> None:
    def job(_job: Job) -> list[int]:
        x = torch.zeros(8, dtype=torch.uint8, device="cuda")
        scratch = torch.zeros(8, device="cuda")
        torch.cuda.synchronize()
        legacy_sleeps(SLEEP_CYCLES // 2)
        for _ in range(24):
            scratch.add_(1)
        totals = []
        for value in range(1, 4):
            extension(x, value)
            totals.append(x.sum())
        return [int(total) for total in totals]

    with warned("alone"):
        assert on_gpu(job) == [8, 16, 24]


def test_work_that_is_seen_once_is_waited_for_and_not_warned_of() -> None:
    """A copy that a library makes at its start."""

    def job(_job: Job) -> list[bool]:
        x = torch.zeros(8, device="cuda")
        done = legacy_sleeps()
        seen = []
        for _ in range(40):
            x.add_(1)
            torch.cuda.current_stream().synchronize()
            seen.append(done.query())
        return seen

    with warned():
        seen = on_gpu(job)
    assert seen == sorted(seen) and seen[-1]


def test_a_tensor_that_is_given_out_and_not_used_there_is_not_warned_of() -> None:
    """The legacy stream waits for the job's work: that is no work of the job's on it."""

    def job(_job: Job) -> float:
        x = torch.zeros(8, device="cuda")
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        array_interface(x)
        for _ in range(20):
            x.add_(1)
        return float(x.sum())

    with warned():
        assert on_gpu(job) == 160


def test_memory_that_such_work_uses_is_not_taken_too_early() -> None:
    """In plain torch the allocator may hand it out at once: the next op comes after that work."""

    def job(_job: Job) -> int:
        y = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        for _ in range(3):
            x = torch.ones(MIB, dtype=torch.uint8, device="cuda")
            source, to = array_interface(x), array_interface(y)
            legacy_sleeps()
            legacy_copies(to, source, MIB)
            del x
            torch.full((MIB,), 9, dtype=torch.uint8, device="cuda")
        return int(y.sum())

    assert on_gpu(job) == MIB


@pytest.mark.parametrize("synchronize", [torch.cuda.synchronize, torch.accelerator.synchronize, None])
def test_synchronize_and_the_end_of_the_job_wait_for_it(synchronize: Callable[[], None] | None) -> None:
    host = torch.zeros(8, dtype=torch.uint8).pin_memory()

    def job(_job: Job) -> int:
        x = torch.full((8,), 3, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        legacy_sleeps()
        assert runtime_api.cudaMemcpyAsync(host.data_ptr(), x.data_ptr(), 8, 2, LEGACY) == 0
        if synchronize is None:
            return 24
        synchronize()
        return int(host.sum())

    assert on_gpu(job) == 24
    assert int(host.sum()) == 24


def find_legacy_work() -> None:
    """Launches work there that is found, and waits for it."""
    x = torch.zeros(8, dtype=torch.uint8, device="cuda")
    array_interface(x)
    torch.cuda.synchronize()
    legacy_sleeps()
    x.add_(1)  # finds it
    torch.cuda.synchronize()


def test_the_gate_sees_it() -> None:
    """Under "strict", a lower job ran beside it."""

    def launch(_job: Job) -> torch.cuda.Event:
        find_legacy_work()
        return legacy_sleeps(SLEEP_CYCLES // 2)

    assert enters_beside(launch) is False


def test_the_gate_sees_what_is_launched_there_while_the_job_seemed_to_be_done() -> None:
    def launch(_job: Job) -> torch.cuda.Event:
        find_legacy_work()
        time.sleep(0.2)  # the other is let in
        return legacy_sleeps(SLEEP_CYCLES // 2)

    assert enters_beside(launch, busy=True) is False


def test_the_job_beside_it_does_not_wait_and_is_not_named(policy: str) -> None:
    """It is known whose work that is, since that job has given out tensors."""

    def gives_out(_job: Job) -> int:
        x = torch.zeros(8, dtype=torch.uint8, device="cuda")
        pointer = array_interface(x)
        torch.cuda.synchronize()
        for value in range(10):
            legacy_fills(pointer, value, 8)
            x.add_(1)
        return int(x.sum())

    with warned("second"):
        results = run_pair(trainer(conv), gives_out, policy=policy)
    assert results["second"].value == 80
    assert identical(alone(conv, 0), results["first"].value)


def test_two_jobs_that_do_so_have_their_own_numbers(policy: str) -> None:
    def gives_out(_job: Job) -> list[int]:
        x = torch.zeros(8, dtype=torch.uint8, device="cuda")
        totals = []
        for value in range(5):
            legacy_fills(array_interface(x), value, 8)
            x.add_(1)
            totals.append(x.sum())
        return [int(total) for total in totals]

    results = run_pair(gives_out, gives_out, policy=policy)
    for result in results.values():
        assert result.value == [8 * (value + 1) for value in range(5)]


def test_graphs_are_captured_and_launched_beside_it() -> None:
    def trains(job: Job) -> tuple[list[float], str | None]:
        weights, scale = (
            torch.ones(4, device="cuda", requires_grad=True),
            torch.zeros(4, dtype=torch.uint8, device="cuda"),
        )
        pointer = array_interface(scale)
        torch.cuda.synchronize()
        legacy_sleeps()
        losses = []
        loss = job.graph(lambda x: (x * weights).sum())
        for number, batch in enumerate(job.batches([torch.ones(2, 4, device="cuda")] * 6)):
            legacy_fills(pointer, number, 4)
            batch.backward(loss)
            losses.append(scale.sum() + weights.grad.sum())
            weights.grad.zero_()
        return [float(each) for each in losses], loss.fallback

    values, fallback = on_gpu(trains)
    assert fallback is None
    assert values == [4.0 * number + 8 for number in range(6)]


def test_what_the_program_has_launched_before_is_not_taken_for_the_jobs() -> None:
    torch.cuda._sleep(SLEEP_CYCLES // 5)
    x = torch.ones(8, device="cuda")

    def job(_job: Job) -> float:
        y = torch.zeros(8, device="cuda")
        for _ in range(40):
            y.add_(x)
        return float(y.sum())

    with warned():
        assert on_gpu(job) == 320


def test_a_tensor_that_another_library_gets_with_its_own_stream_is_not_waited_for() -> None:
    """jax, and torch itself, name the stream on which they go on."""

    def job(_job: Job) -> float:
        x = torch.ones(8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = torch.from_dlpack(x)
            total = y.sum()
        torch.cuda.current_stream().wait_stream(side)
        x.__dlpack__(stream=side.cuda_stream)
        x.__dlpack__()
        for _ in range(20):
            x.add_(1)
        return float(total) + float(x.sum())

    with warned():
        assert on_gpu(job) == 8 + 8 * 21


def test_what_has_no_array_interface_still_has_none() -> None:
    def job(_job: Job) -> tuple[bool, bool]:
        x = torch.ones(2, device="cuda", requires_grad=True)
        with pytest.raises(RuntimeError, match="requires grad"):
            x.__cuda_array_interface__  # noqa: B018
        with pytest.raises(BufferError, match="require gradient"):
            x.__dlpack__(stream=1)
        return hasattr(torch.ones(2), "__cuda_array_interface__"), torch.ones(2).__dlpack__() is not None

    assert on_gpu(job) == (False, True)


@pytest.fixture
def extensions_stream() -> Iterator[ctypes.c_void_p]:
    handle = ctypes.c_void_p()
    assert runtime_api.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    yield handle


def test_a_stream_that_its_owner_destroys_is_forgotten(extensions_stream: ctypes.c_void_p, policy: str) -> None:
    """Its markers could not be recorded: the job that waited for its turn failed, or `synchronize` did."""
    destroyed, ran = threading.Event(), queue.Queue[Any]()

    def uses(_job: Job) -> float:
        with torch.cuda.stream(torch.cuda.ExternalStream(extensions_stream.value)):
            y = torch.ones(8, device="cuda") * 2
        torch.cuda.synchronize()
        assert runtime_api.cudaStreamDestroy(extensions_stream) == 0
        destroyed.set()
        ran.get(timeout=30)  # the other's ops, for which markers are recorded
        total = float((y * 2).sum())
        torch.cuda.synchronize()
        return total

    def other(_job: Job) -> float:
        destroyed.wait(30)
        x = torch.ones(8, device="cuda")
        ran.put(None)
        for _ in range(50):
            x = x + 1
        return float(x.sum())

    results = run_pair(uses, other, policy=policy)
    assert [result.value for result in results.values()] == [32, 408]


def test_a_new_stream_with_the_handle_of_one_that_is_forgotten(extensions_stream: ctypes.c_void_p) -> None:
    def job(_job: Job) -> float:
        total, handle = 0.0, extensions_stream
        for _ in range(8):
            result = torch.zeros(5).pin_memory()
            with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
                x = torch.ones(5, device="cuda")
                torch.cuda._sleep(SLEEP_CYCLES // 50)
                result.copy_(x, non_blocking=True)
            torch.cuda.synchronize()
            total += float(result.sum())
            del result  # torch records an event on the stream when it frees pinned memory
            assert runtime_api.cudaStreamDestroy(handle) == 0
            torch.cuda.synchronize()
            assert runtime_api.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
        return total

    assert on_gpu(job) == 40


class Doubled(torch.autograd.Function):
    """An extension's op, as apex has them: y = x + x, copied by its own kernels."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return copied_twice(x)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return copied_twice(gradient)


def copied_twice(x: Tensor) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    legacy_copies(y.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return y + x


def with_extension(warm: bool) -> Callable[[Job], list[Tensor]]:
    def train(_job: Job) -> list[Tensor]:
        with torch.device("cuda"):
            model, data = torch.nn.Linear(8, 8), [torch.randn(4, 8) for _ in range(6)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.cuda.synchronize()
        if warm:  # so that it is found before its numbers count
            scratch = torch.zeros(8, device="cuda")
            for _ in range(24):
                legacy_sleeps(SLEEP_CYCLES // 100)
                scratch.add_(1)
        for x in data:
            y = Doubled.apply(model(x)) if warm else model(x) + model(x)
            y.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    return train


def test_a_training_with_an_extensions_op_trains_as_with_torchs(policy: str) -> None:
    expected = [tensor.cpu() for tensor in on_gpu(with_extension(False), seed=1)]
    results = run_pair(trainer(conv), with_extension(True), policy=policy)
    for mine, torchs in zip(results["second"].value, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), torchs)
    assert identical(alone(conv, 0), results["first"].value)


def test_a_thread_that_gives_out_a_tensor_each_time_is_in_order() -> None:
    def job(_job: Job) -> list[int]:
        totals: queue.Queue[Tensor] = queue.Queue()

        def reads() -> None:
            x, y = (torch.zeros(8, dtype=torch.uint8, device="cuda") for _ in range(2))
            for _ in range(3):
                slow_add(x)
                legacy_copies(array_interface(y), array_interface(x), 8)
                totals.put(y.sum())

        thread = threading.Thread(target=reads)
        thread.start()
        thread.join()
        return [int(totals.get()) for _ in range(3)]

    assert on_gpu(job) == [8, 16, 24]


def test_where_warnings_are_errors_that_job_fails_alone() -> None:
    def gives_out(_job: Job) -> None:
        x = torch.zeros(8, dtype=torch.uint8, device="cuda")
        pointer = array_interface(x)
        torch.cuda.synchronize()
        legacy_fills(pointer, 1, 8)
        x.add_(1)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*legacy default stream")
        results = run_pair(trainer(conv), gives_out, check=False)
    assert isinstance(results["second"].exception, UserWarning)
    assert identical(alone(conv, 0), results["first"].value)


def test_what_one_job_did_there_is_over_when_it_has_ended() -> None:
    """The next one is not named, and does not wait."""

    def gives_out(_job: Job) -> None:
        x = torch.zeros(8, dtype=torch.uint8, device="cuda")
        pointer = array_interface(x)
        torch.cuda.synchronize()
        legacy_fills(pointer, 1, 8)
        x.add_(1)

    def follows(_job: Job) -> float:
        y = torch.zeros(8, device="cuda")
        for _ in range(40):
            y.add_(1)
        return float(y.sum())

    with warned("first"), torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(gives_out, name="first", threads=1)
        runtime.submit(follows, name="second", threads=1, start="after:first")
        assert runtime.wait(60)["second"].value == 320
