"""The cache of large blocks of CPU memory, outside jobs."""

from __future__ import annotations

from torchshare import _C


def cache_memory(enabled: bool = True) -> None:
    """Also caches large blocks of CPU memory for threads that run no job. In jobs, `cache_memory=` decides.

    glibc returns a large block to the kernel when a tensor is freed (from 128 KiB to 32 MiB, depending on what was
    freed before), and every page of the next one is faulted in again. With this, blocks of 256 KiB and more are kept
    for the next tensors. What is in use and what is cached stay below the peak of the last 20 s plus an eighth (at
    least 32 MiB). Cached memory is returned to the kernel when the system is short of memory (less than 5 % available)
    or an allocation fails.

    Tensors of memory that is not torch's own (`torch.from_numpy`, shared or mapped memory) are not concerned.

    Args:
        enabled: False returns what is cached, and tensors allocated from then on come from malloc again.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled must be True or False, got {enabled!r}")
    _C.cache_memory_of_process(enabled)
