"""Lists records that are in no number of a profile, so that no measurement vanishes unseen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calibrate.fit.links import fits_inside
from calibrate.fit.network import load_of
from calibrate.fit.result import Unused
from calibrate.records.checks import group_of, rate_of
from calibrate.records.nccl_tests import bus_factor
from calibrate.records.schema import CollectiveRecord, GemmRecord, Measurement


def unused_series(
    records: Sequence[Measurement], dtype: str, per_node: int, missing_for_network: Sequence[str]
) -> Iterator[Unused]:
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
            why = _reason(record, per_node, missing_for_network)
            if why:
                collectives.setdefault((group_of(record), why), []).append(record)
    for other, gemms in products.items():
        sides = [side for r in gemms for side in (r.m, r.n, r.k)]
        reached = f"{max(map(rate_of, gemms)) / 1e12:.4g} TFLOP/s"
        why = f"a profile has measured products in fp8 and one other data type, here {dtype}"
        sizes = f"sides {min(sides)} to {max(sides)}"
        yield Unused(f"{other} products", len(gemms), sizes, reached, why)
    for (what, why), series in collectives.items():
        num_bytes = [record.array_bytes for record in series]
        algbw = max(map(rate_of, series)) / 1e9
        busbw = algbw * bus_factor(series[0].op, series[0].num_ranks)
        reached = f"algbw {algbw:.4g}, busbw {busbw:.4g} GB/s"
        sizes = f"{min(num_bytes)} to {max(num_bytes)} bytes"
        yield Unused(what, len(series), sizes, reached, why)


def _reason(
    record: CollectiveRecord, per_node: int, missing_for_network: Sequence[str]
) -> str | None:
    """Why no fit uses the record; None if one does."""
    if record.num_nodes == 1:
        return None if fits_inside(record) else "a transfer of a profile is between two ranks"
    if record.op == "all_to_all":
        return "across nodes an all-to-all follows from the adapters' rates and intra_node"
    if load_of(record, per_node) is None:
        return "simtrain has no model of such a group"
    if missing_for_network:
        return f"inter_node needs also {', '.join(missing_for_network)}"
    return None
