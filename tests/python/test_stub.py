"""The stubs of the C++ modules match the modules."""

import ast
import functools
import re
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


Signature = tuple[list[str], str]
"""The names of the arguments, and the type of what is returned."""


def stub_signatures(name: str) -> dict[str, Signature]:
    """Signatures by "function" or "Class.method"; a field is a function without arguments."""
    tree = ast.parse((Path(torchshare.__file__).parent / f"{name}.pyi").read_text())
    found = {}
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef):
                arguments = [each.arg for each in (*node.args.args, *filter(None, [node.args.vararg]))]
                found[prefix + node.name] = [each for each in arguments if each != "self"], ast.unparse(node.returns)
            elif isinstance(node, ast.AnnAssign) and prefix:
                found[prefix + ast.unparse(node.target)] = [], ast.unparse(node.annotation)
    return found


def bound_signature(function: object) -> Signature | None:
    """What pybind11 says of a function or a property; None if it is written only."""
    is_field = isinstance(function, property)
    text = (function.fget if is_field else function).__doc__
    if text is None:
        return None
    arguments, _, result = text.strip().rpartition(") -> ")
    names = re.findall(r"(?:^|, )\*?(\w+)(?=[:,]|$)", re.sub(r"\[.*?\]+", "", arguments.partition("(")[2]))
    result = re.sub(r"\b(torchshare\._C|torchshare\._core|collections\.abc|typing)\.", "", result)
    return [] if is_field else [name for name in names if name != "self"], result


@pytest.mark.parametrize("module", [_C, _core])
def test_the_stub_has_the_arguments_and_results_of_the_module(module: ModuleType):
    """Where pybind11 does not know the items of a list or dict, only the kind is compared."""
    stub = stub_signatures(module.__name__.rpartition(".")[2])
    assert len(stub) > 50
    for name, (arguments, result) in stub.items():
        function = functools.reduce(getattr, name.split("."), module)
        bound = bound_signature(function)
        if bound is not None:
            known = result.partition("[")[0] if bound[1] in ("list", "dict") else result
            assert (name, arguments, known) == (name, *bound)


@pytest.mark.parametrize("module", [_C, _core])
def test_stub_and_module_list_the_same_names(module: ModuleType):
    assert stub_members(module.__name__.rpartition(".")[2]) == module_members(module)


def test_every_public_name_is_there():
    assert all(hasattr(torchshare, name) for name in torchshare.__all__)
