"""The datasheets of known accelerators, found by the name of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from ruamel.yaml import YAML

from simtrain.entry import Entry, Strict, Text
from simtrain.units import BytesPerSecond, FlopsPerSecond

_FILE = Path(__file__).parents[1] / "datasheets.yaml"


class Datasheet(Strict):
    """Peaks of a device by its maker: 16-bit products, memory, and links, one way."""

    devices: Annotated[list[Text], Field(min_length=1)]
    peak_flops: Entry[FlopsPerSecond]
    memory_bandwidth: Entry[BytesPerSecond]
    link_bandwidth: Entry[BytesPerSecond]


def datasheet_of(device: str) -> Datasheet | None:
    """The datasheet of a device by its name in CUDA; None if none is known."""
    sheets = (Datasheet.model_validate(data) for data in YAML(typ="safe").load(_FILE))
    return next((sheet for sheet in sheets if device in sheet.devices), None)
