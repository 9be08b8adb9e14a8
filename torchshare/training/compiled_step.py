"""Compiled steps: whole training steps, compiled ahead of time and driven from C++. See csrc/compiled."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchshare import _C
from torchshare.context import step_loop
from torchshare.context.errors import BudgetExceeded, is_out_of_memory
from torchshare.training import batches, pytree, split_warning, undo
from torchshare.training.batches import Batch
from torchshare.training.compiled_code import CompiledCode
from torchshare.training.graph_trace import without_host_random
from torchshare.training.optimizer_rules import rule_of
from torchshare.training.retry import halve, obstacle_of, warn_of_obstacle
from torchshare.training.step_package import load_package, package_of
from torchshare.training.step_tracer import StepTracer
from torchshare.training.traced import Kind, Noise, Untraceable, structure_of
from torchshare.training.undo import RandomStates

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext
    from torchshare.context.loop import Pass

_MAX_PACKAGES = 8  # batches of further shapes run in eager
Pieces = list[tuple[list[Tensor], float]]


class CompiledStep(CompiledCode):
    """A compiled training step: `step(batch)` does the work of `batch.backward(loss_fn)`, `optimizer.step()` and
    `optimizer.zero_grad()`. Made by `Job.compiled_step`.

    Updates the user's own parameters, buffers and optimizer state in place; `.grad` is not touched. Runs in eager for
    good if it cannot be compiled (see `fallback`), for the first step of an optimizer that has no state yet, and while
    what was compiled differs: modes and attributes of modules, hooks, autocast, hyperparameters (see StepConstants).
    """

    def __init__(
        self, job: JobContext, model: nn.Module, loss_fn: Callable[..., Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(job, "compiled step")
        self._model = model
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._ran: set[Any] = set()  # shapes of the sub-batches of batches that fitted into memory
        self._structure: list[Any] | None = None  # of a batch
        self._packages: dict[Kind, list[_LoadedPackage]] = {"step": [], "gradients": [], "update": []}
        device = next((parameter.device for group in optimizer.param_groups for parameter in group["params"]), None)
        self._weight = torch.ones((), dtype=torch.float64, device=device)
        self._rates = [torch.zeros((), dtype=torch.float64, device=device) for _ in optimizer.param_groups]
        self._accumulators: list[Tensor] = []
        self._bound: _C.CompiledStep | None = None
        self._bound_to: Any = None  # the optimizer's state that `_bound` updates, and its tensors
        self._bound_state: list[tuple[dict[str, Tensor], str, Tensor]] = []
        rule = rule_of(optimizer)
        try:
            if isinstance(rule, str):
                raise Untraceable(rule)
            self._keep_constants(model, loss_fn, optimizer)
            self._tracer = StepTracer(model, loss_fn, optimizer, rule)
        except Untraceable as reason:
            self._fall_back(reason)

    def __call__(self, batch: Batch) -> Tensor:
        """Trains on a batch of `job.batches`; returns its loss, detached."""
        self.check_owner(batch._job)
        loss = self._once(batch) if self._job.handle.memory_limit is None else self._repeating(batch)
        self._job.open_loops.is_compiled = True
        return loss

    def _once(self, batch: Batch) -> Tensor:
        pieces = self._pieces(batch) if self._is_as_compiled() else None
        if pieces is None:
            return self._eager(batch)
        loss = self._ready().run(self._job.handle, pieces)
        self._trained(batch)
        return loss

    def _trained(self, batch: Batch) -> None:
        """Called after compiled code has trained on the batch."""
        batch._open.is_done = True
        step_loop.backward_ran(self._job)
        step_loop.optimizer_stepped(self._job, self._optimizer)

    def _repeating(self, batch: Batch) -> Tensor:
        """As `__call__`, in smaller sub-batches if the batch runs out of memory. The first run of a package may run out
        in the middle of the update, so copies of what it updates are kept; later ones do so before they begin."""
        job = self._job
        while True:
            pieces = self._pieces(batch) if self._is_as_compiled() else None
            if pieces is None:
                return self._eager(batch)
            key = tuple(tuple(tensor.shape for tensor in data) for data, _ in pieces)
            rows, refusals, states = batch.rows_at_once(), job.handle.memory_refusals, None
            compiled, updated = self._ready(), self._bound_tensors()["step"]
            versions = [tensor._version for tensor in updated]
            copies: list[tuple[Tensor, Tensor]] | None = None
            try:
                job.handle.set_flexible(job.resplit and rows > 1)
                states = RandomStates(job)
                if key not in self._ran:
                    copies = [(tensor, tensor.detach().clone()) for tensor in updated]
                loss = compiled.run(job.handle, pieces)
            except RuntimeError as error:
                if not (is_out_of_memory(error) or job.handle.memory_refusals > refusals):
                    raise
                obstacle = obstacle_of(job, rows)
                if copies is None and (
                    not isinstance(error, torch.OutOfMemoryError) or versions != [tensor._version for tensor in updated]
                ):
                    obstacle = "it was in the middle of a compiled step"
                if obstacle is not None:
                    warn_of_obstacle(job, obstacle)
                    if isinstance(error, torch.OutOfMemoryError):
                        raise
                    raise BudgetExceeded(f"job '{job.name}': memory budget exceeded in a compiled step") from error
                undo.copy([(tensor.detach(), copy) for tensor, copy in copies or ()])
                if states is not None:
                    states.restore()
                halve(job, rows, batch.reduction)
            else:
                self._trained(batch)
                self._ran.add(key)
                job.rows_at_once.count(rows)
                return loss
            finally:
                job.handle.set_flexible(False)
                if states is not None:
                    states.forget()

    def check_owner(self, job: JobContext) -> None:
        """Raises ValueError unless the step was made by `job`."""
        if job is not self._job:
            raise ValueError(
                f"job '{job.name}': the compiled step must be one of this job, got one of job '{self._job.name}'"
            )

    def run_steps(self, batches: list[Batch], passing: Pass) -> list[Tensor]:
        """Trains on batches of a pass that have not begun as steps, and returns their losses. Releases the GIL while
        they run compiled."""
        losses: list[Tensor] = []
        limited = self._job.handle.memory_limit is not None
        is_as_compiled = self._is_as_compiled()
        queue: list[Pieces] = []
        for batch in batches:
            pieces = self._pieces(batch) if is_as_compiled and not limited else None
            if pieces is not None:
                queue.append(pieces)
                continue
            losses += self._drain(queue, passing)
            with step_loop.in_batch(self._job, batch._open, passing, is_ahead=True):
                losses.append(self(batch))
        return losses + self._drain(queue, passing)

    def _drain(self, queue: list[Pieces], passing: Pass) -> list[Tensor]:
        if not queue:
            return []
        with step_loop.in_compiled_steps(self._job, passing, len(queue)):
            losses = _C.run_steps(self._job.handle, self._ready(), queue)
        queue.clear()
        return losses

    def _ready(self) -> _C.CompiledStep:
        """The compiled step, with the current learning rates."""
        assert self._bound is not None
        for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
            rate.fill_(float(group["lr"]))
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # checked by learning-rate schedulers
        return self._bound

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the step for C++ programs (see examples/cpp): `step.pt2`, the package for whole batches, and
        `tensors.pt`, copies of the tensors that it reads and updates.

        Raises:
            RuntimeError: if no package for whole batches exists, or the optimizer has no state yet.
        """
        if not self._packages["step"] or not self._bind():
            reason = self.fallback or "no whole batch has been compiled, or none trained on"
            raise RuntimeError(f"job '{self._job.name}': the step cannot be saved: {reason}")
        self._ready()
        package = self._packages["step"][0]
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package.path, target / "step.pt2")
        bound = [*self._bound_tensors()["step"], *package.captured]
        saved = {
            "bound": [tensor.detach().clone() for tensor in bound],
            "noise": [tensor for tensor, *_ in package.noise],
            "draws": torch.tensor([rest for _, *rest in package.noise], dtype=torch.float64).reshape(-1, 3),
            "data": package.data,
            "counts": self._counts(bound),
        }
        torch.save(saved, target / "tensors.pt")

    def prepare(self, data: Any, sub_batch: int | None) -> None:
        """Compiles the packages for batches like `data`, in sub-batches of `sub_batch` rows."""
        if self.fallback is None:
            options = batches.Options(sub_batch, "mean", None, self._job.split)
            self._cover(list(_pieces_of(Batch(self._job, data, 0, options))))

    def _eager(self, batch: Batch) -> Tensor:
        loss: Tensor = batch.backward(self._loss_fn)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def _pieces(self, batch: Batch) -> Pieces | None:
        """The sub-batches as arguments of the compiled step; None if the batch must run in eager, after logging why."""
        subs = list(_pieces_of(batch))
        pieces = [(pytree.all_tensors(data), weight) for data, weight in subs]
        known = self._bound is not None and self._bound.covers(pieces) and all(map(self._has_structure, subs))
        if (not known and not self._cover(subs)) or not self._bind():
            return None
        return pieces

    def _cover(self, subs: list[tuple[Any, float]]) -> bool:
        """Compiles the packages that these sub-batches lack; False if the batch must run in eager."""
        try:
            for data, _ in subs:
                self._check_structure(data)
            kind: Kind = "step" if len(subs) == 1 and subs[0][1] == 1.0 else "gradients"
            for data, _ in subs:
                if not any(_alike(known.data, pytree.all_tensors(data)) for known in self._packages[kind]):
                    self._add(kind, data)
        except Untraceable as reason:
            self._fall_back(reason)
        except _UnsupportedBatch as reason:
            self._log_once(str(reason))
            return False
        return self.fallback is None

    def _add(self, kind: Kind, data: Any) -> None:
        if sum(map(len, self._packages.values())) >= _MAX_PACKAGES:
            raise _UnsupportedBatch(f"the batch has a new shape, and at most {_MAX_PACKAGES} packages are compiled")
        begin = time.monotonic()
        with (
            without_host_random(self._job, "the loss function"),
            split_warning.around(self._job, lambda: kind == "gradients"),
        ):
            traced = [self._tracer.step(data) if kind == "step" else self._tracer.gradients(data)]
        generators = self._job.handle.generator, self._job.handle.device_generator
        self._tracer.check(traced[0], data, [generator for generator in generators if generator is not None])
        if kind == "gradients" and not self._packages["update"]:
            traced.append(self._tracer.update())
        for each in traced:
            path = package_of(each, torch.get_num_threads(), self._job)
            self._packages[each.kind].append(
                _LoadedPackage(load_package(path), path, each.captured, each.noise, each.data)
            )
        if kind == "gradients" and not self._accumulators:
            self._accumulators = [torch.zeros_like(parameter) for parameter in self._tracer.parameters]
        self._bound = None  # _bind() binds the new packages
        self._compile_s += time.monotonic() - begin

    def _has_structure(self, sub: tuple[Any, float]) -> bool:
        return self._structure == pytree.structure(sub[0])

    def _check_structure(self, data: Any) -> None:
        """Non-tensor leaves are compile-time constants: they must be equal in every batch."""
        structure = structure_of(data, "a batch")
        if self._structure is None:
            self._structure = structure
        elif structure != self._structure:
            raise _UnsupportedBatch("the batch differs from the compiled one in its structure or in a non-tensor leaf")

    def _bind(self) -> bool:
        """Binds the packages to the optimizer's current state; False if there is none yet."""
        states = self._optimizer.state
        if (
            self._bound is not None
            and self._bound_to is states
            and all(of_one.get(name) is tensor for of_one, name, tensor in self._bound_state)
        ):
            return True
        try:
            self._bound_state = [
                (states[parameter], name, states[parameter][name]) for parameter, name in self._tracer.state_names()
            ]
        except KeyError:
            return False  # the first step creates it, in eager
        if any(tensor is None for _, _, tensor in self._bound_state):
            return False
        self._bound_to = states
        bound = self._bound_tensors()
        packages = {
            kind: [
                (each.package, [*bound[kind], *each.captured], each.noise, each.data, self._counts(bound[kind]))
                for each in known
            ]
            for kind, known in self._packages.items()
        }
        try:
            self._bound = _C.CompiledStep(
                packages["step"], packages["gradients"], packages["update"], self._accumulators, self._weight
            )
        except ValueError as error:
            self._fall_back(error)
            return False
        return True

    def _bound_tensors(self) -> dict[Kind, list[Tensor]]:
        """The bound tensors of each kind of package, see StepTracer."""
        tracer, rates, accumulators = self._tracer, self._rates, self._accumulators
        state = [tensor for _, _, tensor in self._bound_state]
        return {
            "step": [*tracer.tensors, *state, *rates],
            "gradients": [*tracer.tensors, *accumulators, self._weight],
            "update": [*tracer.parameters, *state, *accumulators, *rates],
        }

    def _counts(self, bound: list[Tensor]) -> list[int]:
        """The indices in `bound` of the numbers of steps that a package only reads."""
        counted = {id(self._bound_state[index][2]) for index in self._tracer.counts()}
        return [index for index, tensor in enumerate(bound) if id(tensor) in counted]


@dataclass(frozen=True)
class _LoadedPackage:
    """A package, with the inputs of `Traced` that it was compiled for."""

    package: _C.StepPackage
    path: Path
    captured: list[Tensor]
    noise: list[Noise]
    data: list[Tensor]


class _UnsupportedBatch(Exception):
    """A batch that must run in eager; the message says why."""


def make(
    job: JobContext,
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    example_batch: Any,
    sub_batch: int | None,
) -> CompiledStep:
    """See Job.compiled_step."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"job '{job.name}': model must be an nn.Module, got {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"job '{job.name}': optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if not callable(loss_fn):
        raise TypeError(f"job '{job.name}': loss_fn must be callable, got {loss_fn!r}")
    if not pytree.all_tensors(example_batch):
        raise ValueError(f"job '{job.name}': example_batch must hold a tensor, got {type(example_batch).__name__}")
    step = CompiledStep(job, model, loss_fn, optimizer)
    step.prepare(example_batch, batches.check_sub_batch(job.name, sub_batch))
    return step


def fit(
    job: JobContext,
    step: CompiledStep,
    loader: Iterable[Any],
    steps: int | None,
    options: batches.Options,
    prefetch: int,
) -> Tensor:
    """See Job.fit."""
    if not isinstance(step, CompiledStep):
        raise TypeError(f"job '{job.name}': step must be a CompiledStep, got {type(step).__name__}")
    step.check_owner(job)
    losses: list[Tensor] = []
    done = 0
    while steps is None or done < steps:
        before = done
        passing = job.loop.begin_pass(loader)
        done += passing.fetched  # before the checkpoint that the job goes on from
        remaining = None if steps is None else steps - done
        fetched = itertools.islice(batches.fetch(job, loader, options, passing), remaining)
        while chunk := list(itertools.islice(fetched, prefetch)):
            losses += step.run_steps(chunk, passing)
            done += len(chunk)
            passing.advance()
        if steps is None:
            break
        if done == before:
            raise ValueError(f"job '{job.name}': the loader yielded nothing after {before} of {steps} steps")
    return torch.stack(losses) if losses else torch.empty(0)


def _pieces_of(batch: Batch) -> Iterable[tuple[Any, float]]:
    return ((sub.data, sub.weight) for sub in batch.split())


def _alike(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(_C.tensor_spec(x) == _C.tensor_spec(y) for x, y in zip(a, b, strict=True))
