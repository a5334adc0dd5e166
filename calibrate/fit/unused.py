"""Lists records that are in no number of a profile, so that no measurement vanishes unseen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from calibrate.fit.links import fits_inside
from calibrate.fit.network import is_used
from calibrate.records.checks import group_of, rate_of
from calibrate.records.nccl_tests import bus_factor
from calibrate.records.schema import CollectiveRecord, GemmRecord, Measurement


@dataclass(frozen=True, slots=True)
class Unused:
    """Records of one series: their sizes, their highest rate, and why no fit uses them."""

    what: str
    num_records: int
    sizes: str
    reached: str
    why: str


def unused_series(
    records: Sequence[Measurement], dtype: str, per_node: int, missing_for_network: Sequence[str]
) -> list[Unused]:
    """The series of products and collectives that no fit used.

    Args:
        records: all of them.
        dtype: data type of the fitted products; fp8 is fitted in addition.
        per_node: ranks of a node.
        missing_for_network: sizes that the fit of the network lacks.
    """
    products: dict[str, list[GemmRecord]] = {}
    collectives: dict[tuple[str, str], list[CollectiveRecord]] = {}
    for record in records:
        if isinstance(record, GemmRecord) and record.dtype not in (dtype, "fp8"):
            products.setdefault(record.dtype, []).append(record)
        elif isinstance(record, CollectiveRecord):
            for why in _reasons(record, per_node, missing_for_network):
                collectives.setdefault((group_of(record), why), []).append(record)
    return [
        *(_products(series, dtype) for series in products.values()),
        *(_collectives(what, why, series) for (what, why), series in collectives.items()),
    ]


def _reasons(
    record: CollectiveRecord, per_node: int, missing_for_network: Sequence[str]
) -> Iterator[str]:
    """Why no fit uses the record; nothing if one does."""
    if record.num_nodes == 1:
        if not fits_inside(record):
            yield "a transfer of a profile is between two ranks"
    elif record.op == "all_to_all":
        yield "across nodes an all-to-all follows from the adapters' rates and intra_node"
    elif not is_used(record, per_node):
        yield "simtrain has no model of such a group"
    elif missing_for_network:
        yield f"inter_node needs also {', '.join(missing_for_network)}"


def _products(records: Sequence[GemmRecord], dtype: str) -> Unused:
    sides = [side for r in records for side in (r.m, r.n, r.k)]
    return Unused(
        f"{records[0].dtype} products",
        len(records),
        f"sides {min(sides)} to {max(sides)}",
        f"{max(map(rate_of, records)) / 1e12:.4g} TFLOP/s",
        f"a profile has measured products in fp8 and one other data type, here {dtype}",
    )


def _collectives(what: str, why: str, records: Sequence[CollectiveRecord]) -> Unused:
    sizes = [record.array_bytes for record in records]
    algbw = max(map(rate_of, records))
    busbw = algbw * bus_factor(records[0].op, records[0].num_ranks)
    reached = f"algbw {algbw / 1e9:.4g}, busbw {busbw / 1e9:.4g} GB/s"
    return Unused(what, len(records), f"{min(sizes)} to {max(sizes)} bytes", reached, why)
