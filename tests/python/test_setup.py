"""The build's switches, and scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def configure(
    tmp_path: Path, cuda: str, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [
        *prefix,
        "cmake",
        "-S",
        ROOT,
        "-B",
        tmp_path,
        f"-DTORCHSHARE_PYTHON={sys.executable}",
        f"-DTORCHSHARE_CUDA={cuda}",
    ]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def without_nvcc(tmp_path: Path) -> dict[str, str]:
    """An environment that looks like a machine without a CUDA toolkit."""
    folders = [f for f in os.environ["PATH"].split(":") if not (Path(f) / "nvcc").exists()]
    return {"PATH": ":".join(folders), "CUDA_PATH": "", "CUDA_HOME": "", "CUDAToolkit_ROOT": str(tmp_path / "none")}


def test_cuda_off_is_printed_and_needs_no_toolkit(tmp_path: Path):
    done = configure(tmp_path, "OFF")
    assert done.returncode == 0, done.stderr
    assert "torchshare: CUDA off, as asked (TORCHSHARE_CUDA=OFF)" in done.stdout


def test_cuda_on_without_nvcc_fails_with_the_reason(tmp_path: Path):
    if Path("/usr/local/cuda").exists():
        hide = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs none "$(readlink -f /usr/local/cuda)" && exec "$@"',
            "-",
        ]
        if subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
            pytest.skip("the CUDA toolkit of this machine cannot be hidden without root")
    else:
        hide = []
    done = configure(tmp_path, "ON", tuple(hide), **without_nvcc(tmp_path))
    assert done.returncode != 0
    assert "TORCHSHARE_CUDA=ON, but there is no nvcc" in done.stderr


def test_a_wrong_cuda_switch_is_refused():
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHSHARE_CUDA": "maybe"},
    )
    assert "TORCHSHARE_CUDA must be ON, OFF or AUTO, got 'maybe'" in done.stderr


def test_missing_prerequisites_are_one_line_with_the_command(tmp_path: Path):
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "check_prerequisites.sh", "test"],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path), "CXX": "no-such-compiler", "PYTHON3": sys.executable},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "missing: a C++ compiler, CMake, GoogleTest. Install with: sudo apt-get install -y g++ cmake"
    )


def test_each_torch_has_its_own_environment_and_build_folder():
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}  # such as of `make test TORCH=2.11.0`
    environment = {name: value for name, value in os.environ.items() if name not in outer}

    def commands(*arguments: str) -> str:
        done = subprocess.run(
            ["make", "-nB", f"PYTHON3={sys.executable}", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    other = commands("test-cpp", "TORCH=2.99.1")
    assert "sed 's/^torch==[^;]*/torch==2.99.1/' requirements.txt > .venv-2.99.1/requirements.txt" in other
    assert ".venv-2.99.1/bin/python -m pip install" in other
    assert f"ctest --test-dir build/{sys.implementation.cache_tag}-torch-2.99.1 " in other
    default = commands("test-cpp")
    assert f"ctest --test-dir build/{sys.implementation.cache_tag} " in default and "2.99.1" not in default


def test_a_build_replaces_the_modules_of_another_torch_even_newer_ones(tmp_path: Path):
    for name in ("setup.py", "pyproject.toml", "README.md", "torchshare/__init__.py", "torchshare/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    module = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    (tmp_path / "torchshare" / module).write_text("of another torch")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cmake").write_text(f"""#!{sys.executable}
import os, sys
from pathlib import Path

if "--install" in sys.argv:  # a module that was built before the other one
    for name in ("{module}", "{module.replace("_core", "_C")}"):
        built = Path(sys.argv[sys.argv.index("--prefix") + 1], name)
        built.parent.mkdir(parents=True, exist_ok=True)
        built.write_text("of this torch")
        os.utime(built, (0, 0))
""")
    (tools / "cmake").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "torchshare" / module).read_text() == "of this torch"


def test_a_build_folder_notices_that_another_torch_was_installed(tmp_path: Path):
    package = tmp_path / "torch"
    (package / "include/torch/csrc/api/include").mkdir(parents=True)
    (package / "__init__.py").write_text("from .version import __version__\nfrom . import version\n")

    def configured_with(version: str, installed: int) -> str:
        (package / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
        os.utime(package / "version.py", (installed, installed))
        done = configure(tmp_path / "build", "OFF", PYTHONPATH=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"torch 2.98.0 at {package}" in configured_with("2.98.0", 1_000_000_000)
    assert f"torch 2.99.0 at {package}" in configured_with("2.99.0", 1_000_000_001)
