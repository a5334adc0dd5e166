"""Kernels of a rank in a Chrome trace, measured as Holistic Trace Analysis measures them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from tests.helpers.expert_models import moe
from tests.helpers.toys import ONE_STAGE, small, zero
from tests.workload.test_precision import fp8, modern

_AT_ONCE = {"host_issue": "0 s"}
FULLY_SHARD = {"stack": "megatron_2022", "fully_shard": True}
CONTEXT: dict[str, Any] = {"context": 2, "context_communication": "p2p", "data": 2}
TRACED: dict[str, Scenario] = {
    "pipeline": small({"sequence_parallel": True}, software=_AT_ONCE),
    "overlapped transfers": small({"interleave": 2}, overlap={"pipeline": True}, software=_AT_ONCE),
    "tensor": small({"pipeline": 1, "sequence_parallel": True}, software=_AT_ONCE),
    "buckets": small(ONE_STAGE, overlap={"data_parallel": True}, software=_AT_ONCE),
    "buckets in a pipeline": small(
        {"tensor": 2, "data": 2, "interleave": 2, "sequence_parallel": True},
        memory={"zero_stage": 1},
        overlap={"data_parallel": True, "parameter_gather": True, "pipeline": True},
        software=_AT_ONCE,
    ),
    "fully_shard": zero(
        3,
        memory={"shard_over": 2},
        overlap={"data_parallel": True},
        software=FULLY_SHARD | _AT_ONCE,
    ),
    "reduction after all passes": small(
        {"tensor": 1, "pipeline": 2, "data": 4},
        model={"tied_embeddings": False},
        memory={"zero_stage": 3, "reduce_every_microbatch": False},
        overlap={"data_parallel": True},
        software=FULLY_SHARD | _AT_ONCE,
    ),
    "two directions": small(
        {"tensor": 1, "pipeline": 2, "data": 2},
        model={"tied_embeddings": False},
        overlap={"data_parallel": True},
        software=_AT_ONCE,
        schedule="chimera",
    ),
    "experts": moe(
        {"shared_ffn_hidden_size": 64}, overlap={"shared_expert": True}, software=_AT_ONCE
    ),
    "context": small(CONTEXT, attention_backend="fused", software=_AT_ONCE),
    "fp8": modern(
        fp8(),
        tensor=2,
        parallelism={"data": 2},
        batch={"micro": 1, "global": 4},
        overlap={"data_parallel": True},
        software={"stack": "megatron_core"} | _AT_ONCE,
    ),
}
"""Scenarios whose kernels the host launches in no time.

Else, collectives that run while the GPU waits for a launch are communication in a trace, and wait
for a launch in the breakdown.
"""


@dataclass(frozen=True)
class Measures:
    """Unions of a rank's kernels, in microseconds.

    Args:
        compute_us: time with a kernel of computation.
        other_us: time with only communication or copies.
        communication_us: time with communication.
        overlap_us: time with both computation and communication.
    """

    compute_us: float
    other_us: float
    communication_us: float
    overlap_us: float


def measured(events: list[dict[str, Any]], rank: int) -> Measures:
    """Return the measures of a rank."""
    kernels = [
        one for one in events
        if one["ph"] == "X" and one["pid"] == rank and "stream" in one["args"]
    ]  # fmt: skip

    def time_us(chosen: Callable[[str], bool]) -> float:
        own = [one for one in kernels if chosen(one["name"])]
        edges = sorted((one["ts"] + end * one["dur"], 1 - 2 * end) for one in own for end in (0, 1))
        running, times = np.cumsum([step for _, step in edges]), np.array([at for at, _ in edges])
        return float(np.diff(times) @ (running[:-1] > 0)) if own else 0.0

    def computes(name: str) -> bool:
        return not communicates(name) and not name.startswith("Memcpy")

    def communicates(name: str) -> bool:
        return re.match("nccl.*Kernel", name) is not None

    compute_us, communication_us = time_us(computes), time_us(communicates)
    either_us = time_us(lambda name: computes(name) or communicates(name))
    other_us = time_us(lambda name: True) - compute_us
    overlap_us = compute_us + communication_us - either_us
    return Measures(compute_us, other_us, communication_us, overlap_us)


def reported_us(result: Result, stage: int) -> tuple[float, float]:
    """Return compute, and exposed communication and copies, of the breakdown."""
    ours = result.stages[stage]
    compute_s = ours.compute_s + ours.recompute_s + ours.optimizer_s
    exposed_s = (
        ours.tensor_communication_s + ours.pipeline_communication_s + ours.data_communication_s
    )
    return 1e6 * compute_s, 1e6 * exposed_s
