"""Entries of profiles and software stacks: values with their sources."""

from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

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

    value: Value
    source: Text
    fitted_on: Text | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies are plain entries, because pickle cannot import a class such as Entry[int].
        return partial(Entry.model_construct, **dict(self)), ()

    @field_validator("source", "fitted_on")
    @classmethod
    def _says_something(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("is blank: name the measurement, paper or datasheet of this value")
        return text and with_micro_sign(text)
