"""Inductor's options for a GPU that runs no compiled kernels: torch's own ops are called instead.

The process that compiles a step imports this too, with its options.
"""

import math
from typing import Any

import torch
from torch._export.serde import serialize
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from torchshare.torch_versions import is_one_of

aten = torch.ops.aten
# In the order of c10::ScalarType. The loader of torch 2.11 reads dtypes as these, but export writes its own numbers,
# which are one higher. From 2.12 on it reads export's: with these, it would take float32 for float16.
DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.bool),
)


class SpellOut(CustomGraphPass):
    """Makes explicit what packages of torch 2.11 lose when they call an op by name: default values, sizes without
    dimensions, booleans as numbers, and numbers that stand for tensors as in `sub.Tensor(1.0, x)`. Numbers that are
    infinite, as in `ne.Scalar(x, inf)` of isfinite, become tensors too: no loader reads them. From torch 2.15 on, the
    gradient of softmax has an fma of Inductor's own."""

    def __call__(self, graph: Graph) -> None:
        if is_one_of(torch.__version__, "<2.12"):
            serialize._TORCH_TO_SERIALIZE_DTYPE.update((dtype, number) for number, dtype in enumerate(DTYPES))
        for node in graph.nodes:
            if node.target is aten.full.default and not node.args[0]:
                node.target, node.args = aten.scalar_tensor.default, (node.args[1],)
            elif str(node.target) == "prims.fma.default":
                node.target, node.args = aten.addcmul.default, (node.args[2], *node.args[:2])
            if isinstance(node.target, torch._ops.OpOverload):
                if node.target._overloadname == "Scalar" and any(value in (math.inf, -math.inf) for value in node.args):
                    node.target = node.target.overloadpacket.Tensor
                spell_out(node, node.target._schema.arguments)

    def uuid(self) -> str:
        return "numbers, infinite ones too, default values, dtypes and ops as the loader reads them"

    def __repr__(self) -> str:  # part of the key of compiled steps
        return self.uuid()


def spell_out(node: Node, parameters: Any) -> None:
    given = dict(zip((parameter.name for parameter in parameters), node.args, strict=False)) | node.kwargs
    for parameter in parameters:
        value = given.setdefault(parameter.name, parameter.default_value)
        if isinstance(parameter.type, torch.TensorType) and isinstance(value, (int, float)):
            given[parameter.name] = as_tensor(node, value)
        elif isinstance(parameter.type, torch.NumberType) and isinstance(value, bool):
            given[parameter.name] = int(value)
    node.args = tuple(given[parameter.name] for parameter in parameters if not parameter.kwarg_only)
    node.kwargs = {parameter.name: given[parameter.name] for parameter in parameters if parameter.kwarg_only}


def as_tensor(node: Node, value: float) -> Node:
    # As the op promotes types: a number is weaker than a tensor.
    dtype = torch.result_type(node.all_input_nodes[0].meta["val"], value)
    with node.graph.inserting_before(node):
        if math.isinf(value):
            zero = node.graph.call_function(aten.scalar_tensor.default, (1 / value,), {"dtype": dtype})
            return node.graph.call_function(aten.reciprocal.default, (zero,))
        return node.graph.call_function(aten.scalar_tensor.default, (value,), {"dtype": dtype})


OPTIONS = {"fallback_by_default": True, "online_softmax": False, "post_grad_custom_post_pass": SpellOut()}
