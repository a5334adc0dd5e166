import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from simtrain.base.quantities import Bytes
from simtrain.base.strict_yaml import (
    Positions,
    apply_overrides,
    overlay,
    parse_document,
    section,
    validate,
    yaml_text,
)
from simtrain.errors import InputError, Location, Problem


def data_of(text: str) -> dict[str, Any]:
    return parse_document(text, "x.yaml").data


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        parse_document(text, "x.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("312e12", 312e12),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("2.", 2.0),
        ("8", 8),
        ("9" * 400, 10**400 - 1),
        ("-3", -3),
        ("+3", 3),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"),
        ("1f1b", "1f1b"),
        ("0b11", "0b11"),
        ('"8"', "8"),
        ("'true'", "true"),
        ("!!str 8", "8"),
        ("!!int '8'", 8),
        ("80 GiB", "80 GiB"),
        ("[1, two, 3.0]", [1, "two", 3.0]),
        ("{a: 1}", {"a": 1}),
        ("[" * 99 + "]" * 99, json.loads("[" * 99 + "]" * 99)),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(written: str, value: object) -> None:
    parsed = data_of(f"key: {written}\n")["key"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_positions_of_keys_and_values() -> None:
    text = "model:\n  layers: 48\n  sizes: [1, 22]\n  empty:\nlast: {a: b}\n"
    positions = parse_document(text, "x.yaml").positions
    assert positions.of_key(("model",)) == Location("x.yaml", 1, 1, "model:")
    assert positions.of_key(("model", "layers")) == Location("x.yaml", 2, 3, "  layers: 48")
    assert positions.of_value(("model", "layers")) == Location("x.yaml", 2, 11, "  layers: 48")
    assert str(positions.of_value(("model", "sizes", 1))) == "x.yaml:3:14"
    assert str(positions.of_value(("model", "empty"))) == "x.yaml:4:3"
    assert str(positions.of_value(("last", "a"))) == "x.yaml:5:11"


def test_a_missing_key_has_the_place_of_its_section() -> None:
    positions = parse_document("model:\n  layers: 48\n", "x.yaml").positions
    assert positions.of_value(("model", "heads")) == positions.of_key(("model",))
    assert str(positions.of_value(("batch", "micro"))) == "x.yaml:1:1"
    assert ("model", "layers") in positions.places
    assert ("model", "heads") not in positions.places
    assert Positions().of_value(("model",)) is None


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_lines_are_counted_with_any_line_break(line_break: str) -> None:
    text = line_break.join(["a: 1", "b: 2", "a: 3", ""])
    (problem,) = problems_of(text)
    assert problem.location == Location("x.yaml", 3, 1, "a: 3")


def test_all_duplicate_keys_are_reported_with_both_places() -> None:
    first, second = problems_of("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert first.message == "b.c is set twice, first at x.yaml:2:5"
    assert str(first.location) == "x.yaml:2:11"
    assert second.message == "a is set twice, first at x.yaml:1:1"
    assert str(second.location) == "x.yaml:3:1"


def test_anchors_are_refused_without_being_expanded() -> None:
    levels = ["l0: &l0 [x]"] + [
        f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 60)
    ]
    problems = problems_of("\n".join(levels))
    assert {problem.code for problem in problems} == {"E111"}
    assert len(problems) == 60


@pytest.mark.parametrize(
    "nested",
    [
        *("a:" + " [\n" * 3000, "- " * 120_000, "? " * 120_000, "{a: " * 60_000),
        "a: " + "[" * 100 + "]" * 100,  # with the document itself, one more than a hundred
        *("a: &a " + "[" * 250_000, "# " + "]" * 9000 + "\na: " + "[" * 9000),
    ],
)
def test_a_document_nested_too_deeply_is_refused(nested: str) -> None:
    (problem,) = problems_of(nested)
    assert (problem.code, problem.message) == ("E106", "nested too deeply to read")


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ('{"a": 1,\n "a": 2}', "E107", "x.yaml:2:2"),
        ('{"a": ' + "1" * 401 + "}", "E110", "x.yaml:1:7"),
        ('{"a": "\\ud800"}', "E106", "x.yaml:1:"),
        ('{"a": [' + "1, " * 9000 + "}", "E106", "x.yaml:1:"),
        ("a: 1\x00", "E106", "x.yaml:1:5"),
    ],
)
def test_broken_text_has_a_place(text: str, code: str, place: str) -> None:
    (problem,) = problems_of(text)
    assert problem.code == code
    assert str(problem.location).startswith(place)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text("ab\"\\\n'é:#😀", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc "), inner, max_size=3),
    max_leaves=9,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), JSON, max_size=4), st.booleans())
def test_json_is_read_as_it_is_written(data: dict[str, object], escapes: bool) -> None:
    assert data_of(json.dumps(data, indent="\t" if escapes else None, ensure_ascii=escapes)) == data


@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4), st.booleans(), st.booleans())
def test_what_is_written_is_read_as_the_same(
    data: dict[str, Any], line: bool, quoted: bool
) -> None:
    data["a"] = {"b": [1.5, -1e-9, 2e22, "1e5", "0o17", "no", "null", "1:30", "", "~", "- x", "é"]}
    text = yaml_text(data, lambda value: line, lambda text: quoted)
    assert data_of(text) == data


def test_what_is_in_a_line_or_quoted_is_the_callers_choice() -> None:
    data = {"a": "x", "b": {"c": [1, 2.5], "d": ["y"]}, "e": None}
    text = yaml_text(data, lambda value: value == [1, 2.5], lambda text: text == "x")
    assert text == 'a: "x"\nb:\n  c: [1, 2.5]\n  d:\n    - y\ne: null\n'


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`, \n\t01.e?~<=", max_size=40))
def test_any_text_is_a_mapping_or_an_input_error(text: str) -> None:
    try:
        data = data_of(text)
    except InputError as error:
        assert all(problem.location for problem in error.problems)
        assert str(error)
    else:
        assert isinstance(data, dict)


# --- overrides


def test_an_override_sets_a_value_and_is_its_place() -> None:
    document = parse_document("parallelism:\n  tensor: 8\n", "x.yaml")
    changed = apply_overrides(document, ["parallelism.tensor=4", "overlap.pipeline=true"])
    assert changed.data == {"parallelism": {"tensor": 4}, "overlap": {"pipeline": True}}
    place = changed.positions.of_value(("parallelism", "tensor"))
    assert place == Location("--set parallelism.tensor=4")
    assert str(changed.positions.of_key(("parallelism",))) == "x.yaml:1:1"
    assert document.data == {"parallelism": {"tensor": 8}}


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=4", 4),
        ("a.b=no", "no"),
        ("a.b=", None),
        ("a.b=400 Gb/s", "400 Gb/s"),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b={c: 1}", {"c": 1}),
        (" a . b = 4", 4),
        ("a.b=x=y", "x=y"),
    ],
)
def test_values_of_overrides_are_yaml(override: str, value: object) -> None:
    document = apply_overrides(parse_document("z: 1\n", "x.yaml"), [override])
    assert document.data == {"z": 1, "a": {"b": value}}


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("tensor", "E112", 'has no "="'),
        ("=4", "E112", 'the path "" has an empty part'),
        ("a..b=4", "E112", 'the path "a..b" has an empty part'),
        ("name.x=4", "E112", "name is the value 'n', not a section"),
        ("a=[1", "E106", "broken YAML"),
        ("a={b: 1, b: 2}", "E107", "b is set twice"),
    ],
)
def test_a_malformed_override_is_an_input_error(override: str, code: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        apply_overrides(parse_document("name: n\n", "x.yaml"), [override])
    (problem,) = caught.value.problems
    assert problem.code == code
    assert message in problem.message
    assert problem.location == Location(f"--set {override}")
    assert problem.fix


def test_overlay_merges_sections_and_keeps_both_files_positions() -> None:
    base = parse_document("gpu:\n  memory: 80 GiB\n  sms: 108\n", "profile.yaml")
    top = section(parse_document("hardware:\n  gpu: {sms: 132}\n", "x.yaml"), ("hardware",))
    merged = overlay(base, top)
    assert merged.data == {"gpu": {"memory": "80 GiB", "sms": 132}}
    assert str(merged.positions.of_value(("gpu", "sms"))) == "x.yaml:2:14"
    assert str(merged.positions.of_value(("gpu", "memory"))) == "profile.yaml:2:11"


# --- validation with any model


class Link(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    latency: float = Field(gt=0, examples=[2e-6])
    kind: str = "nvlink"


class Profile(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    memory: Bytes = Field(examples=['"80 GiB"'])
    links: dict[str, Link] = {}
    tiers: list[Link] = []
    spare: Link | None = None


def profile_problems(text: str) -> list[str]:
    document = parse_document(text, "p.yaml")
    with pytest.raises(InputError) as caught:
        validate(Profile, document.data, document.positions)
    return [str(problem) for problem in caught.value.problems]


def test_unknown_keys_are_found_inside_mappings_lists_and_optional_sections() -> None:
    text = (
        "memory: 80 GiB\n"
        "links: {a: {latncy: 1.0, latency: 1.0}}\n"
        "tiers: [{latency: 1.0, knd: x}]\n"
        "spare: {latency: 1.0, knd: x}\n"
    )
    first, second, third = profile_problems(text)
    assert first.startswith('p.yaml:2:13: E201 unknown key "latncy" in links.a\n')
    assert second.startswith('p.yaml:3:24: E201 unknown key "knd" in tiers.0\n')
    assert third.startswith('p.yaml:4:23: E201 unknown key "knd" in spare\n')
    assert "fix: did you mean links.a.latency? The keys of links.a are latency, kind" in first
    assert "did you mean tiers.0.kind?" in second
    assert "did you mean spare.kind?" in third


def test_a_missing_field_is_placed_at_its_section() -> None:
    first, second = profile_problems("tiers: []\nlinks:\n  a: {kind: x}\n")
    assert first.startswith("p.yaml:1:1: E202 memory is missing\n")
    assert first.endswith('fix: add memory: "80 GiB" at the top level')
    assert second.startswith("p.yaml:3:3: E202 links.a.latency is missing\n")
    assert second.endswith("fix: add latency: 2e-06 under links.a")


def test_limits_nan_and_wrong_types_are_reported_with_the_value() -> None:
    text = "memory: 80 GiB\ntiers:\n- {latency: -1.0}\n- {latency: .nan}\n- {latency: fast}\n- 3\n"
    problems = profile_problems(text)
    assert [problem.splitlines()[0] for problem in problems] == [
        "p.yaml:3:13: E204 tiers.0.latency is -1.0, but must be greater than 0",
        "p.yaml:4:13: E204 tiers.1.latency is .nan, but must be a finite number",
        'p.yaml:5:13: E203 tiers.2.latency must be a number, not the text "fast"',
        'p.yaml:6:3: E203 tiers.3 must be a section with "name: value" lines, not the integer 3',
    ]
