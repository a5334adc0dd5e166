"""Private places of torch: one table that holds for the installed torch, and no other module."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from simtrain.guests.recording.child import torch_internals
from simtrain.guests.recording.child.problems import Unrecordable
from simtrain.guests.recording.child.torch_internals import PLACES

NAMES = [(place, name) for place in PLACES for name in place.names]


def release(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(".")[:2])


def test_each_place_is_there_in_its_releases_alone() -> None:
    installed = release(torch.__version__)
    for place, name in NAMES:
        is_within = release(place.since) <= installed <= release(place.until)
        assert place.has(name) == is_within, name
        assert place.why and bool(place.stand_in) == place.how.startswith("replace"), name
    assert len({name.lstrip("_") for _, name in NAMES}) == len(NAMES)


def test_a_place_that_is_gone_is_named_or_done_without() -> None:
    for place, name in NAMES:
        gone = replace(place, owner="torch.no_such_module")
        if place.otherwise:
            found = gone.find(name)
            assert (found(object()) if place.how == "read" else found) is None, name
            continue
        with pytest.raises(Unrecordable, match=re.escape(torch.__version__)) as caught:
            gone.find(name)
        assert name in caught.value.why and place.since in caught.value.fix


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private attributes and modules of others that a module names."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            names = [] if owner in ("self", "cls", "os", "torch.ops.aten") else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(each.name for each in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getattr"):
            names = [str(ast.literal_eval(x)) for x in node.args if isinstance(x, ast.Constant)]
        yield from (name for name in names if name[:1] == "_" != name[1:2])


def test_no_other_module_names_a_private_place() -> None:
    table = Path(str(torch_internals.__file__))
    for file in {*table.parent.glob("*.py")} - {table}:
        assert not [*private_names(ast.parse(file.read_text("utf-8")))], file
    assert len([*private_names(ast.parse("from torch._C import a; getattr(a, '_b')._c"))]) == 3
