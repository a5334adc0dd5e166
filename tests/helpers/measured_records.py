"""Records that simulated machines would measure, made with simtrain's own durations."""

from itertools import product
from typing import Any

from calibrate.fit.links import measured_collective
from calibrate.records.schema import (
    CollectiveRecord,
    GemmRecord,
    Header,
    KernelRecord,
    LaunchRecord,
    LayerRecord,
    Measurement,
    MemoryRecord,
    OverlapRecord,
    Timing,
)
from simtrain.durations.collectives import ring_seconds
from simtrain.durations.model import GemmMachine, gemm_seconds
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_layer
from simtrain.workload.work import RING_COLLECTIVES, CollectiveKind, Gemm
from tests.helpers.toys import a100

A100 = a100()
DEVICE = "NVIDIA A100-SXM4-80GB"
LAYER = {
    "model": {"num_layers": 1, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048},
    "batch": {"micro": 1, "global": 1},
    "recompute": "none",
}


def took(seconds: float, spread: float = 0.0) -> Timing:
    return Timing(median_s=seconds, spread_s=spread * seconds, num_samples=20)


def header(**changes: Any) -> Header:
    fields: dict[str, Any] = {
        "device": DEVICE,
        "backend": "none",
        "num_ranks": 1,
        "num_sms": 108,
        "memory_bytes": 80 * 2**30,
        "date": "2026-05-04T12:00:00+00:00",
        "command": "python -m calibrate measure -o measured",
        "software": {"torch": "2.13.0", "cuda": "12.8"},
    }
    return Header(**fields | changes)


def without(kind: type[Any], records: list[Measurement]) -> list[Measurement]:
    return [record for record in records if not isinstance(record, kind)]


def gemm(machine: GemmMachine, **sizes: Any) -> GemmRecord:
    record = GemmRecord(time=took(1.0), **sizes)
    op = Gemm(
        record.m,
        record.n,
        record.k,
        batch=record.batch,
        output_element_bytes=4 if record.accumulate else 2,
        accumulate=record.accumulate,
    )
    return record.model_copy(update={"time": took(gemm_seconds(op, machine))})


def gemms(machine: GemmMachine, sizes: tuple[int, ...], heads: int = 16) -> list[Measurement]:
    shapes = list(product(sizes, repeat=3))
    plain = [gemm(machine, m=m, n=n, k=k) for m, n, k in shapes]
    into_fp32 = [
        gemm(machine, m=m, n=n, k=k, layout="NT", accumulate=True) for m, n, k in shapes[::3]
    ]
    side = sizes[0]
    batched = [
        gemm(machine, m=side, n=n, k=k, batch=batch)
        for batch in (heads, 4 * heads)
        for n, k in ((side, 64), (side, 128), (64, side), (128, side))
    ]
    return [*plain, *into_fp32, *batched]


def kernels(fused: float, stream: float, latency_s: float) -> list[Measurement]:
    """Return layer norms and copies of 128 KiB to 128 MiB."""
    return [
        KernelRecord(
            name=f"{family} kernel",
            family=family,
            num_bytes=num_bytes,
            time=took(latency_s + num_bytes / bandwidth),
        )
        for family, bandwidth in (("fused", fused), ("stream", stream))
        for num_bytes in (1 << power for power in range(17, 28, 2))
    ]


def alone() -> list[Measurement]:
    """Return the records of one A100 that equals its profile, except for layers at 0.95 of its
    speed.
    """
    machine = GemmMachine.of(A100).replace(tiles=A100.gemm.tiles.value[:2])
    memory = A100.memory_bound
    layer = Scenario.model_validate(LAYER)
    forward, backward = (took(way.duration_s / 0.95) for way in simulate_layer(layer, A100))
    return [
        *gemms(machine, (2048, 4096, 8192)),
        *kernels(memory.fused_bandwidth.value, memory.stream_bandwidth.value, 3e-6),
        LaunchRecord(time=took(7e-6)),
        LayerRecord(scenario=LAYER, held_out=False, forward=forward, backward=backward),
        LayerRecord(scenario=LAYER, held_out=True, forward=took(9.0), backward=took(9.0)),
        MemoryRecord(reserved_over_allocated=1.05, outside_allocator_bytes=2 * 2**30),
    ]


def unproductive() -> list[Measurement]:
    """Return the same without products and layers, whose fits take longest."""
    return [each for each in alone() if not isinstance(each, GemmRecord | LayerRecord)]


def linked() -> list[Measurement]:
    """Return the records of the links between eight A100s of a node.

    The profile has no curve for all-to-alls, so each takes the time of a reduce-scatter.
    """
    links = A100.intra_node
    assert links is not None
    sizes = [1024 << (2 * power) for power in range(10)]
    records: list[Measurement] = [
        CollectiveRecord(
            op=kind.value,
            array_bytes=size,
            num_ranks=curve.num_ranks,
            time=took(
                ring_seconds(
                    measured_collective(kind, size, curve.num_ranks), curve, links.bandwidth.value
                )
            ),
        )
        for kind, curves in (
            *((kind, getattr(links, kind.value)) for kind in RING_COLLECTIVES),
            (CollectiveKind.ALL_TO_ALL, links.reduce_scatter),
        )
        for curve in curves.value
        for size in sizes
    ]
    records += [
        CollectiveRecord(
            op="send_recv", array_bytes=size, num_ranks=2, time=took(8e-6 + size / 250e9)
        )
        for size in sizes
    ]
    overlap = OverlapRecord(
        what="a product beside an all-reduce",
        compute_alone=took(1e-3),
        compute_beside=took(1.3e-3),
        collective_alone=took(2e-3),
        collective_beside=took(2.2e-3),
    )
    return [*records, overlap]
