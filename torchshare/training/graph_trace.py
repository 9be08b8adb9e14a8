"""Traces functions that run a model to graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._decomp import decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import convert_frame
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode

from torchshare import _C
from torchshare.training import pytree
from torchshare.training.graph_inputs import lift_captured, lift_noise
from torchshare.training.traced import Kind, Traced, Untraceable, first_line

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

aten = torch.ops.aten
_MISSING = object()
_gather_params: Any = decompositions.gather_params
_run_layer: Any = decompositions._rnn_helper
_RNN_LISTS = ("_flat_weights", "_flat_weight_refs")  # lists of parameters, rebuilt when one is swapped


@contextmanager
def _without_addresses(model: nn.Module) -> Iterator[None]:
    """On a GPU, a recurrent layer whose weights are swapped checks whether they lie one after the other in memory, for
    cuDNN; traced tensors have no address. A layer whose user has replaced that check keeps the user's."""
    layers = [
        module
        for module in model.modules()
        if isinstance(module, nn.RNNBase) and "flatten_parameters" not in vars(module)
    ]
    for layer in layers:
        layer.__dict__["flatten_parameters"] = lambda: None
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["flatten_parameters"]


class GraphTracer:
    """Traces functions that run a model, whose parameters and buffers become inputs of the graph."""

    def __init__(self, model: nn.Module) -> None:
        """Raises Untraceable for a model that cannot be traced."""
        if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
            raise Untraceable("the model is DistributedDataParallel")
        self._model = model
        named = itertools.chain(
            model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        )
        self._named = dict(named)
        self.tensors = list({id(tensor): tensor for tensor in self._named.values()}.values())
        """The parameters and buffers."""

    @contextmanager
    def _running_on(self, tensors: list[Tensor]) -> Iterator[dict[int, Tensor]]:
        """The model runs on these instead of on `self.tensors`. Yields them by the `id` of what they stand for."""
        proxies = dict(zip(map(id, self.tensors), tensors, strict=True))
        swapped = {name: proxies[id(tensor)] for name, tensor in self._named.items()}
        inside = dict(swapped)
        with _without_addresses(self._model), _reparametrize_module(self._model, inside):
            yield proxies
        for name, tensor in swapped.items():
            if inside[name] is not tensor:
                raise Untraceable(f"the forward pass replaces '{name}' of the model")

    def _trace(
        self,
        kind: Kind,
        function: Callable[[list[Tensor], Any], Tensor | list[Tensor]],
        bound: list[Tensor],
        data: Any,
        *,
        rows: int | None = None,
    ) -> Traced:
        """`rows`: of the tensors in `data` whose number of rows may vary; None: it is the same in all calls."""
        leaves = pytree.all_tensors(data)
        any_rows = tuple(index for index, leaf in enumerate(leaves) if rows is not None and _has_rows(leaf, rows))

        def flat(bound: list[Tensor], tensors: list[Tensor]) -> Tensor | list[Tensor]:
            return function(bound, pytree.with_tensors(data, tensors))

        try:
            with convert_frame.compile_lock, unchanged(self._model), _C.Unhooked(), _PlainRecurrence():
                if any_rows:
                    graph = _graph_for_any_rows(flat, bound, leaves, any_rows)
                else:
                    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(bound, leaves)
        except Untraceable:
            raise
        except Exception as error:  # the user's code and torch may raise anything
            raise Untraceable(f"{type(error).__name__}: {first_line(error)}") from error
        _spell_out_alpha(graph)
        captured = lift_captured(graph, len(bound))
        noise = lift_noise(graph, len(bound) + len(captured))
        own = {id(tensor) for tensor in self.tensors}
        if any(id(tensor) in own for tensor in captured):
            raise Untraceable("the traced function uses a tensor of the model other than through the model")
        return Traced(kind, graph, captured, noise, leaves, bound, any_rows)


@contextmanager
def without_host_random(job: JobContext, what: str) -> Iterator[None]:
    """Raises Untraceable if the body draws random numbers that a graph does not show."""

    def states() -> tuple[object, object]:
        return job.random.getstate(), job.host_random.numpy_state()

    before = states()
    try:
        yield
    except Untraceable:
        if states() == before:
            raise
    if states() != before:
        raise Untraceable(f"{what} draws from Python's or numpy's random state")


def _has_rows(tensor: Tensor, rows: int) -> bool:
    """Whether the first dimension has that size, and is the outermost one: no stride depends on its size."""
    if tensor.dim() == 0 or tensor.size(0) != rows:
        return False
    inner = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    return tensor.stride(0) >= max((size * stride for size, stride in inner), default=1)


def _graph_for_any_rows(
    function: Callable[..., Any], bound: list[Tensor], data: list[Tensor], any_rows: tuple[int, ...]
) -> GraphModule:
    """Raises Untraceable if the graph would depend on the number of rows."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)

    def fake(tensor: Tensor, varies: bool) -> Tensor:
        sizes = [DimDynamic.STATIC] * tensor.dim()
        if varies:
            sizes[0] = DimDynamic.DUCK  # the same symbol for the same size
        return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    inputs = [fake(tensor, False) for tensor in bound], [fake(t, index in any_rows) for index, t in enumerate(data)]
    with mode, enable_python_dispatcher():
        graph = make_fx(function, tracing_mode="real", _allow_non_fake_inputs=True)(*inputs)
    if shapes.guards:
        raise Untraceable(f"the forward pass depends on the number of rows ({shapes.guards[0].expr})")
    return graph


class _PlainRecurrence(TorchFunctionMode):
    """Decomposes LSTMs. In single precision torch runs a layer as one op, and AOTInductor (2.11 to 2.15) cannot call
    its backward."""

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
    """torch.lstm, layer by layer: the decomposition of torch 2.11 to 2.15 omits the dropout between layers."""
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
    without alpha (2.15 does not)."""
    for node in graph.graph.nodes:
        if (
            node.target in (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)
            and "alpha" in node.kwargs
        ):
            with graph.graph.inserting_before(node):
                scaled = graph.graph.call_function(aten.mul.Tensor, (node.args[1], node.kwargs["alpha"]))
            node.args, node.kwargs = (node.args[0], scaled), {}


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
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
