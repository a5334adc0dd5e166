"""The base class of the sections of a scenario, and the positions of a scenario's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simtrain.base.strict_yaml import Path, Positions, YamlDocument, data_of, input_error, leaves
from simtrain.errors import InputError, Location

IN_PYTHON = Location("changed in Python")
"""The position of values that Python code changed."""


# NCCL and MPI count ranks and CUDA counts grid blocks in 32-bit integers.
MAX_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
MAX_DEGREE = 2**20
"""Ranks along an axis of parallelism: more than any cluster has, few enough to lay out at once."""
Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]


class Section(BaseModel):
    """A section: refuses unknown fields, values of another type, and infinite or NaN values."""

    # Files name fields by their aliases (`global`), Python code by either name. Files need only the
    # validator of the whole scenario; pydantic builds the validators of sections on demand.
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        defer_build=True,
    )

    def __init__(self, /, **values: Any) -> None:
        """Set the fields.

        Raises:
            InputError: one problem per wrong name or value.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = type(self).__name__
            positions = Positions().moved([()], Location(f"{name}(...)"))
            raise input_error(error, type(self), values, positions, name) from None

    # This is the mark of pydantic's own __init__. Without it, pydantic would call this __init__ for
    # the sections of a file too, and would report only the first of their errors.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to assign to a field.

        Raises:
            InputError: says how to make a changed copy (E120).
        """
        field = type(self).model_fields.get(name)
        if field is None:
            super().__setattr__(name, value)
            return
        kind, key = type(self).__name__, field.serialization_alias or name
        path = key if kind == "Scenario" else f"SECTION.{key}"
        message = f"{kind}.{name} cannot be assigned, because scenarios do not change"
        fix = f'make a changed copy: changed = scenario.replace({{"{path}": {value!r:.80}}})'
        raise InputError.of("E120", message, fix=fix)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a scenario's values.

    Args:
        positions: positions of the fields in the file and the overrides.
        data: all fields after the overrides; None for a scenario built in Python.
        replaced: paths that `Scenario.replace` changed.
    """

    positions: Positions = field(default_factory=Positions)
    data: Mapping[str, Any] | None = None
    replaced: tuple[Path, ...] = ()

    def positions_of(self, scenario: Section) -> Positions:
        """Return the positions of the scenario's values.

        A value that differs from the file does not have the line in the file: pydantic's
        `model_copy` changes values without a record.
        """
        changed = list(self.replaced)
        if self.data is not None:
            then, now = (
                {path: (type(value), value) for path, value in leaves(data)}
                for data in (self.data, data_of(scenario))
            )
            changed += [path for path in then | now if then.get(path) != now.get(path)]
        return self.positions.moved(changed, IN_PYTHON)


BUILT_IN_PYTHON = Origin()


def is_change(place: Location) -> bool:
    """Whether the place of a value is `--set` or Python instead of a file."""
    return place == IN_PYTHON or place.file.startswith("--set ")


MEANT_BY_A_WORD = {"offload": "unit", "recompute": "strategy", "software": "stack"}
"""Sections that can be written as a single word, and the field that the word sets."""


def spell_out_words(document: YamlDocument) -> YamlDocument:
    """Expand single words, such as `recompute: full`, to sections.

    Overrides can then set fields of the section, and errors can point to the word.
    """
    data, positions = document.data, document.positions
    for name, inner in MEANT_BY_A_WORD.items():
        if name not in data or isinstance(data[name], dict):
            continue
        data = data | {name: {inner: data[name]}}
        if (name,) in positions.places:
            place = positions.places[name,]
            positions = Positions({**positions.places, (name, inner): place})
    return YamlDocument(data, positions)
