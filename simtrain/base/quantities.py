"""Fields with units: text with a unit in the file, a plain number in the model."""

from typing import Annotated

from pydantic import BeforeValidator

from simtrain import units

Bytes = Annotated[int, BeforeValidator(units.parse_bytes)]
BytesPerSecond = Annotated[float, BeforeValidator(units.parse_bytes_per_s)]
Seconds = Annotated[float, BeforeValidator(units.parse_seconds)]
NonNegativeSeconds = Annotated[float, BeforeValidator(units.parse_non_negative_seconds)]
FlopsPerSecond = Annotated[float, BeforeValidator(units.parse_flops_per_s)]
Watts = Annotated[float, BeforeValidator(units.parse_watts)]
NonNegativeWatts = Annotated[float, BeforeValidator(units.parse_non_negative_watts)]
PricePerHour = Annotated[units.Price, BeforeValidator(units.parse_price)]
