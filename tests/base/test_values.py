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


OURS, THEIRS = base_and_derived(values.dataclass), base_and_derived(dataclasses.dataclass)


@values.dataclass(frozen=True, slots=True)
class Point:
    """A value that pickle finds."""

    x: int
    y: tuple[int, ...] = ()


@values.dataclass
class Loose:
    width: float
    area: float = values.field(init=False)
    unit: str = values.field(init=False, default="m")
    names: list[str] = values.field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.area = self.width**2


@pytest.mark.parametrize(("ours", "theirs"), [*zip(OURS, THEIRS, strict=True)])
def test_values_are_made_compared_and_printed_alike(ours: Any, theirs: Any) -> None:
    for words, named in (((1,), {}), ((1, [2]), {}), ((), {"number": 3, "quiet": 5})):
        one, other = ours(*words, **named), theirs(*words, **named)
        assert repr(one) == repr(other)
        assert values.asdict(one) == dataclasses.asdict(other)
        assert one == ours(*words, **named) == values.replace(one, quiet=7)
        assert one != other and one != ours(9)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        ours()
    ours, theirs = (inspect.signature(cls).parameters.values() for cls in (ours, theirs))
    for one, other in zip(ours, theirs, strict=True):
        assert one.replace(default=0) == other.replace(default=0)


def test_frozen_values_are_hashed_and_copied_and_refuse_changes() -> None:
    assert hash(Point(1)) == hash((1, ())) and Loose.__hash__ is None
    value = OURS[1](1, text="y")
    for change in (lambda: setattr(value, "text", "z"), lambda: delattr(value, "text")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="field 'text'"):
            change()
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(Point(1, (2,)))) == Point(1, (2,))


def test_fields_without_parameters_have_their_defaults() -> None:
    Loose(2.0).names.append("a")
    assert repr(Loose(2.0)) == "Loose(width=2.0, area=4.0, unit='m', names=[])"


def test_a_class_keeps_the_methods_that_it_writes() -> None:
    @values.dataclass(frozen=True, slots=True)
    class Written:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

    assert Written(1) == Written(2) and hash(Written(1)) == hash((1,))


def test_a_frozen_class_of_dataclasses_may_inherit() -> None:
    @dataclasses.dataclass(frozen=True)
    class Outside(Point):
        z: int = 3

    assert Outside(1) == Outside(1, (), 3) != Outside(1, (), 4)
