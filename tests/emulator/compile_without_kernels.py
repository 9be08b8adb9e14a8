"""torchshare/training/compile_package.py, but each op goes through the dispatcher, where the numerics are.

Inductor's C shims would call torch's CUDA kernels directly, and these are hollow.
"""

import runpy

import torch
from torch._inductor import config
from torchgen.aoti.fallback_ops import inductor_fallback_ops


def use_scalar_overloads(graph: torch.fx.Graph) -> None:
    """Replaces mul.Tensor(x, 2.0) by mul.Scalar(x, 2.0): a call through the dispatcher takes no number for a tensor."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._overloadname == "Tensor":
            tensors = [isinstance(a.type, torch.TensorType) for a in node.target._schema.arguments]
            numbers = [isinstance(argument, (int, float)) for argument in node.args]
            if any(t and n for t, n in zip(tensors, numbers, strict=False)):
                node.target = node.target.overloadpacket.Scalar


inductor_fallback_ops.clear()
config.post_grad_custom_post_pass = use_scalar_overloads
runpy.run_module("torchshare.training.compile_package", run_name="__main__")
