"""The stubs of the C++ modules match the modules."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import torchshare
from torchshare import _C, _core


def stub_members(name: str) -> dict[str, set[str]]:
    """Names per class of a stub; functions and aliases under ''."""
    tree = ast.parse((Path(torchshare.__file__).parent / f"{name}.pyi").read_text())
    members: dict[str, set[str]] = {"": set()}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            functions = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            methods = {name for name in functions if not name.startswith("_")}
            fields = {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
            members[node.name] = methods | fields
        elif isinstance(node, ast.FunctionDef):
            members[""].add(node.name)
    return members


def module_members(module: ModuleType) -> dict[str, set[str]]:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    members = {name: {key for key in vars(cls) if not key.startswith("_")} for name, cls in classes.items()}
    return {"": public.keys() - classes.keys(), **members}


@pytest.mark.parametrize("module", [_C, _core])
def test_stub_and_module_list_the_same_names(module: ModuleType):
    assert stub_members(module.__name__.rpartition(".")[2]) == module_members(module)


def test_every_public_name_is_there():
    assert all(hasattr(torchshare, name) for name in torchshare.__all__)
