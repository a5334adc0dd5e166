"""Python files are read as text: what they build is followed, or unknown, and never executed."""

import contextlib
import random
import re
import sys
import types
import unittest.mock
from pathlib import Path
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.importing.torchtitan.python_config import Built, PythonSource, Unknown


def fields_of(text: str, name: str = "config") -> dict[str, Any]:
    """Return the plain fields of an object of a file; an unknown value is its reason."""
    _, job = PythonSource(text, "x.py").config(name, lambda value: True)
    return {
        ".".join(path): f"unknown: {value.text}" if isinstance(value, Unknown) else value
        for path, value, _ in job.leaves()
        if not isinstance(value, Built)
    }


def config(body: str) -> dict[str, Any]:
    """Return the fields after the lines of a function."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return fields_of(
        f"from a import C\n\nN = 4\n\ndef config():\n    c = C()\n{lines}\n    return c\n"
    )


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("c.x = [1] * N + [2]", [1, 1, 1, 1, 2]),
        ("if not N == 5:\n    c.x = 1\nelse:\n    c.x = 2", 1),
        ("c.x = {'a': N, 'b': [1, 2]}", {"a": 4, "b": [1, 2]}),
        ("def f(a, b=2, *, c=3):\n    return a + b + c\nc.x = f(1, c=5)", 8),
        ("def f():\n    c.x = 7\nf()", 7),
        ("n = 1\ndef f(m=n):\n    return m\nn = 2\nc.x = f()", 1),
        ("d = c\nd.x = 5", 5),
    ],
)
def test_the_subset_has_the_values_of_python(body: str, value: Any) -> None:
    assert config(body)["x"] == value


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("c.x = 1 if c.y else 2", "c.y"),
        ("c.x = len([c])", "len([c])"),
        ("c.x = 'a' * 3", "'a' * 3"),
        ("c.x = f'{N}'", "f'{N}'"),
        ("c.x = [i for i in range(3)]", "[i for i in range(3)]"),
        ("c.x = lambda: 1", "lambda: 1"),
    ],
)
def test_another_expression_is_unknown_and_says_so(body: str, cause: str) -> None:
    assert config(body)["x"] == f"unknown: {cause}"


@pytest.mark.parametrize(
    "statement",
    [
        "for i in range(3):\n    c.x = i",
        "while c.z:\n    c.x = 2",
        "with a():\n    c.x = 1",
        "try:\n    c.x = 1\nexcept E:\n    c.x = 2",
        "if c.y:\n    c.x = 2",
        "del c.x",
        "c.x += 1",
        "c.x = copy.deepcopy(c.m)",
        "c.x = [c.m for i in range(3)]",
        "setattr(c.m, 'x', 1)",
        "c.x = [1]\nc.x.append(2)",
        "f([c])",
    ],
)
def test_a_config_with_a_statement_that_is_not_read_names_its_line(statement: str) -> None:
    with pytest.raises(InputError, match=r"x\.py:\d+:\d+: E874 config depends on .*, which is not"):
        config(statement)


def test_statements_of_a_module_that_change_no_object_are_passed_over() -> None:
    text = "try:\n    from a import C\nexcept ImportError:\n    C = None\nclass K:\n    x = 1\n"
    text += "for k in sizes():\n    N = k\nfrom a import D\n"
    text += "if __name__ == '__main__':\n    config()\ndef config():\n    return D(x=N, y=2)\n"
    assert fields_of(text) == {"x": "unknown: for k in sizes()", "y": 2}
    with pytest.raises(
        InputError, match=r"x\.py:2:1: E874 the file depends on for k in \[config\]"
    ):
        fields_of("config = C(x=1)\nfor k in [config]:\n    k.x = 2\n")


def test_a_name_that_is_no_config_is_told_those_of_the_file() -> None:
    text = "from a import C\ndef helper():\n    return C(y=1)\ndef config():\n    return C(x=1)\n"
    with pytest.raises(InputError, match=r"E875 helper is no config .*(?s:.*)--config config"):
        PythonSource(text, "x.py").config("helper", lambda value: "x" in value.fields)


def test_configs_of_a_file_do_not_change_each_other() -> None:
    text = "from a import C\nBASE = C(x=1)\ndef a():\n    BASE.x = 2\n    return BASE\n"
    text += "def config():\n    return BASE\n"
    source = PythonSource(text, "x.py")
    values = [source.config(name, lambda value: True)[1].fields["x"] for name in ("a", "config")]
    assert values == [2, 1]


STATEMENTS = """
c.x = 1 | c.x = n | n = 2 | n = c.x | c.m.x = 3 | p = c.m | p.x = 4 | p = c | c.m = C(x=n) | del n
items = [c.m, p] | items = [*items, p] | items.append(p) | p = items[0] | c.items = items
n += 1 | n = n + 1 | m = n | c.x = m * 2 - 1 | items += [p] | items[0] = c.m
p = c.m if flag() else c | n = flag() and 5 | n = len(items) | p = copy.copy(c.m) | n = (n := 7) + 1
if flag():; if n == 2:; for p in [*items]:; for n in range(2):; while flag():; with lock():; try:
def f():; def f(p=c.m, n=n):; class K: | f() | p = f() | return p | change(p) | change(*items)
[change(i) for i in [*items]] | g = lambda: change(c.m)
g() | p, n = c.m, 9 | n, *items = [3, c.m, p]
setattr(p, "x", 8) | global n | k = dict(x=n) | k["x"] = 6 | n = k["x"] | c.k = k | c.x = max(n, 3)
match n:\n case 2: | match n:\n case m: | p.x = p.x + 1 | items = items * 2 | f(p) | f(n=4)
"""


def random_program(rng: random.Random) -> str:
    """Return a function that changes an object in ways of and outside of the subset."""
    choices = [each.strip() for each in re.split(r"[|;\n](?!\s*case)", STATEMENTS) if each.strip()]
    lines, depth = (
        ["n = m = 0", "c = C(x=0, m=C(x=0))", "p = c.m", "f = g = C", "items = [p]"],
        1,
    )
    for _ in range(rng.randrange(1, 14)):
        depth = rng.randrange(1, depth + 1)
        statement = rng.choice(choices).replace("\\n", "\n" + " " * depth)
        lines.append(" " * (depth - 1) + statement)
        if statement.endswith(":"):
            depth += 1 + statement.startswith("match")
            lines.append(" " * (depth - 1) + rng.choice(["pass", "c.m.x = 5", "n = 6", "p.x = 7"]))
        if statement == "try:":
            depth -= 1
            lines.append(" " * (depth - 1) + "except ValueError: n = 8")
    body = "\n".join(f" {line}" for line in lines)
    return f"import copy\nfrom a import C, change, flag, lock\ndef config():\n{body}\n return c\n"


class C:
    """An object of another file."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def change(*objects: Any) -> None:
    for each in objects:
        each.x = 99


def outcome(text: str, truths: list[bool]) -> Any:
    """Return what Python makes of a program; `truths` are those of its unknown conditions."""
    module = types.SimpleNamespace(
        C=C, change=change, flag=lambda: truths.pop(), lock=contextlib.nullcontext
    )
    with unittest.mock.patch.dict(sys.modules, {"a": module}):
        names: dict[str, Any] = {}
        exec(text, names)
        return names["config"]()


def test_no_program_has_another_value_than_python_s() -> None:
    rng, num_known = random.Random(7), 0
    for _ in range(600):
        text = random_program(rng)
        try:
            made = outcome(text, rng.choices([True, False], k=30))
        except Exception:  # a random program may be wrong in any way
            continue
        with contextlib.suppress(InputError):
            _, read = PythonSource(text, "x.py").config("config", lambda value: True)
            if isinstance(made, C) and not read.changes:
                num_known += differences_checked(made, read, text)
    assert num_known > 60


def differences_checked(made: Any, read: Built, text: str) -> int:
    """Compare the plain fields of an object and of the objects in it; return how many are known."""
    num_known = 0
    for name, value in read.fields.items():
        python = getattr(made, name, "deleted")
        if isinstance(value, Built) and value.is_object and not value.changes:
            num_known += differences_checked(python, value, text)
        elif isinstance(value, int):
            assert (name, value) == (name, python), text
            num_known += 1
    return num_known


def test_a_function_of_another_file_that_gets_the_config_is_a_change() -> None:
    assert config("c.m = C()\nf(c.m)") == {"m.f": "called"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(:", "E875 invalid Python"),
        ("x = 1", "E875 no configs"),
        ("\0", "E875"),
        ("(" * 5000 + ")" * 5000, "E8"),
        ("x = " + "+".join(["1"] * 100_000), "E8"),
        ("def f():\n    return f()\n", "E879 f takes too many steps"),
        ("x" * (1 << 20), "E879 it has more than"),
        ("x = 9" + "9" * 5000, "E8"),
        ("def f():\n    c = C()\n    c.a = c\n    return c\n", "E879 f takes too many steps"),
        ("def f():\n    a = C()\n" + "    a = C(x=a, y=a)\n" * 60 + "    return a", "E879 f takes"),
    ],
)
def test_extreme_files_are_refused(text: str, code: str) -> None:
    with pytest.raises(InputError, match=code):
        PythonSource(text, "x.py").config(None, lambda value: True)


def test_nothing_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    text = (
        f"import os, pathlib\npathlib.Path({str(marker)!r}).touch()\nos.system('touch {marker}')\n"
    )
    text += f"def config():\n    open({str(marker)!r}, 'w')\n    return C(x=1)\n"
    assert fields_of(text) == {"x": 1}
    assert not marker.exists()
