"""Runs CMake once for the C++ extensions; everything else is in pyproject.toml.

Environment: TORCHSHARE_CUDA=ON|OFF|AUTO (default AUTO), TORCHSHARE_BUILD_DIR (default build/<python's tag>).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
MODULES = ["torchshare._C", "torchshare._core"]
OLDEST, NEWEST = (3, 10), (3, 13)


class CMakeBuild(build_ext):
    """Configures and builds in a persistent folder, so that builds are incremental."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True  # setuptools would keep a module in torchshare/ that is newer, such as another torch's

    def build_extension(self, extension: Extension) -> None:
        if extension.name != MODULES[0]:
            return  # one CMake build makes all extensions
        cuda = os.environ.get("TORCHSHARE_CUDA", "AUTO")
        if cuda not in ("ON", "OFF", "AUTO"):
            sys.exit(f"TORCHSHARE_CUDA must be ON, OFF or AUTO, got '{cuda}'")
        build = Path(os.environ.get("TORCHSHARE_BUILD_DIR", ROOT / "build" / sys.implementation.cache_tag))
        if shutil.which("ninja"):
            os.environ.setdefault("CMAKE_GENERATOR", "Ninja")  # for a new build folder; an existing one keeps its own
        target = Path(self.get_ext_fullpath(extension.name)).resolve().parent
        self._run("-S", ROOT, "-B", build, f"-DTORCHSHARE_PYTHON={sys.executable}", f"-DTORCHSHARE_CUDA={cuda}")
        self._run("--build", build, "--target", "python_modules", "--parallel", os.cpu_count() or 1)
        self._run("--install", build, "--component", "python", "--prefix", target)

    @staticmethod
    def _run(*arguments: object) -> None:
        code = subprocess.run(["cmake", *map(str, arguments)]).returncode
        if code != 0:
            sys.exit(code)  # CMake has printed the error


if not OLDEST <= sys.version_info[:2] <= NEWEST:
    sys.exit(f"torchshare needs Python 3.10 to 3.13, this is {sys.version.split()[0]}")
setup(ext_modules=[Extension(name, sources=[]) for name in MODULES], cmdclass={"build_ext": CMakeBuild})
