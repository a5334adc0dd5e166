"""What was measured and is in no number of the profile: shown, so that nothing vanishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.fit.links import fits_inside
from calibrate.fit.network import is_used
from calibrate.records.nccl_tests import BUS_FACTORS
from calibrate.records.schema import CollectiveRecord, GemmRecord, Measurement


@dataclass(frozen=True, slots=True)
class Unused:
    """Records of one series: what they reach at most, over which sizes, and why no one asks."""

    what: str
    num_records: int
    sizes: str
    reached: str
    why: str


def unused_series(
    records: Sequence[Measurement], dtype: str, per_node: int, missing_for_network: Sequence[str]
) -> list[Unused]:
    """The series of products and collectives that no fit has used.

    `dtype` is that of the products that were, beside fp8; `missing_for_network` is what was lacking
    to fit those across nodes.
    """
    products = [r for r in records if isinstance(r, GemmRecord) and r.dtype not in (dtype, "fp8")]
    collectives = [
        (record, why)
        for record in records
        if isinstance(record, CollectiveRecord)
        and (why := _why_unused(record, per_node, missing_for_network))
    ]
    return [
        *(_products([r for r in products if r.dtype == d], dtype) for d in _once(products)),
        *(
            _collectives([r for r, of in collectives if (_series(r), of) == (series, why)], why)
            for series, why in dict.fromkeys((_series(r), why) for r, why in collectives)
        ),
    ]


def _once(products: Sequence[GemmRecord]) -> list[str]:
    return list(dict.fromkeys(record.dtype for record in products))


def _why_unused(
    record: CollectiveRecord, per_node: int, missing_for_network: Sequence[str]
) -> str | None:
    """The reason; None where a fit uses the record."""
    if record.num_nodes == 1:
        return None if fits_inside(record) else "a transfer of a profile is between two ranks"
    if record.op == "all_to_all":
        return "across nodes an all-to-all follows from the adapters' rates and intra_node"
    if not is_used(record, per_node):
        return "simtrain has no model of such a group"
    if missing_for_network:
        return f"inter_node needs also {', '.join(missing_for_network)}"
    return None


def _series(record: CollectiveRecord) -> tuple[str, int, int, int]:
    return record.op, record.num_ranks, record.num_groups, record.num_nodes


def _products(records: Sequence[GemmRecord], dtype: str) -> Unused:
    most = max(2 * r.batch * r.m * r.n * r.k / r.time.median_s for r in records)
    sides = [side for r in records for side in (r.m, r.n, r.k)]
    return Unused(
        f"{records[0].dtype} products",
        len(records),
        f"sides {min(sides)} to {max(sides)}",
        f"{most / 1e12:.4g} TFLOP/s",
        f"a profile has measured products in fp8 and one other data type, here {dtype}",
    )


def _collectives(records: Sequence[CollectiveRecord], why: str) -> Unused:
    op, num_ranks, num_groups, num_nodes = _series(records[0])
    sizes = [record.array_bytes for record in records]
    algbw = max(r.array_bytes / r.time.median_s for r in records)
    busbw = algbw * BUS_FACTORS[records[0].op](num_ranks)
    groups = f"{num_groups} times " if num_groups > 1 else ""
    nodes = f" on {num_nodes} nodes" if num_nodes > 1 else ""
    return Unused(
        f"{groups}{op} over {num_ranks} ranks{nodes}",
        len(records),
        f"{min(sizes)} to {max(sizes)} bytes",
        f"algbw {algbw / 1e9:.4g}, busbw {busbw / 1e9:.4g} GB/s",
        why,
    )
