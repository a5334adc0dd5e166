"""Fits the host of an offloaded optimizer to records of copies and of Adam steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from calibrate.fit.entry import Data, Origin, giga
from calibrate.fit.numbers import microseconds, round_significant
from calibrate.fit.requirements import require
from calibrate.records.checks import rate_of
from calibrate.records.schema import HostRecord
from simtrain.comparison import Comparison

_SIZES = 2
_NAMES = {
    "to_device": "copies to the GPU",
    "to_host": "copies to the host",
    "adam": "Adam steps of the host",
}


def host_section(records: Sequence[HostRecord], origin: Origin) -> tuple[Data, list[Comparison]]:
    """The section `host_link`, one bandwidth for both ways, and its errors.

    Rates are medians per rank while all ranks of a node copy, or step their Adam.

    Raises:
        InputError: E720, too few sizes of one of the three.
    """
    for what, name in _NAMES.items():
        require(name, sum(record.what == what for record in records), _SIZES, "kernels")
    bandwidth, copies = _fit("copies between GPU and host", records, ("to_device", "to_host"))
    adam_bandwidth, adam = _fit("Adam steps of the host", records, ("adam",))
    only = ", all ranks at once"
    section = {
        "bandwidth": origin.entry(giga(bandwidth), copies, only),
        "adam_bandwidth": origin.entry(giga(adam_bandwidth), adam, only),
    }
    return section, [copies, adam]


def _fit(
    title: str, records: Sequence[HostRecord], kinds: tuple[str, ...]
) -> tuple[float, Comparison]:
    found = [record for record in records if record.what in kinds]
    rate = round_significant(median(map(rate_of, found)))
    rows = (
        (f"{_NAMES[r.what]}, {r.num_bytes} bytes", r.time.median_s, r.num_bytes / rate)
        for r in found
    )
    return rate, microseconds(title, rows)
