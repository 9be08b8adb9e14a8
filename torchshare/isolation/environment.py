"""The environment that each script has of its own, and each job of a cluster with several ranks or of an array."""

from __future__ import annotations

import getpass
import logging
import os
from typing import Any

from torchshare.context import current
from torchshare.isolation.table import Table

log = logging.getLogger("torchshare")

TABLE = Table()
_READ_AT_START = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_JIT",
    "TORCH_COMPILE_DISABLE",
)
_FROM_TORCH_TO_C = "_TORCHINDUCTOR_"
"""The prefix of variables by which Inductor passes addresses to the code that it has compiled."""


def name_user() -> None:
    """A uid without a passwd entry, as in a container, has no name. torch needs one for Inductor's cache, and fails to
    import dynamo, which every optimizer needs: names the user by the uid."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.getuid())


class _Environ(os._Environ):  # type: ignore[type-arg]  # not subscriptable in Python 3.10
    """os.environ: the changes of a script, or of a job with an environment of its own, are its own, and those of the
    processes that it starts."""

    @property
    def _data(self) -> Any:
        own = current.environ()
        return self.__dict__["_data"] if own is None else own

    def __setitem__(self, key: str, value: str) -> None:
        own, job = current.environ(), current.job()
        if own is None:
            super().__setitem__(key, value)
            return
        name, text = os.fsencode(key), os.fsencode(value)
        if key in _READ_AT_START and own.get(name) != text and job is not None:
            log.warning(
                "job '%s': setting %s has no effect on the job, because torch has read it already; set it for "
                "`torchshare run`",
                job.name,
                key,
            )
        own[name] = text
        if key.startswith(_FROM_TORCH_TO_C):
            os.putenv(key, value)

    def __delitem__(self, key: str) -> None:
        own = current.environ()
        if own is None:
            super().__delitem__(key)
            return
        try:
            del own[os.fsencode(key)]
        except KeyError:
            raise KeyError(key) from None


_WHY = (
    "Changes of a script, or of a job with an environment of its own, are its own, and those of the processes that it "
    "starts."
)
TABLE.value("os:environ", "__class__", why=_WHY)(lambda _: _Environ)
