"""What a fit needs: enough points of each part, and a device's datasheet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from simtrain.base.accuracy import Comparison
from simtrain.base.entry import Entry, Strict, Text
from simtrain.base.input_file import read_text
from simtrain.errors import InputError
from simtrain.units import BytesPerSecond, FlopsPerSecond

TOO_FEW = "E720"
"""Code of the problem that a part has too few records."""
NUM_SIZES, LARGE_SIZES = 4, 2
"""Sizes of a collective that a fit needs, and how many of them must show bandwidth."""
_DATASHEETS = Path(__file__).parents[1] / "datasheets.yaml"
_NOTED_FACTOR = 4 / 3
"""Mean factor that is warned of: full recompute costs a third more time, so that a profile with
parts further off may rank strategies wrongly."""


class Datasheet(Strict):
    """Peaks of a device by its maker: 16-bit products, memory, and links, one way."""

    devices: Annotated[list[Text], Field(min_length=1)]
    peak_flops: Entry[FlopsPerSecond]
    memory_bandwidth: Entry[BytesPerSecond]
    link_bandwidth: Entry[BytesPerSecond]


def datasheet_of(device: str) -> Datasheet | None:
    """The datasheet of a device by its name in CUDA; None if none is known."""
    sheets = (Datasheet.model_validate(data) for data in yaml.safe_load(read_text(_DATASHEETS)))
    return next((sheet for sheet in sheets if device in sheet.devices), None)


def require(what: str, measured: int, needed: int, only: str) -> None:
    """Refuse to fit too few points; `only` is the part of a measurement that gives more.

    Raises:
        InputError: E720, fewer than `needed`.
    """
    if measured < needed:
        reason = f"a fit needs {needed} or more"
        fix = f"finish the measurement ({only}): run python -m calibrate measure in the same folder"
        raise InputError.of(
            TOO_FEW, f"{measured} measured {what} are too few", fix=fix, reason=reason
        )


def far_off(fitted: Sequence[Comparison]) -> list[str]:
    """Warnings of parts that are far from their measurements."""
    warnings = []
    for each in fitted:
        if each.mean_factor > _NOTED_FACTOR:
            row, off = each.worst, f"{each.title}: the fit is off by a factor"
            values = f"measured {row.measured:.4g} and fitted {row.predicted:.4g} {each.unit}"
            worst = f"the worst is {row.name}, {values}"
            warnings.append(f"{off} {each.mean_factor:.2f} in the mean; {worst}")
    return warnings
