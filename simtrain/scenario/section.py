"""The base of all sections of a scenario, and where a scenario's values come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from simtrain.errors import Location
from simtrain.strict_yaml import Path, Positions, data_of, input_error, leaves

IN_PYTHON = Location("changed in Python")
"""The place of values that Python code changed."""


class Section(BaseModel):
    """A section: nothing unknown, nothing converted, nothing that is not finite."""

    # Files name fields by their aliases (`global`), Python code by either name. A file is validated
    # by the scenario's validator alone: those of sections are built on demand.
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
            InputError: with one problem for each wrong name or value.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = type(self).__name__
            place = Positions({(): Location(f"{name}(...)")})
            raise input_error(error, type(self), values, place, name) from None

    # Pydantic marks its own __init__ so. Without the mark it would call this one for the sections
    # of a file too, and only the first of their errors would be reported.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a scenario's values come from.

    positions: where its file and the overrides have them.
    data: all fields as the file and the overrides have them; None for a scenario built in Python.
    replaced: the paths that `Scenario.replace` set.
    """

    positions: Positions = field(default_factory=Positions)
    data: Mapping[str, Any] | None = None
    replaced: tuple[Path, ...] = ()

    def positions_of(self, scenario: Section) -> Positions:
        """The positions of the scenario's values.

        A value that differs from the file's is not at the file's line: pydantic's `model_copy`
        changes values without a record.
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
