"""JSON text: the same data and places as by the reader of YAML, in a hundredth of its time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.strict_yaml import parse_document
from simtrain.base.strict_yaml.core_schema import build
from simtrain.base.strict_yaml.json_text import read_json
from simtrain.base.strict_yaml.reading import compose
from simtrain.errors import InputError, Location

SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("ab\"\\\n'é:#", max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(st.text("abc ", max_size=3), values, max_size=3)
    ),
    max_leaves=9,
)


def locate(line: int, column: int) -> Location:
    return Location("x.json", line + 1, column + 1)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=4), st.integers(0, 2)
)
def test_json_reads_as_it_does_by_yaml(data: dict[str, object], indent: int) -> None:
    text = json.dumps(data, indent=indent or None, ensure_ascii=indent > 1)
    node = compose(text, locate)
    assert node is not None
    assert read_json(text, locate) == build(node, locate)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ('{"a": 1,\n "a": 2}', "E107", "x.json:2:2"),
        ('{"a": ' + "1" * 500 + "}", "E110", "x.json:1:7"),
        ('{"a": "\\ud800"}', "E106", "x.json:1:7"),
        ('{"a": [' + "1, " * 9000 + "}", "E106", "x.json:1:"),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "E106", "x.json:1:"),
    ],
)
def test_errors_of_json_have_a_place(text: str, code: str, place: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_document(text, "x.json")
    (problem,) = caught.value.problems
    assert problem.code == code
    assert str(problem.location).startswith(place)


def test_tabs_may_indent_json() -> None:
    assert parse_document('{\n\t"a": 1\n}', "x.json").data == {"a": 1}
