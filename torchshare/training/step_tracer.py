"""Training steps as graphs: forward, backward and the optimizer's update, traced from the user's own objects."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchshare.training.graph_trace import GraphTracer, unchanged
from torchshare.training.optimizer_rules import Rule, State
from torchshare.training.traced import Traced, Untraceable, copy, difference, draw

_HALF = 0.5  # the weight of a sub-batch while tracing and checking


class StepTracer(GraphTracer):
    """Traces the parts of a training step, and knows the tensors that they are bound to.

    Bound tensors: "step": `tensors`, optimizer state, learning rates. "gradients": `tensors`, accumulators, weight.
    "update": `parameters`, optimizer state, accumulators, learning rates.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Callable[..., Tensor], optimizer: torch.optim.Optimizer, rule: Rule
    ) -> None:
        super().__init__(model)
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._rule = rule
        self._groups = [
            (number, parameter)
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        self._group_of = {id(parameter): number for number, parameter in self._groups}
        known = {id(tensor) for tensor in self.tensors}
        if any(id(parameter) not in known for _, parameter in self._groups):
            raise Untraceable("the optimizer has a parameter that the model lacks")
        if not self._groups:
            raise Untraceable("the optimizer has no parameter that requires a gradient")
        self._device = self._groups[0][1].device
        self._used: list[bool] | None = None  # which of _groups the loss depends on; the optimizer skips the others

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that the step updates; known once a loss has been traced."""
        return [parameter for _, parameter in self._updated()]

    def _updated(self) -> list[tuple[int, Tensor]]:
        assert self._used is not None, "no loss has been traced"
        return list(itertools.compress(self._groups, self._used))

    def state_names(self) -> list[tuple[Tensor, str]]:
        """The optimizer's state in order: (parameter, name)."""
        groups = self._optimizer.param_groups
        return [(parameter, name) for number, parameter in self._updated() for name in self._rule.state(groups[number])]

    def counts(self) -> list[int]:
        """The indices in the optimizer's state (`state_names`) of the numbers of steps that the graph only reads."""
        names = enumerate(self.state_names())
        return [at for at, (parameter, name) in names if name == "step" and self._counts_apart(parameter)]

    def _counts_apart(self, parameter: Tensor) -> bool:
        """Whether the parameter's number of steps is increased outside of the graph. To a kernel on a GPU, Inductor
        passes the address of a number on the CPU that the graph changes, instead of the number (torch 2.11)."""
        return parameter.device.type != "cpu" and self._count_device(parameter).type == "cpu"

    def _count_device(self, parameter: Tensor) -> torch.device:
        """Where torch keeps the parameter's number of steps."""
        group = self._optimizer.param_groups[self._group_of[id(parameter)]]
        return parameter.device if group.get("capturable") or group.get("fused") else torch.device("cpu")

    def step(self, data: Any) -> Traced:
        """One whole step on the batch `data`."""
        self._find_used(data)
        return self._trace("step", self._step, [*self.tensors, *self._state_like(), *self._rates_like()], data)

    def gradients(self, data: Any) -> Traced:
        """Forward and backward on the sub-batch `data`; its loss is multiplied by the weight."""
        self._find_used(data)
        bound = [*self.tensors, *map(_plausible, self.parameters), self._number(_HALF)]
        return self._trace("gradients", self._gradients, bound, data)

    def update(self) -> Traced:
        """The optimizer's update from the accumulators, which it clears."""
        gradients = map(_plausible, self.parameters)
        bound = [*self.parameters, *self._state_like(), *gradients, *self._rates_like()]
        return self._trace("update", self._update_from_accumulators, bound, ())

    def check(self, traced: Traced, data: Any, generators: list[torch.Generator]) -> None:
        """Compares the loss of a traced step with that of the user's code, on copies and with the same random numbers
        from the job's generators. Raises Untraceable if they differ. Called in the job's thread."""
        states = [(generator, generator.get_state()) for generator in generators]

        def rewind() -> None:
            for generator, state in states:
                generator.set_state(state)

        captured = [copy(tensor) for tensor in traced.captured]
        with torch.no_grad(), unchanged(self._model):
            with self._running_on([copy(tensor) for tensor in self.tensors]):
                eager = self._loss_of(data)
            rewind()
            for noise in traced.noise:
                draw(noise)
            for tensor, before in zip(traced.captured, captured, strict=True):
                tensor.copy_(before)  # e.g. the running statistics of a teacher model
            loss = traced.graph(*map(copy, traced.inputs))[0]
        rewind()
        if traced.kind == "gradients":
            loss = loss / _HALF
        if (found := difference(loss, eager)) is not None:
            raise Untraceable(f"the traced loss differs from eager by {found}")

    def _loss_of(self, data: Any) -> Tensor:
        return self._loss_fn(*data) if isinstance(data, (tuple, list)) else self._loss_fn(data)

    def _find_used(self, data: Any) -> None:
        if self._used is None:
            self._trace("gradients", lambda bound, tree: self._loss_gradients(bound, tree)[0], self.tensors, data)

    def _state_like(self) -> list[Tensor]:
        return [
            torch.tensor(3.0, device=self._count_device(parameter)) if name == "step" else _plausible(parameter)
            for parameter, name in self.state_names()
        ]

    def _rates_like(self) -> list[Tensor]:
        return [self._number(0.01) for _ in self._optimizer.param_groups]

    def _number(self, value: float) -> Tensor:
        """A scalar on the parameters' device, so that a CUDA graph of the step copies nothing from the CPU."""
        return torch.tensor(value, dtype=torch.float64, device=self._device)

    # The functions to trace. `bound` are proxies of the bound tensors.

    def _step(self, bound: list[Tensor], data: Any) -> Tensor:
        tensors, rest = _cut(bound, len(self.tensors))
        state, rates = _cut(rest, len(self.state_names()))
        loss, gradients = self._loss_gradients(tensors, data)
        proxies = dict(zip(map(id, self.tensors), tensors, strict=True))
        self._update([proxies[id(parameter)] for parameter in self.parameters], gradients, state, rates)
        return loss.detach()

    def _gradients(self, bound: list[Tensor], data: Any) -> Tensor:
        tensors, rest = _cut(bound, len(self.tensors))
        accumulators, (weight,) = _cut(rest, len(self.parameters))
        loss, gradients = self._loss_gradients(tensors, data, weight)
        for accumulator, gradient in zip(accumulators, gradients, strict=True):
            accumulator.add_(gradient)
        return loss.detach()

    def _update_from_accumulators(self, bound: list[Tensor], _: Any) -> Tensor:
        parameters, rest = _cut(bound, len(self.parameters))
        state, rest = _cut(rest, len(self.state_names()))
        accumulators, rates = _cut(rest, len(self.parameters))
        self._update(parameters, accumulators, state, rates)
        for accumulator in accumulators:
            accumulator.zero_()
        return rates[0].clone()  # a graph needs an output

    def _loss_gradients(
        self, tensors: list[Tensor], data: Any, weight: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad(), self._running_on(tensors) as proxies:
            loss = self._loss_of(data)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise Untraceable("the loss is not a tensor with one element")
            if weight is not None:
                loss = loss * weight.to(loss.dtype)
            gradients = torch.autograd.grad(loss, [proxies[id(p)] for _, p in self._groups], allow_unused=True)
        if self._used is None:
            self._used = [gradient is not None for gradient in gradients]
        return loss, [gradient for gradient in gradients if gradient is not None]

    @torch.no_grad()
    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], state: list[Tensor], rates: list[Tensor]
    ) -> None:
        states: list[State] = [{} for _ in parameters]
        position = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        for (parameter, name), tensor in zip(self.state_names(), state, strict=True):
            apart = name == "step" and self._counts_apart(parameter)
            states[position[id(parameter)]][name] = tensor.clone() if apart else tensor
        for (number, _), parameter, gradient, of_it in zip(self._updated(), parameters, gradients, states, strict=True):
            self._rule.update(self._optimizer.param_groups[number], parameter, gradient, of_it, rates[number])


def _plausible(like: Tensor) -> Tensor:
    """An example of a tensor that does not exist yet: values in [0, 1), not drawn from the job's random state."""
    numbers = torch.rand(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.empty_like(like).copy_(numbers).detach()


def _cut(tensors: list[Tensor], size: int) -> tuple[list[Tensor], list[Tensor]]:
    return tensors[:size], tensors[size:]
