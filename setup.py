"""Runs CMake once for the C++ extensions, and names the build; everything else is in pyproject.toml.

Environment: TORCHSHARE_CUDA=ON|OFF|AUTO (default AUTO), TORCHSHARE_BUILD_DIR (default build/<python's tag>).
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
MODULES = ["torchshare._C", "torchshare._core"]
OLDEST, NEWEST = (3, 10), (3, 14)


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
        strip = [] if self.editable_mode else ["--strip"]
        package = ROOT / "torchshare" if self.editable_mode else target  # setuptools moves the modules there alone
        for component, folder in [("python", target), ("cpp", package / "cpp")]:
            self._run("--install", build, "--component", component, "--prefix", folder, *strip)

    @staticmethod
    def _run(*arguments: object) -> None:
        if not shutil.which("cmake"):
            sys.exit("torchshare is built with CMake, which is not installed: `pip install cmake` or apt-get has it")
        code = subprocess.run(["cmake", *map(str, arguments)]).returncode
        if code != 0:
            sys.exit(code)  # CMake has printed the error


class TorchsDistribution(Distribution):
    """A build works with the torch that it is made for alone, and asks pip for that one."""

    def parse_config_files(self, *arguments: object, **options: object) -> None:
        super().parse_config_files(*arguments, **options)
        if torch := installed_torch():
            exact = [f"torch=={torch}" if each.startswith("torch>=") else each for each in self.install_requires]
            self.install_requires = self.metadata.install_requires = exact


def installed_torch() -> str | None:
    """The version that the build is for, without a local part such as "+cu130"; None for an sdist."""
    try:
        return None if "sdist" in sys.argv else metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """Such as "g4876704", with ".modified" if the working tree is. An sdist has it in its own version."""
    if (ROOT / "PKG-INFO").exists():
        found = re.search(r"^Version: .*\+(\S+)$", (ROOT / "PKG-INFO").read_text(), re.M)
        return found and found[1]
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=.modified"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return f"g{done.stdout.strip()}" if done.returncode == 0 else None


def version() -> str:
    """Such as "0.2.0+g4876704.torch2.11.0"."""
    release = re.search(r'^RELEASE = "(.*)"', (ROOT / "torchshare" / "version.py").read_text(), re.M)[1]
    torch = installed_torch()
    local = ".".join(filter(None, [commit(), torch and f"torch{torch}"]))
    return f"{release}+{local}" if local else release


if not OLDEST <= sys.version_info[:2] <= NEWEST:
    sys.exit(f"torchshare needs Python 3.10 to 3.14, this is {sys.version.split()[0]}")
setup(
    version=version(),
    distclass=TorchsDistribution,
    ext_modules=[Extension(name, sources=[]) for name in MODULES],
    cmdclass={"build_ext": CMakeBuild},
)
