"""Dataclasses whose methods are compiled late are those of `dataclasses`."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from simtrain.base import values


def base_and_derived(make: Any) -> tuple[Any, Any]:
    """Return a frozen class with slots, and one that inherits from it."""

    @make(frozen=True, slots=True)
    class Base:
        """A base."""

        kind: ClassVar[str] = "base"
        number: int
        items: list[int] = values.field(default_factory=list)
        quiet: int = values.field(default=1, repr=False, compare=False)

    @make(frozen=True, slots=True)
    class Derived(Base):
        text: str = "x"
        _: values.KW_ONLY
        flag: bool = False

    return Base, Derived


def loose(make: Any) -> Any:
    """Return a class that is not frozen, with a field that is no parameter."""

    @make
    class Loose:
        """A value that changes."""

        width: float
        area: float = values.field(init=False)
        unit: str = values.field(init=False, default="m")
        names: list[str] = values.field(init=False, default_factory=list)

        def __post_init__(self) -> None:
            self.area = self.width**2

    return Loose


OURS, THEIRS = base_and_derived(values.dataclass), base_and_derived(dataclasses.dataclass)


@pytest.mark.parametrize(("ours", "theirs"), [*zip(OURS, THEIRS, strict=True)])
def test_values_are_made_compared_and_printed_alike(ours: Any, theirs: Any) -> None:
    for words, named in (((1,), {}), ((1, [2]), {}), ((), {"number": 3, "quiet": 5})):
        one, other = ours(*words, **named), theirs(*words, **named)
        assert repr(one) == repr(other).replace("theirs", "ours")
        assert values.asdict(one) == dataclasses.asdict(other)
        assert one == ours(*words, **named) and one != other
        assert one != ours(9) and one == values.replace(one, quiet=7)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        ours()
    parameters = inspect.signature(ours).parameters.values()
    expected = inspect.signature(theirs).parameters.values()
    assert [(each.name, each.kind, each.annotation) for each in parameters] == [
        (each.name, each.kind, each.annotation) for each in expected
    ]


def test_hashes_follow_from_what_is_compared() -> None:
    @values.dataclass(frozen=True)
    class Pair:
        left: int
        right: tuple[int, ...] = ()

    assert {Pair(1), Pair(1, ()), Pair(2)} == {Pair(1), Pair(2)}
    assert hash(Pair(1)) == hash((1, ()))
    assert loose(values.dataclass).__hash__ is None


def test_frozen_values_refuse_changes_and_can_be_copied() -> None:
    _, derived = OURS
    value = derived(1, text="y")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'text'"):
        value.text = "z"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'text'"):
        del value.text
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)


@values.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int


def test_fields_without_parameters_have_their_defaults() -> None:
    one, other = loose(values.dataclass)(2.0), loose(dataclasses.dataclass)(2.0)
    assert repr(one).rpartition(".")[2] == repr(other).rpartition(".")[2]
    one.names.append("a")
    assert loose(values.dataclass)(2.0).names == []


def test_a_class_keeps_the_methods_that_it_writes() -> None:
    @values.dataclass(frozen=True, slots=True)
    class Written:
        x: int

        def __repr__(self) -> str:
            return "written"

        def __eq__(self, other: object) -> bool:
            return True

    assert repr(Written(1)) == "written"
    assert Written(1) == Written(2)
    assert hash(Written(1)) == hash((1,))


def test_a_frozen_class_of_dataclasses_may_inherit() -> None:
    @dataclasses.dataclass(frozen=True)
    class Outside(Point):
        z: int = 3

    assert Outside(1, 2) == Outside(1, 2, 3) != Outside(1, 2, 4)
