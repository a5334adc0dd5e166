"""Fits what an offloaded optimizer has of its host to records of copies and of Adam there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from calibrate.fit.checks import require
from calibrate.fit.residuals import Residual, Residuals, round_significant
from calibrate.records.schema import HostRecord

_SIZES = 2
_NAMES = {
    "to_device": "copies to the GPU",
    "to_host": "copies to the host",
    "adam": "Adam steps of the host",
}


@dataclass(frozen=True, slots=True)
class HostFit:
    """Bytes/s that each rank has while all of a node copy, either way, or step their Adam."""

    bytes_per_s: float
    adam_bytes_per_s: float
    copies: Residuals
    adam: Residuals


def fit_host(records: Sequence[HostRecord]) -> HostFit | None:
    """The median rates; None where nothing was measured. The profile has one for both ways.

    Raises:
        InputError: E720, too few sizes of one of the three.
    """
    if not records:
        return None
    for what, name in _NAMES.items():
        require(name, sum(record.what == what for record in records), _SIZES, "kernels")
    copies = [record for record in records if record.what != "adam"]
    adam = [record for record in records if record.what == "adam"]
    return HostFit(
        _rate(copies),
        _rate(adam),
        _residuals("copies between GPU and host", copies),
        _residuals("Adam steps of the host", adam),
    )


def _rate(records: Sequence[HostRecord]) -> float:
    return round_significant(median(r.num_bytes / r.time.median_s for r in records))


def _residuals(title: str, records: Sequence[HostRecord]) -> Residuals:
    rate = _rate(records)
    rows = [
        Residual(
            f"{_NAMES[r.what]}, {r.num_bytes} bytes",
            r.time.median_s * 1e6,
            r.num_bytes / rate * 1e6,
        )
        for r in records
    ]
    return Residuals(title, "us", rows)
