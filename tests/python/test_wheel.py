"""The sdist, the wheel that is built from it, and the wheel in an environment in which there is only torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import torch
from conftest import Shared
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def requirements(name: str, extras: Iterable[str] = ()) -> list[Requirement]:
    """What an installed package asks for, with these extras."""
    found = map(Requirement, metadata.requires(name) or [])
    return [
        each
        for each in found
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


OURS = {each.name for each in requirements("torchshare")} - {"torch"}


@pytest.fixture(scope="module")
def sdist(shared: Shared) -> Path:
    def make(folder: Path) -> None:
        run(sys.executable, "setup.py", "egg_info", "--egg-base", folder, "sdist", "--dist-dir", folder, cwd=ROOT)

    (path,) = shared.folder("sdist", make).glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, shared: Shared) -> Path:
    """Built from nothing, with what ccache has from the build of this package (see conftest.cache)."""
    changed = ("TORCHSHARE_BUILD_DIR", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in changed}

    def make(folder: Path) -> None:
        options = ["--no-build-isolation", "--no-deps", "--wheel-dir", folder]
        run(sys.executable, "-m", "pip", "wheel", *options, sdist, env=environment, cwd=folder)

    (path,) = shared.folder("wheel", make).glob("*.whl")
    return path


def make_with_torch_alone(folder: Path) -> None:
    """Makes a virtual environment with links to the files of this one's torch and of what torch needs, but not of what
    torchshare asks for, too. Its folders are its own, except those of bytecode: pip would install through a link
    into this environment."""
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    missing, linked, caches = [Requirement("torch")], set(), dict[Path, Path]()
    while missing:
        package = missing.pop()
        linked.add(package.name)
        for file in metadata.files(package.name) or []:
            link, source = site / file, Path(str(file.locate()))
            if file.parts[0] not in ("..", "bin", "__pycache__") and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(source)
                caches[link.parent] = source.parent
        missing += [each for each in requirements(package.name, package.extras) if each.name not in OURS | linked]
    for own, others in caches.items():  # without their bytecode, each environment would compile torch's 2,500 files
        cache, bytecode = own / "__pycache__", others / "__pycache__"
        if own != site and own.name != cache.name and bytecode.exists() and not cache.exists():
            cache.symlink_to(bytecode)


def oldest() -> list[str]:
    """The oldest versions of what torchshare asks for that torch allows, too."""
    lowest: dict[str, Version] = {}
    for each in (*requirements("torchshare"), *requirements("torch")):
        for bound in each.specifier:
            if each.name in OURS and bound.operator == ">=":
                lowest[each.name] = max(Version(bound.version), lowest.get(each.name, Version("0")))
    return [f"{name}=={version}" for name, version in lowest.items()]


@pytest.fixture(scope="module", params=["newest", "oldest"])
def python(request: pytest.FixtureRequest, wheel: Path, shared: Shared) -> Path:
    """The interpreter of an environment with the wheel, and with the newest or the oldest versions of what it asks
    for."""

    def make(folder: Path) -> None:
        make_with_torch_alone(folder)
        (folder / "oldest.txt").write_text("\n".join(oldest()))
        options = ["--no-compile", "--disable-pip-version-check"]
        options += ["-c", "oldest.txt"] if request.param == "oldest" else []
        run(folder / "bin" / "python", "-m", "pip", "install", *options, wheel, cwd=folder)

    return shared.folder(f"with_{request.param}", make) / "bin" / "python"


def in_environment(python: Path, *arguments: object, folder: Path) -> str:
    """What a command of an environment prints that has no other programs, such as a compiler."""
    command = [python.parent / arguments[0], *arguments[1:]]
    environment = {"PATH": str(python.parent), "HOME": str(folder), "LC_ALL": "C.UTF-8", "COLUMNS": "200"}
    return run(*command, cwd=folder, env=environment)


with_newest = pytest.mark.parametrize("python", ["newest"], indirect=True)


def test_the_sdist_has_all_sources(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", "csrc", "cmake", "torchshare", "CMakeLists.txt", "setup.py", "LICENSE", cwd=ROOT)
    assert set(tracked.split()) - names == set()


def test_the_wheel_names_its_torch_its_python_and_its_commit(wheel: Path) -> None:
    here = re.escape(torch.__version__.partition("+")[0])
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    commit = run("git", "rev-parse", "--short=7", "HEAD", cwd=ROOT).strip()
    version = rf"[\d.]+(\.dev\d+)?\+g{commit}(\.modified)?\.torch{here}"
    assert re.fullmatch(rf"torchshare-{version}-{tag}-{tag}-\w+\.whl", wheel.name)


def test_the_wheel_names_no_folder_of_this_machine_and_is_stripped(wheel: Path, tmp_path: Path) -> None:
    folders = [ROOT, wheel.parent, Path.home(), sys.prefix, sys.base_prefix, Path(torch.__file__).parent, "/tmp/pip-"]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [
        (path.name, str(folder)) for path in files for folder in folders if f"{folder}".encode() in path.read_bytes()
    ] == []
    modules = [path for path in files if path.name.endswith(sysconfig.get_config_var("EXT_SUFFIX"))]
    libraries = [path for path in files if path.suffix == ".a"]
    assert len(modules) == len(libraries) == 2
    for path in [*modules, *libraries]:
        assert ".debug_" not in run("readelf", "--section-headers", "--wide", path)
    for path in modules:
        assert ".symtab" not in run("readelf", "--section-headers", "--wide", path)


def test_doctor(python: Path, wheel: Path, tmp_path: Path) -> None:
    printed = in_environment(python, "torchshare", "doctor", folder=tmp_path)
    assert torch.__version__ in printed and wheel.name.split("-")[1] in printed


def test_two_scripts_run(python: Path, tmp_path: Path) -> None:
    vision, text = SCRIPTS / "vision" / "train.py", SCRIPTS / "text" / "train.py"
    command = [f"vision={vision} --epochs 1", f"text={text} --steps 20"]
    options = ["--report", "out.html", "--metrics-port", "0"]
    lines = in_environment(python, "torchshare", "run", *options, *command, folder=tmp_path).splitlines()
    rows = [line.split()[:3] for line in lines if re.match(r"(vision|text) +\w+ary ", line)]
    assert rows == [["vision", "primary", "finished"], ["text", "secondary", "finished"]]
    assert "<svg" in (tmp_path / "out.html").read_text()


def test_a_trace_is_simulated(python: Path, tmp_path: Path) -> None:
    in_environment(python, "torchshare", "simulate", "--generate", "20", "--plot", "out.png", folder=tmp_path)
    assert (tmp_path / "out.png").stat().st_size > 0


@with_newest
def test_a_cpp_program_is_built_with_the_wheel(python: Path, tmp_path: Path) -> None:
    prefix = in_environment(python, "torchshare", "--cmake-prefix", folder=tmp_path).strip()
    run("cmake", "-S", ROOT / "examples" / "cpp", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert len(run(tmp_path / "build" / "pair").splitlines()) == 2


@with_newest
def test_pip_knows_the_extra_for_ray(python: Path, wheel: Path, tmp_path: Path) -> None:
    wanted = f"torchshare[ray] @ {wheel.as_uri()}"
    printed = in_environment(python, "python", "-m", "pip", "install", "--dry-run", wanted, folder=tmp_path)
    assert re.search(r"Would install .*\bray-\d", printed)
