"""The stub of _C says what the module has."""

import ast
from pathlib import Path

import torchshare
from torchshare import _C


def stub_members() -> dict[str, set[str]]:
    """Names per class of _C.pyi; functions and aliases under ''."""
    tree = ast.parse((Path(torchshare.__file__).parent / "_C.pyi").read_text())
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


def module_members() -> dict[str, set[str]]:
    public = {name: value for name, value in vars(_C).items() if not name.startswith("_")}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    members = {name: {key for key in vars(cls) if not key.startswith("_")} for name, cls in classes.items()}
    return {"": public.keys() - classes.keys(), **members}


def test_stub_and_module_list_the_same_names():
    assert stub_members() == module_members()


def test_every_public_name_is_there():
    assert all(hasattr(torchshare, name) for name in torchshare.__all__)
