"""Turns the tensors and the random numbers that a traced graph contains into inputs of the graph."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from torchshare.training.traced import BERNOULLI, DROPOUT, NORMAL, UNIFORM, Noise, Untraceable

aten = torch.ops.aten
_UNFILLED = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty)


def lift_captured(graph: GraphModule, first: int) -> list[Tensor]:
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


def lift_noise(graph: GraphModule, first: int) -> list[Noise]:
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
        if not all(isinstance(size, int) for size in like.shape):
            raise Untraceable("random numbers for any number of rows cannot be compiled")
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


def _new_input(graph: GraphModule, position: int, name: str) -> Node:
    inputs = list(graph.graph.find_nodes(op="placeholder"))
    with graph.graph.inserting_after(inputs[position - 1]):
        return graph.graph.placeholder(f"{name}_{position}")
