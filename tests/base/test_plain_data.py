"""Values as plain data: keys by name, by path and spliced."""

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from simtrain.base.plain_data import Number, PlainData, Sentence, keys, plain_data, sentence_json


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point(PlainData):
    x: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line(PlainData):
    """A line whose keys differ from its fields."""

    json_fields: ClassVar = keys("colour start_x=start.x length end_x=end.x **end note")
    json_omits_none: ClassVar = frozenset({"note"})

    start: Point
    end: Point | None
    colour: Colour = Colour.RED
    note: str | None = None

    @property
    def length(self) -> float:
        return abs(self.end.x - self.start.x) if self.end else 0.0


def test_a_dataclass_has_a_key_per_field() -> None:
    assert plain_data({"a": [Point(1.5, ("p", "q"))]}) == {"a": [{"x": 1.5, "names": ["p", "q"]}]}


def test_keys_come_from_paths_and_from_spliced_values() -> None:
    line = Line(Point(1.0), Point(3.0, ("end",)))
    assert line.to_dict() == {
        "colour": "red",
        "start_x": 1.0,
        "length": 2.0,
        "end_x": 3.0,
        "x": 3.0,
        "names": ["end"],
    }


def test_a_path_through_nothing_is_null_and_omitted_keys_stay_away() -> None:
    data = Line(Point(1.0), None).to_dict()
    assert data["end_x"] is None and "x" not in data and "note" not in data
    assert Line(Point(1.0), None, note="").to_dict()["note"] == ""


def test_other_values() -> None:
    sentence = Sentence("takes ", Number(1.25, "1.3 s"))
    assert plain_data(sentence) == sentence_json(sentence)
    assert plain_data({1: Path("a/b"), Colour.RED: None}) == {"1": str(Path("a/b")), "red": None}
    assert plain_data(range(2)) == [0, 1]
    assert plain_data(np.float64(0.1)) == 0.1


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_number_is_infinite_or_undefined(number: float) -> None:
    with pytest.raises(ValueError, match="JSON has no number"):
        Point(number).to_dict()
