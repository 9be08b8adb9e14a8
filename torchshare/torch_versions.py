"""What differs between the versions of torch, and the private names of torch that torchshare uses.

No other module of torchshare asks for torch's version, and tests/python/test_torch_versions.py fails for a private name
that is used and not listed here, or listed and gone. In C++, the counterpart is csrc/device/cuda/torch_version.h.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

CHECKED = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""The versions with which the private names were looked up; docs/versions.md says what was tested with which."""

PRIVATE_NAMES: dict[str, tuple[str, ...]] = dict.fromkeys(
    (
        "torch._C._distributed_c10d.PrefixStore",
        "torch._C._distributed_c10d.TCPStore",
        "torch._C._distributed_c10d._unregister_process_group",
        "torch._C._dispatch_get_all_op_names",
        "torch._C._get_fp32_precision_getter",
        "torch._C._set_cpu_allow_fp16_reduced_precision_reduction",
        "torch._C._set_deterministic_algorithms",
        "torch._decomp.decompositions._rnn_helper",
        "torch._decomp.decompositions.gather_params",
        "torch._decomp.decompositions.one_layer_lstm",
        "torch._disable_dynamo",
        "torch._dispatch.python.enable_python_dispatcher",
        "torch._dynamo.convert_frame.compile_lock",
        "torch._foreach_copy_",
        "torch._foreach_zero_",
        "torch._functorch.config._config",
        "torch._inductor.aoti_compile_and_package",
        "torch._inductor.aoti_load_package",
        "torch._inductor.compile_fx",
        "torch._inductor.config.cpp.vec_isa_ok",
        "torch._inductor.config.deterministic",
        "torch._inductor.cpu_vec_isa.VecISA.check_build",
        "torch._inductor.cudagraph_trees",
        "torch._library",
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch.autograd.Variable._execution_engine.queue_callback",
        "torch.distributed.distributed_c10d._World.pg_map.__get__",
        "torch.distributed.distributed_c10d._world",
        "torch.fx._symbolic_trace._Patcher",
        "torch.fx.experimental.proxy_tensor._MakefxTracer",
        "torch.library._defs",
        "torch.nn.modules.batchnorm._BatchNorm",
        "torch.nn.modules.dropout._DropoutNd",
        "torch.nn.utils.stateless._reparametrize_module",
        "torch.utils._config_module.ConfigModule",
        "torch.utils._config_module._ConfigEntry",
        "torch.utils._pytree.tree_leaves",
        "torch.utils.data.dataloader._BaseDataLoaderIter",
    ),
    CHECKED,
)
"""Each name that no table of torchshare.isolation replaces, and the versions with which it was checked. The functions
of `torch._C` that read and write settings are in isolation/settings.py; opening a runtime looks all of them up."""


CPP_PRIVATE_NAMES = (
    "at::cuda::detail::createCUDAGenerator",
    "at::detail::createCPUGenerator",
    "at::detail::getDefaultCPUGenerator",
    "c10::DispatchKey::DeferredInit",
    "c10::impl::DeviceGuardImplRegistrar",
    "c10::impl::ExcludeDispatchKeyGuard",
    "c10::impl::FakeGuardImpl",
    "c10::impl::device_guard_impl_registry",
    "c10::impl::tls_set_dispatch_key_included",
    "torch::inductor::AOTIModelPackageLoader",
)
"""What csrc/ uses of torch's own namespaces; a build fails where torch lacks one. Checked with the same versions."""


def is_one_of(version: str, versions: str) -> bool:
    """Whether a version is one of those such as ">=2.13,<3"; every one is if that is empty."""
    return not versions or SpecifierSet(versions).contains(version, prereleases=True)


class OtherTorch(ImportError):
    """torchshare was built with another version of torch than the one that is installed."""


def check_build() -> None:
    """Call before `torchshare._C` is loaded: with another torch it may load and crash later. Raises OtherTorch."""
    import torch

    from torchshare import _core

    built = _core.torch_version()
    if built != torch.__version__:
        raise OtherTorch(
            f"torchshare was built with torch {built}, and torch {torch.__version__} is installed. "
            f"Rebuild it: {_rebuild()}"
        )


def _rebuild() -> str:
    root = Path(__file__).resolve().parents[1]
    source = f"-e {root}" if (root / "setup.py").exists() else "--force-reinstall SOURCE_OF_TORCHSHARE"
    return f"{sys.executable} -m pip install --no-build-isolation --no-deps {source}"


def keeps_options_by_context(entry: type[Any]) -> bool:
    """Whether threads do not share `torch._dynamo.config` and the like: torch 2.12 keeps them in context variables,
    torch 2.11 in attributes. `entry` is the class of one option."""
    return not hasattr(entry, "user_override")


def shares_hash_of_options(options: type[Any]) -> bool:
    """Whether threads share the hash of these options, by which compiled code is cached: torch 2.12 keeps one for all,
    torch 2.14 one by context. `options` is the class of `torch._dynamo.config` and the like."""
    return "_is_dirty" in options.__annotations__
