"""The fit recovers the network between nodes from the times of collectives."""

from typing import Any

import pytest

from calibrate.fit.base import Base
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.links import LinkFit, fit_links
from calibrate.fit.network import Load
from calibrate.fit.result import Fit
from calibrate.records.schema import CollectiveRecord, Measurement
from simtrain.base.mesh import Group
from simtrain.durations.collectives import collective_seconds, transfer_seconds
from simtrain.workload.work import RING_COLLECTIVES, Collective, CollectiveKind
from tests.helpers.measured_records import header, linked, took, unproductive
from tests.helpers.network_records import ALONE, SEND_S, STEP_S, crossing

pytestmark = pytest.mark.slow

SHARES = {Load.WHOLE: 24e9, Load.CONCURRENT: 12e9, Load.ALONE: ALONE}
SENT = 18e9


def fitted(records: list[Measurement], base: Base | None = None, **changes: Any) -> Fit:
    known = {"num_ranks": 16, "num_nodes": 2, "backend": "nccl"}
    return fit_measurements(header(**known | changes), records, "mine", base)


@pytest.fixture(scope="module")
def node() -> LinkFit:
    fit = fit_links([r for r in linked() if isinstance(r, CollectiveRecord)], 300e9)
    assert fit is not None
    return fit


def test_four_sizes_of_which_two_show_bandwidth_are_enough() -> None:
    def links(*sizes: int) -> LinkFit | None:
        ops: Any = (*RING_COLLECTIVES, "send_recv")
        timed: Any = [{"array_bytes": size, "time": took(1e-5 + size / 1e11)} for size in sizes]
        return fit_links(
            [CollectiveRecord(op=op, num_ranks=2, **t) for op in ops for t in timed], 3e11
        )

    enough, small = links(64, 128, 65536, 1 << 20), links(64, 128, 65535, 1 << 20)
    assert enough and not enough.gaps and small and len(small.gaps) == 3
    assert links(64, 65536, 1 << 20) is None


@pytest.fixture(scope="module")
def two_nodes(node: LinkFit) -> Fit:
    return fitted([*unproductive(), *linked(), *crossing(8, SHARES, SENT, node)])


def test_the_fit_recovers_the_network_that_made_the_records(two_nodes: Fit) -> None:
    profile = two_nodes.profile
    network = profile.network
    assert (profile.cluster.gpus_per_node.value, profile.cluster.num_nodes.value) == (8, 2)
    # A node reaches 8 x 24 GB/s, which is what its 8 ranks may have of 8 adapters.
    assert network.num_adapters.value == 8
    assert network.adapter_bandwidth.value == pytest.approx(24e9, rel=1e-3)
    assert network.whole_node_efficiency.value == pytest.approx(1.0, rel=1e-3)
    assert network.concurrent_efficiency.value == pytest.approx(0.5, rel=1e-3)
    assert network.step_latency.value == pytest.approx(STEP_S, rel=1e-3)
    assert network.point_to_point.latency.value == pytest.approx(SEND_S, rel=1e-3)
    assert network.point_to_point.efficiency.value == pytest.approx(0.75, rel=1e-3)


def test_the_fitted_network_predicts_the_measured_times(two_nodes: Fit) -> None:
    profile = two_nodes.profile
    records = [*crossing(8, {Load.CONCURRENT: 12e9}, SENT)]
    for record in records:
        assert isinstance(record, CollectiveRecord)
        if record.op == "send_recv":
            size = record.array_bytes
            found = transfer_seconds(size, levels_crossed=1, num_sharing=1, profile=profile)
        elif record.op in RING_COLLECTIVES:
            kind = CollectiveKind(record.op)
            op = Collective(kind, record.array_bytes, Group(("dp",), 2, ranks_per_node=1))
            found = collective_seconds(op, profile)
        else:
            continue
        assert found == pytest.approx(record.time.median_s, rel=2e-3)


def test_too_few_collectives_across_nodes_are_listed_and_the_network_is_copied() -> None:
    few = [
        record
        for record in crossing(8, SHARES, SENT)
        if isinstance(record, CollectiveRecord) and record.op == "all_reduce"
    ]
    fit = fitted([*unproductive(), *linked(), *few])
    network = fit.profile.network
    source = "copied from a100_sxm4_80gb, 2 nodes, but too few sizes of all_gather "
    assert network.whole_node_efficiency.source.startswith(source)
    assert fit.profile.cluster.num_nodes.value == 2
    assert any(note.startswith("inter_node: copied from a100_sxm4_80gb") for note in fit.notes)
    one_node = fitted([*unproductive(), *linked(), *few], num_ranks=8, num_nodes=1)
    assert one_node.profile.inter_node is None
