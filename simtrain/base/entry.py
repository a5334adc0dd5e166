"""Entries of profiles and software stacks: values with their sources."""

from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator

from simtrain.base.values import dataclass
from simtrain.units import with_micro_sign

Value = TypeVar("Value")
Fraction = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """A section that refuses unknown keys, conversions and non-finite numbers."""

    # Only the validator of the whole file is used; those of sections are built on demand.
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True
    )


class Entry(Strict, Generic[Value]):
    """A value with its source; `fitted_on` names the measurements behind a fitted value."""

    model_config = ConfigDict(defer_build=False)

    value: Value
    source: Text
    fitted_on: Text | None = None

    if not TYPE_CHECKING:

        def __class_getitem__(cls, kind):
            return Annotated[cls, ValueOf(kind)]

    @field_validator("source", "fitted_on")
    @classmethod
    def _says_something(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("is blank: name the measurement, paper or datasheet of this value")
        return text and with_micro_sign(text)


@dataclass(frozen=True, slots=True)
class ValueOf:
    """The type of an entry's value: `Entry[int]` is an entry, because a class takes 0.3 ms."""

    kind: Any

    def __get_pydantic_core_schema__(self, entry: Any, handler: GetCoreSchemaHandler) -> Any:
        fields: Any = handler.resolve_ref_schema(handler(entry))["schema"]
        value = {**fields["fields"]["value"], "schema": handler.generate_schema(self.kind)}
        fields = {**fields, "fields": {**fields["fields"], "value": value}}
        # A model would have the validator of plain entries, whose value is anything.
        return {
            "type": "function-wrap",
            "function": {"type": "no-info", "function": _read},
            "schema": fields,
            "serialization": {"type": "any"},
        }


def _read(written: Any, validate: Any) -> Any:
    if isinstance(written, Entry):
        return written
    values, _, names = validate(written)
    return Entry.model_construct(names, **values)
