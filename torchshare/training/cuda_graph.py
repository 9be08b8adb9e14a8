"""Forward and backward of a sub-batch as one captured graph of the device."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchshare import _C
from torchshare.context import step_loop
from torchshare.context.tensor_map import TensorMap
from torchshare.device import devices
from torchshare.isolation import compiling, forward_hook
from torchshare.training import pytree
from torchshare.training.undo import Buffers, RandomStates, leaves_of

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext
    from torchshare.training.retry import Attempt
    from torchshare.training.sub_batch import SubBatch

log = logging.getLogger("torchshare")

_WARM_UP = 3  # runs before a capture, so that libraries have chosen their kernels and made their workspaces
_MOST_GRAPHS = 8


class Graphed:
    """What `Job.graph` returns: call it as the loss function that it was made of, or give it to `Batch.backward`."""

    def __init__(self, job: JobContext, loss_fn: Callable[..., Tensor], device: torch.device | None) -> None:
        self._job = job
        self._loss_fn = loss_fn
        self._device = device
        self._graphs: dict[object, _Graph] = {}
        self._gradients: TensorMap[Tensor] = TensorMap()  # of all graphs, by leaf: what one leaves the next one adds to
        self._moves = job.moves
        self.fallback: str | None = None
        """Why sub-batches run in eager; None while they do not."""
        if device is None:
            self.fallback = "jobs on the CPU have no graphs"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._loss_fn(*args, **kwargs)

    def backward(self, sub: SubBatch, attempt: Attempt | None) -> Tensor | None:
        """Forward and backward by the graph; the loss, weighted and detached. None: it must be done in eager."""
        if self.fallback is not None:
            return None
        if self._moves != self._job.moves:
            self._moves = self._job.moves
            self._graphs.clear()  # they have the former addresses
        key = _look(sub.data), sub.weight
        if key not in self._graphs:
            try:
                if len(self._graphs) == _MOST_GRAPHS:
                    raise _Uncapturable(f"more than {_MOST_GRAPHS} shapes or weights of sub-batches")
                self._graphs[key] = _Graph(self._job, self._loss_fn, sub, self._device, self._gradients)
            except _Busy:
                return None
            except torch.OutOfMemoryError:
                self._graphs.clear()  # a repeated batch has the memory of theirs
                raise
            except (RuntimeError, _Uncapturable) as error:
                # The capture could not be ended: eager ops would not run.
                if devices.is_capturing():
                    raise (error.__cause__ or error) from None
                self._give_up(str(error).split("\n", 1)[0])
                return None
        graph = self._graphs[key]
        if attempt is not None:
            attempt.before_accumulation(leaf for leaf, _ in graph.gradients)
        return graph.replay(sub)

    def _give_up(self, reason: str) -> None:
        self.fallback = reason
        self._graphs.clear()
        warnings.warn(
            f"job '{self._job.name}': forward and backward run in eager, not as a graph: {reason}", stacklevel=4
        )


class _Uncapturable(Exception):
    """Something that a graph cannot repeat."""


class _Busy(Exception):
    """Another job compiles. A later sub-batch may be captured."""


class _Graph:
    """One capture: what it reads, where its gradients go, and the loss that it leaves."""

    def __init__(
        self,
        job: JobContext,
        loss_fn: Callable[..., Tensor],
        sub: SubBatch,
        device: torch.device | None,
        gradients: TensorMap[Tensor],
    ) -> None:
        self._job = job
        self._name = f"graph of {getattr(loss_fn, '__qualname__', 'a loss function')}, {sub.size} rows"
        self._inputs = pytree.map_leaves(
            lambda leaf: leaf.detach().to(device, copy=True) if isinstance(leaf, Tensor) else leaf, sub.data
        )
        self._loss = torch.zeros(())

        def run() -> Tensor:
            loss = loss_fn(*self._inputs) if isinstance(self._inputs, (tuple, list)) else loss_fn(self._inputs)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise TypeError(f"job '{job.name}': the loss is not a tensor with one element")
            return loss if sub.weight == 1.0 else loss * sub.weight

        leaves = _warm_up(job, run)
        former = [leaf.grad for leaf in leaves]
        # They are there before, so that the graph adds to them.
        self.gradients = [(leaf, gradients.setdefault(leaf, torch.zeros_like)) for leaf in leaves]
        for leaf, gradient in self.gradients:
            leaf.grad = gradient

        def work() -> None:
            loss = run()
            torch.autograd.backward(loss)
            self._loss = loss.detach()

        job.handle.synchronize()
        try:
            self._graph: _C.DeviceGraph = job.handle.capture(work)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the warm-up has run `loss_fn` without one
            raise _Uncapturable(str(error) or type(error).__name__) from error
        finally:
            for leaf, before in zip(leaves, former, strict=True):
                leaf.grad = before

    def replay(self, sub: SubBatch) -> Tensor:
        for static, given in zip(pytree.all_tensors(self._inputs), pytree.all_tensors(sub.data), strict=True):
            static.copy_(given, non_blocking=True)
        if stale := [gradient for leaf, gradient in self.gradients if leaf.grad is None]:
            torch._foreach_zero_(stale)
        for leaf, gradient in self.gradients:
            if leaf.grad is not None and leaf.grad is not gradient:
                gradient.copy_(leaf.grad)
            leaf.grad = gradient
        self._job.handle.launch(self._graph, self._name)
        step_loop.backward_ran(self._job)
        return self._loss.clone()


def _warm_up(job: JobContext, run: Callable[[], Tensor]) -> list[Tensor]:
    """Runs forward and backward a few times and leaves no trace of it: buffers, gradients and random states are as
    before. Returns the leaves that got gradients."""
    buffers = Buffers()

    def remember(module: torch.nn.Module, _inputs: object) -> bool:
        buffers.add(module)
        return False

    states = RandomStates(job)
    leaves: list[Tensor] = []
    gradients: list[Tensor | None] = []
    try:
        for round_number in range(_WARM_UP):
            if round_number == 0:
                # compiled modules call no hooks
                with forward_hook.registered(job, remember) as remembers, compiling.in_eager():
                    if not remembers:
                        raise _Busy
                    loss = run()
                leaves = list(leaves_of(loss))
                gradients = [leaf.grad for leaf in leaves]
                for leaf in leaves:
                    leaf.grad = None
            else:
                loss = run()
            torch.autograd.backward(loss)
        if states.host_was_used():
            raise _Uncapturable("the loss function draws random numbers on the host")
        return [leaf for leaf in leaves if leaf.grad is not None]
    finally:
        for leaf, former in zip(leaves, gradients, strict=True):
            leaf.grad = former
        buffers.restore()
        states.restore()


def _look(data: Any) -> tuple[object, ...]:
    """What a graph has of a sub-batch for good: shapes and types of its tensors, and everything else."""
    found: list[object] = []
    pytree.map_leaves(
        lambda leaf: found.append((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf)), data
    )
    return tuple(found)
