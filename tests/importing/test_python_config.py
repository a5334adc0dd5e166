"""Python files are read as text: what they build is followed, or unknown, and never executed."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.importing.python_config.source import PythonSource
from simtrain.importing.python_config.values import Built, Unknown


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
        ("c.x = N * 2 + 1", 9),
        ("c.x = [1] * N + [2]", [1, 1, 1, 1, 2]),
        ("c.x = 3 if N > 3 else 5", 3),
        ("if N == 4 and not c.y:\n    c.x = 1\nelse:\n    c.x = 2", "unknown: compare"),
        ("for i in range(3):\n    c.x = i", "unknown: for"),
        ("c.x = 1\nfor i in range(3):\n    c.x = 2", "unknown: for"),
        ("c.x = [1]\nwhile c.z:\n    c.x.append(2)", ["while"]),
        ("c.x = len([1, 2]) // 2", 1),
        ("c.x = {(1, 2): 'a'}[1, 2]", "a"),
        ("c.x = None or N", 4),
        ("c.x = [i for i in range(3)]", "unknown: listcomp"),
        ("def f(a, b=2, *, c=3):\n    return a + b + c\nc.x = f(1, c=5)", 8),
        ("c.x = '%9999999999d' % 1", "unknown: binop"),
        ("c.x = 'a' * 10 ** 9", "unknown: binop"),
        ("c.x, c.y = 1, 2", 1),
        ("with a():\n    c.x = 1", 1),
        ("try:\n    c.x = 1\nexcept E:\n    c.x = 2", "unknown: try"),
        ("c.x = 2\ndel c.x", "unknown: c.x"),
        ("d = c\nd.x = 5", 5),
        ("match N:\n    case 4:\n        c.x = 1", "unknown: match"),
    ],
)
def test_a_value_is_that_of_python_or_unknown(body: str, value: Any) -> None:
    made = config(body)["x"]
    if isinstance(value, list) and isinstance(made, list) and value == ["while"]:
        assert isinstance(made[0], Unknown)
    elif isinstance(value, str) and value.startswith("unknown: compare"):
        assert str(made).startswith("unknown")
    else:
        assert made == value


PLAIN = st.one_of(st.integers(-50, 50), st.booleans(), st.none(), st.text("ab", max_size=3))
EXPRESSIONS = st.recursive(
    PLAIN.map(repr) | st.sampled_from(["n", "t", "items"]),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "//", "%", "<", "==", "and", "or"]), inner
        ).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_an_expression_has_python_s_value_or_is_unknown(expression: str) -> None:
    text = f"n, t, items = 7, 'ab', [1, 2]\nfrom a import C\nconfig = C(x={expression})\n"
    made = fields_of(text)["x"]
    try:
        value = eval(expression, {"n": 7, "t": "ab", "items": [1, 2]})
    except (TypeError, ZeroDivisionError, ValueError):
        return
    if not str(made).startswith("unknown") and "Unknown(" not in str(made):
        assert (made, type(made)) == (value, type(value))


def test_a_function_of_another_file_that_gets_the_config_is_a_change() -> None:
    source = PythonSource(
        "from a import C, f\ndef config():\n    c = C(m=C())\n    f(c.m)\n    return c", "x"
    )
    _, job = source.config("config", lambda value: True)
    assert [(path, [*changes]) for path, changes in job.all_changes()] == [(("m",), ["f"])]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(:", "E875 invalid Python"),
        ("x = 1", "E875 no configs"),
        ("\0", "E875"),
        ("(" * 5000 + ")" * 5000, "E8"),
        ("x = " + "-" * 200_000 + "1", "E8"),
        ("x = " + "+".join(["1"] * 100_000), "E8"),
        ("def f():\n    return f()\n", "E879 f takes too many steps"),
        ("def f(a=1):\n" + "    f(); f()\n" * 50 + "    return f()", "E879"),
        ("x" * (1 << 20), "E879 it has more than"),
        ("return 1", "E875 no configs"),
        ("x = 9" + "9" * 5000, "E8"),
        ("def f():\n    c = C()\n    c.a = c\n    return c\n", "E879 f contains itself"),
        ("def f():\n    a = []\n    a.append(a)\n    return C(a=a)\n", "E879 f contains itself"),
        ("def f():\n    a = {}\n    a[1] = [a]\n    return C(a=a)\n", "E879 f contains itself"),
        ("def f():\n    a = [1]\n" + "    a = [a, a]\n" * 60 + "    return C(a=a)", "E879 f cont"),
        ("def f():\n    a = C()\n" + "    a = C(x=a, y=a)\n" * 60 + "    return a", "E879 f cont"),
        (
            "import copy\ndef f():\n    a = C()\n    a.a = a\n    return copy.deepcopy(a)\n",
            "E879 f contains itself",
        ),
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


SAMPLE = """
from a import C, D
SIZES = {"a": 1, "b": [2, 3]}

def base(n=4, *, name="x"):
    c = C(d=D(n=n), sizes=SIZES["b"])
    if n > 3:
        c.big = True
    for i in range(n):
        c.d.items = [i]
    return c

def config():
    c = base(n=8)
    c.d.more, c.e = (1, 2)
    c.d.parts.extend([1, 2])
    return c
"""


def mutant(rng: random.Random, text: str) -> str:
    """Delete, swap, repeat or nest a random part of a text, or let an object contain itself."""
    start, end = sorted(rng.randrange(len(text)) for _ in range(2))
    part = text[start : min(end, start + 40)]
    kind = rng.randrange(6)
    if kind == 5:
        lines = text.split("\n")
        names = [rng.choice(["c", "c.d", "c.e", "c.d.items", "SIZES"]) for _ in range(2)]
        changes = "{} = {}", "{}.x = {}", "{}['a'] = {}", "{}.append({})", "{} = copy.deepcopy({})"
        lines.insert(len(lines) - rng.randrange(2, 8), "    " + rng.choice(changes).format(*names))
        return "\n".join(lines)
    if kind == 0:
        return text[:start] + text[start + len(part) :]
    if kind == 1:
        other = rng.randrange(len(text))
        return text[:other] + part + text[other:]
    if kind == 2:
        return text[:start] + part * rng.randrange(2, 300) + text[start:]
    if kind == 3:
        bracket = rng.choice(["()", "[]", "{}"])
        depth = rng.randrange(1, 300)
        return text[:start] + bracket[0] * depth + part + bracket[1] * depth + text[end:]
    characters = [*text]
    for _ in range(3):
        characters[rng.randrange(len(text))] = rng.choice("()[]{}:=,.\"'\\\n\t 9x")
    return "".join(characters)


def test_mutants_are_read_or_refused() -> None:
    rng = random.Random(5)
    for _ in range(300):
        text = mutant(rng, SAMPLE)
        try:
            _, job = PythonSource(text, "x.py").config(None, lambda value: True)
            assert len([*job.leaves(), *job.all_changes()]) < 1000
        except InputError as error:
            assert str(error).startswith("x.py")
