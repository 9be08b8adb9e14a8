"""Compiled inference: `Job.compiled`. See csrc/compiled."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchshare import _C
from torchshare.context import current
from torchshare.context.errors import BudgetExceeded
from torchshare.training import pytree
from torchshare.training.compiled_code import CompiledCode

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_RUNNERS = 16  # threads that run the model at a time; further ones wait for them


class CompiledModel(CompiledCode):
    """A model whose forward pass is compiled: called with the model's arguments, it returns what the model returns,
    without gradients. Made by `Job.compiled`. Any thread; several at a time.

    Reads the model's own parameters and buffers at each call. Runs in eager for good if the model cannot be compiled
    (see `fallback`), and in calls where what was compiled differs: shapes other than the number of rows, arguments that
    are not tensors, modes and attributes of modules, hooks, autocast.
    """

    def __init__(self, job: JobContext, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from torchshare.serving import model_tracer  # imports torch's compiler, which takes 1 to 2 s
        from torchshare.training.graph_trace import without_host_random
        from torchshare.training.step_package import load_package, package_of
        from torchshare.training.traced import Untraceable, copy, structure_of

        super().__init__(job, "compiled model")
        self._model = model
        begin = time.monotonic()
        with torch.inference_mode(False):
            self._warm_up(args, kwargs)
        try:
            self._keep_constants(model, model)
            given = args, kwargs
            with torch.inference_mode(False):
                call = pytree.map_leaves(lambda leaf: copy(leaf) if isinstance(leaf, Tensor) else leaf, given)
                self._structure = structure_of(call, "the arguments")
                tracer = model_tracer.ModelTracer(model, call)
                with without_host_random(job, "the model"):
                    traced, self._output = tracer.trace()
                path = package_of(traced, torch.get_num_threads(), job)
                self._specs = [
                    _C.tensor_spec(tensor, index in traced.any_rows) for index, tensor in enumerate(traced.data)
                ]
                self._any_rows = traced.any_rows
                bound = [*traced.bound, *traced.captured]
                self._compiled = _C.CompiledModel(load_package(path, _RUNNERS), bound, traced.data)
        except Untraceable as reason:
            self._fall_back(reason)
        self._compile_s = time.monotonic() - begin

    def _warm_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Calls the model before it is traced: what it caches in its first call must not be tensors of the trace. The
        job's random state and the model's buffers stay as they were."""
        buffers = [(tensor, tensor.detach().clone()) for tensor in self._model.buffers()]
        device = self._job.device
        with torch.random.fork_rng([] if device is None else [device]), torch.no_grad():
            self._model(*args, **kwargs)
            for tensor, former in buffers:
                if not torch.equal(tensor, former):
                    tensor.copy_(former)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = current.owner()
        if owner is not None and owner is not self._job:
            raise RuntimeError(
                f"job '{self._job.name}': its compiled model must not be called in another job, got job '{owner.name}'"
            )
        tensors = self._inputs((args, kwargs))
        if tensors is not None:
            outputs = self._run(tensors)
            if outputs is not None:
                return pytree.with_tensors(self._output, outputs)
        with torch.no_grad():
            return self._model(*args, **kwargs)

    def _inputs(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Tensor] | None:
        """The tensors of the arguments; None if the call must run in eager, after logging why."""
        if not self._is_as_compiled():
            return None
        if pytree.structure(call) == self._structure:
            return pytree.all_tensors(call)
        self._log_once("its arguments differ from those it was compiled for in more than tensors", "arguments")
        return None

    def _run(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """None if the call must run in eager, after logging why. If the code fails, too: its error names no reason, and
        the model's does."""
        refusals = self._job.handle.memory_refusals
        try:
            outputs = self._compiled.run(tensors)
        except RuntimeError as error:  # compiled code raises no other type
            if isinstance(error, torch.OutOfMemoryError):
                raise
            if self._job.handle.memory_refusals != refusals:
                raise BudgetExceeded(f"job '{self._job.name}': memory budget exceeded in a compiled model") from error
            self._log_once("its code failed in a call, which is made again", "failure")
            return None
        if outputs is None:
            self._log_once(self._mismatch(tensors), "shapes")
        return outputs

    def _mismatch(self, tensors: list[Tensor]) -> str:
        got = [_C.tensor_spec(tensor, index in self._any_rows) for index, tensor in enumerate(tensors)]
        for now, before in zip(got, self._specs, strict=True):
            if now != before:
                return f"an argument is {now}, but was {before} when compiled"
        return "its arguments differ in their number of rows, or a parameter has been moved or converted"


def check(user: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError or ValueError for arguments that are wrong with and without torchshare."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{user}: model must be an nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if module.training:
            shown = f"{type(module).__name__} '{name}'" if name else type(module).__name__
            raise ValueError(f"{user}: model must be in evaluation mode, got {shown} in training mode: call .eval()")
    if not pytree.all_tensors((args, kwargs)):
        raise ValueError(f"{user}: the arguments of the model must hold a tensor")


def make(job: JobContext, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledModel:
    """See Job.compiled."""
    check(f"job '{job.name}'", model, args, kwargs)
    if current.job() is not job:
        raise RuntimeError(f"job '{job.name}': models must be compiled in its own thread, while it runs")
    return CompiledModel(job, model, args, kwargs)


class EagerModel:
    """What a script has instead of a `CompiledModel` if torchshare does not run it: the model without gradients."""

    fallback = "torchshare does not run this program"
    compile_s = 0.0

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


def compiled(model: nn.Module, /, *args: Any, **kwargs: Any) -> CompiledModel | EagerModel:
    """For a script: the same as `Job.compiled`. Without torchshare, returns the model without gradients, in eager."""
    job = current.job()
    if job is not None:
        return make(job, model, args, kwargs)
    check("torchshare.compiled", model, args, kwargs)
    return EagerModel(model)
