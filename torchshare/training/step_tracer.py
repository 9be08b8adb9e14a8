"""Training steps as graphs: forward, backward and the optimizer's update, traced from the user's own objects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._decomp import decompositions
from torch._dynamo import convert_frame
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode

from torchshare import _C
from torchshare.training import pytree
from torchshare.training.optimizer_rules import Rule, State

Kind = Literal["step", "gradients", "update"]


aten = torch.ops.aten
_UNFILLED = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty)
_MISSING = object()
_HALF = 0.5  # the weight of a sub-batch while tracing and checking
_gather_params: Any = decompositions.gather_params
_run_layer: Any = decompositions._rnn_helper
_RNN_LISTS = ("_flat_weights", "_flat_weight_refs")  # lists of parameters, rebuilt when one is swapped


class Untraceable(Exception):
    """A training step that cannot be compiled; the message says why."""


BERNOULLI, UNIFORM, NORMAL, DROPOUT = range(4)  # values of Noise::Kind in C++
Noise = tuple[Tensor, int, float, float]
"""A tensor of random numbers, drawn before each run: BERNOULLI (p, unused), UNIFORM (from, to), NORMAL (mean, standard
deviation) or DROPOUT (p, unused), what CUDA's dropout turns ones into."""


@dataclass(frozen=True)
class Traced:
    """A graph whose inputs are the bound tensors of its kind (see `StepTracer`), `captured`, `noise`, and `data`."""

    kind: Kind
    graph: GraphModule
    captured: list[Tensor]
    """Tensors that the loss function reads and that are neither the model's nor the batch's."""
    noise: list[Noise]
    data: list[Tensor]
    bound: list[Tensor]
    """Examples of the bound tensors; the optimizer's state may not exist yet."""

    @property
    def inputs(self) -> list[Tensor]:
        return [*self.bound, *self.captured, *(tensor for tensor, *_ in self.noise), *self.data]

    def check(self, compiled: Callable[[list[Tensor]], list[Tensor]]) -> None:
        """Runs the compiled graph and this one on copies of the inputs. Raises Untraceable if the results differ."""
        outcomes = []
        for run in (lambda inputs: self.graph(*inputs), compiled, compiled):  # twice: it must be stateless
            inputs = [_copy(tensor) for tensor in self.inputs]
            try:
                with torch.no_grad():
                    outcomes.append([*run(inputs), *inputs])
            except RuntimeError as error:
                raise Untraceable(f"the compiled '{self.kind}' fails: {_first_line(error)}") from error
        for eager, _, result in zip(*outcomes, strict=True):
            difference = _difference(result, eager)
            if difference is not None:
                raise Untraceable(f"the compiled '{self.kind}' differs from eager by {difference}")


class StepTracer:
    """Traces the parts of a training step, and knows the tensors that they are bound to.

    Bound tensors: "step": `tensors`, optimizer state, learning rates. "gradients": `tensors`, accumulators, weight.
    "update": `parameters`, optimizer state, accumulators, learning rates.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Callable[..., Tensor], optimizer: torch.optim.Optimizer, rule: Rule
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._rule = rule
        named = itertools.chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        )
        self._named = dict(named)
        self.tensors = list({id(tensor): tensor for tensor in self._named.values()}.values())
        self._groups = [
            (number, parameter)
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
            if parameter.requires_grad
        ]
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

        captured = [_copy(tensor) for tensor in traced.captured]
        copies = dict(zip(map(id, self.tensors), map(_copy, self.tensors), strict=True))
        with torch.no_grad(), _unchanged(self._model):
            with _reparametrize_module(self._model, {name: copies[id(tensor)] for name, tensor in self._named.items()}):
                eager = self._loss_of(data)
            rewind()
            for noise in traced.noise:
                draw(noise)
            for tensor, before in zip(traced.captured, captured, strict=True):
                tensor.copy_(before)  # e.g. the running statistics of a teacher model
            loss = traced.graph(*map(_copy, traced.inputs))[0]
        rewind()
        if traced.kind == "gradients":
            loss = loss / _HALF
        difference = _difference(loss, eager)
        if difference is not None:
            raise Untraceable(f"the traced loss differs from eager by {difference}")

    def _loss_of(self, data: Any) -> Tensor:
        return self._loss_fn(*data) if isinstance(data, (tuple, list)) else self._loss_fn(data)

    def _find_used(self, data: Any) -> None:
        if self._used is None:
            self._trace("gradients", lambda bound, tree: self._loss_gradients(bound, tree)[0], self.tensors, data)

    def _state_like(self) -> list[Tensor]:
        return [
            torch.tensor(3.0) if name == "step" else _plausible(parameter) for parameter, name in self.state_names()
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
        proxies = dict(zip(map(id, self.tensors), tensors, strict=True))
        swapped = {name: proxies[id(tensor)] for name, tensor in self._named.items()}
        inside = dict(swapped)
        with torch.enable_grad(), _reparametrize_module(self._model, inside):
            loss = self._loss_of(data)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise Untraceable("the loss is not a tensor with one element")
            if weight is not None:
                loss = loss * weight.to(loss.dtype)
            gradients = torch.autograd.grad(loss, [proxies[id(p)] for _, p in self._groups], allow_unused=True)
        for name, tensor in swapped.items():
            if inside[name] is not tensor:
                raise Untraceable(f"the forward pass replaces '{name}' of the model")
        if self._used is None:
            self._used = [gradient is not None for gradient in gradients]
        return loss, [gradient for gradient in gradients if gradient is not None]

    @torch.no_grad()
    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], state: list[Tensor], rates: list[Tensor]
    ) -> None:
        states: list[State] = [{} for _ in parameters]
        place = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        for (parameter, name), tensor in zip(self.state_names(), state, strict=True):
            states[place[id(parameter)]][name] = tensor
        for (number, _), parameter, gradient, of_it in zip(self._updated(), parameters, gradients, states, strict=True):
            self._rule.update(self._optimizer.param_groups[number], parameter, gradient, of_it, rates[number])

    def _trace(
        self, kind: Kind, function: Callable[[list[Tensor], Any], Tensor], bound: list[Tensor], data: Any
    ) -> Traced:
        leaves = pytree.all_tensors(data)

        def flat(bound: list[Tensor], tensors: list[Tensor]) -> Tensor:
            return function(bound, pytree.with_tensors(data, tensors))

        try:
            with convert_frame.compile_lock, _unchanged(self._model), _C.Unhooked(), _PlainRecurrence():
                graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(bound, leaves)
        except Untraceable:
            raise
        except Exception as error:  # the user's code and torch may raise anything
            raise Untraceable(f"{type(error).__name__}: {_first_line(error)}") from error
        _spell_out_alpha(graph)
        captured = _lift_captured(graph, len(bound))
        noise = _lift_noise(graph, len(bound) + len(captured))
        own = {id(tensor) for tensor in self.tensors}
        if any(id(tensor) in own for tensor in captured):
            raise Untraceable("the loss function uses a tensor of the model other than through the model")
        return Traced(kind, graph, captured, noise, leaves, bound)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides. An expanded tensor, which no op may write to, is returned as it is."""
    copy = tensor.detach().clone()
    return copy if copy.stride() == tensor.stride() else tensor.detach()


def _plausible(like: Tensor) -> Tensor:
    """An example of a tensor that does not exist yet: values in [0, 1), not drawn from the job's random state."""
    numbers = torch.rand(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.empty_like(like).copy_(numbers).detach()


def draw(noise: Noise) -> None:
    """Fills a noise tensor as C++ does before a compiled step runs."""
    tensor, kind, first, second = noise
    if kind == BERNOULLI:
        tensor.bernoulli_(first)
    elif kind == UNIFORM:
        tensor.uniform_(first, second)
    elif kind == NORMAL:
        tensor.normal_(first, second)
    else:
        tensor.copy_(torch.native_dropout(torch.ones_like(tensor), first, True)[0])


def _difference(result: Tensor, eager: Tensor) -> str | None:
    """The largest difference, if beyond sqrt(eps) tolerance; else None."""
    if eager.numel() == 0 or not torch.isfinite(eager).all():
        return None
    largest = eager.abs().max()
    allowed = torch.finfo(eager.dtype).eps ** 0.5 * largest if eager.is_floating_point() else 0
    difference = (result - eager).abs().max()
    return None if difference <= allowed else f"{difference:.3g} of {largest:.3g}"


def _cut(tensors: list[Tensor], size: int) -> tuple[list[Tensor], list[Tensor]]:
    return tensors[:size], tensors[size:]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""


class _PlainRecurrence(TorchFunctionMode):
    """Decomposes LSTMs. In single precision torch runs a layer as one op, and AOTInductor of torch 2.11 cannot call its
    backward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm and isinstance(args[1], (tuple, list)):  # the other overload is for packed sequences
            return _lstm(*args)
        return func(*args, **(kwargs or {}))


def _lstm(
    input: Tensor,
    state: Sequence[Tensor],
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """torch.lstm, layer by layer: the decomposition of torch 2.11 omits the dropout between layers."""
    parameters = _gather_params(weights, has_biases, state[0].size(2) != state[1].size(2))
    hidden = list(zip(*state, strict=True))
    directions = 2 if bidirectional else 1
    output = input.transpose(0, 1) if batch_first else input
    finals: list[Any] = []
    for layer in range(num_layers):
        if layer > 0 and train and dropout > 0:
            output = torch.dropout(output, dropout, train=True)
        mine = slice(layer * directions, (layer + 1) * directions)
        output, final = _run_layer(
            output, hidden[mine], parameters[mine], has_biases, 1, 0.0, train, bidirectional, False,
            decompositions.one_layer_lstm,
        )  # fmt: skip
        finals += final
    output = output.transpose(0, 1) if batch_first else output
    return output, *(torch.stack(of_layers, 0) for of_layers in zip(*finals, strict=True))


def _spell_out_alpha(graph: GraphModule) -> None:
    """Splits a + alpha * b into two ops: Inductor of torch 2.11 fuses `add(mm(x, y), b, alpha=alpha)` into an addmm
    without alpha."""
    for node in graph.graph.nodes:
        if (
            node.target in (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)
            and "alpha" in node.kwargs
        ):
            with graph.graph.inserting_before(node):
                scaled = graph.graph.call_function(aten.mul.Tensor, (node.args[1], node.kwargs["alpha"]))
            node.args, node.kwargs = (node.args[0], scaled), {}


def _lift_captured(graph: GraphModule, first: int) -> list[Tensor]:
    """Turns the tensors that the graph holds into inputs, after the first `first` ones. Returns them."""
    graph.graph.set_codegen(CodeGen())  # type: ignore[no-untyped-call, unused-ignore]  # flat arguments
    captured: list[Tensor] = []
    inputs: dict[str, Node] = {}
    for node in list(graph.graph.find_nodes(op="get_attr")):
        if node.target not in inputs:
            inputs[node.target] = _new_input(graph, first + len(captured), "captured")
            captured.append(getattr(graph, node.target))
        node.replace_all_uses_with(inputs[node.target])
        graph.graph.erase_node(node)
    for name in inputs:
        delattr(graph, name)
    return captured


def _lift_noise(graph: GraphModule, first: int) -> list[Noise]:
    """Turns the results of random ops into inputs, after the first `first` ones. Compiled code would bypass the op hook
    and draw from the process's random state. The same ops draw these inputs in the same order, before each run."""
    noise: list[Noise] = []
    for node in list(graph.graph.nodes):
        if not _is_random(node):
            continue
        distribution = _distribution(node)
        if distribution is None:
            raise Untraceable(f"random numbers of {node.target} cannot be compiled")
        new = _new_input(graph, first + len(noise), "noise")
        like = node.meta["val"]
        if distribution[0] == DROPOUT:
            like = like[0]
            _apply_dropout(graph, node, new)
        else:
            node.replace_all_uses_with(new)
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        noise.append((tensor.fill_(0.5), *distribution))
        graph.graph.erase_node(node)
    for node in reversed(list(graph.graph.nodes)):  # the tensors that random ops filled
        if not node.users and getattr(node.target, "overloadpacket", None) in _UNFILLED:
            graph.graph.erase_node(node)
    graph.recompile()
    return noise


def _apply_dropout(graph: GraphModule, node: Node, factors: Node) -> None:
    """Replaces CUDA's dropout, which returns its result and the mask, by a product with what it turns ones into."""
    for part in list(node.users):
        with graph.graph.inserting_before(part):
            if part.args[1] == 0:
                value = graph.graph.call_function(aten.mul.Tensor, (node.args[0], factors))
            else:
                value = graph.graph.call_function(aten.ne.Scalar, (factors, 0))
        part.replace_all_uses_with(value)
        graph.graph.erase_node(part)


def _is_random(node: Node) -> bool:
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return "dropout_p" not in names or given.get("dropout_p", 0.0) != 0  # attention has the tag because of its dropout


def _distribution(node: Node) -> tuple[int, float, float] | None:
    """The distribution of a random op; None if it depends on other tensors."""
    op = getattr(node.target, "overloadpacket", None)
    numbers = [argument for argument in node.args[1:] if isinstance(argument, (int, float))]
    if node.target is aten.bernoulli_.float:
        return BERNOULLI, numbers[0] if numbers else 0.5, 0.0
    if op in (aten.rand, aten.rand_like):
        return UNIFORM, 0.0, 1.0
    if op in (aten.randn, aten.randn_like):
        return NORMAL, 0.0, 1.0
    if op is aten.native_dropout:
        return DROPOUT, numbers[0], 0.0
    if op in (aten.uniform_, aten.normal_):
        first, second = itertools.chain(numbers, (0.0, 1.0)[len(numbers) :])
        return UNIFORM if op is aten.uniform_ else NORMAL, first, second
    return None


def _new_input(graph: GraphModule, place: int, name: str) -> Node:
    inputs = list(graph.graph.find_nodes(op="placeholder"))
    with graph.graph.inserting_after(inputs[place - 1]):
        return graph.graph.placeholder(f"{name}_{place}")


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the attributes of the model's modules; raises Untraceable if the body changed one."""
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    sizes = {(name, key): len(value) for name, key, value in _containers(before)}
    try:
        yield
    finally:
        changed = []
        for name, module in model.named_modules():
            old = before[name]
            for key in {**old, **module.__dict__}:
                new = module.__dict__.get(key, _MISSING)
                if key in old and new is old[key]:
                    continue
                if key in old:
                    module.__dict__[key] = old[key]
                else:
                    del module.__dict__[key]
                if isinstance(module, nn.RNNBase) and key in _RNN_LISTS:
                    continue
                changed.append(f"'{key}' of {_module(name)}")
        changed += [
            f"'{key}' of {_module(name)}" for name, key, value in _containers(before) if len(value) != sizes[name, key]
        ]
    if changed:
        raise Untraceable(f"the forward pass changes {changed[0]}")


def _containers(before: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    for name, attributes in before.items():
        for key, value in attributes.items():
            if isinstance(value, (list, dict, set)):
                yield name, key, value


def _module(name: str) -> str:
    return f"module '{name}'" if name else "the model"
