"""Fields with units: text with a unit in the file, a plain number in the model."""

from typing import Annotated

from pydantic import BeforeValidator

from simtrain.units import (
    Price,
    parse_bytes,
    parse_bytes_per_s,
    parse_flops_per_s,
    parse_non_negative_seconds,
    parse_non_negative_watts,
    parse_price,
    parse_seconds,
    parse_watts,
)

Bytes = Annotated[int, BeforeValidator(parse_bytes)]
BytesPerSecond = Annotated[float, BeforeValidator(parse_bytes_per_s)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
NonNegativeSeconds = Annotated[float, BeforeValidator(parse_non_negative_seconds)]
FlopsPerSecond = Annotated[float, BeforeValidator(parse_flops_per_s)]
Watts = Annotated[float, BeforeValidator(parse_watts)]
NonNegativeWatts = Annotated[float, BeforeValidator(parse_non_negative_watts)]
PricePerHour = Annotated[Price, BeforeValidator(parse_price)]
