"""The work of an iteration by kind, so that a recording and a scenario by hand can be compared.

Both have ops with names of their own. What the ops do is the same: products, attention, norms, the
loss, other memory-bound kernels, copies and collectives, each in a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simtrain.iteration.report.operators import slowest_stage, work_bytes
from simtrain.iteration.report.stage_ops import OpWork, stage_ops
from simtrain.workload.ops import Phase
from simtrain.workload.work import (
    Collective,
    Elementwise,
    FusedAttention,
    Gemm,
    GroupedGemm,
    KernelFamily,
)

if TYPE_CHECKING:
    from simtrain.iteration.report.result import Result

WorkKind = tuple[str, str]
"""A kind of work, and the pass that it belongs to: "forward", "backward" or "optimizer"."""
_FAMILIES = {
    KernelFamily.LAYER_NORM: "norms",
    KernelFamily.RMS_NORM: "norms",
    KernelFamily.CROSS_ENTROPY: "loss",
    KernelFamily.STREAM: "copies",
    KernelFamily.SOFTMAX: "softmax",
    KernelFamily.DROPOUT: "dropout",
}


@dataclass(slots=True)
class WorkSum:
    """All ops of a kind on one rank.

    Args:
        count, flops, num_bytes: of all ops.
        total_s: time for which they run.
        exposed_s: seconds by which the iteration is longer for them.
    """

    count: int = 0
    flops: int = 0
    num_bytes: float = 0.0
    total_s: float = 0.0
    exposed_s: float = 0.0


def work_kinds(result: Result) -> dict[WorkKind, WorkSum]:
    """Return the work of the slowest stage by kind."""
    sums = dict[WorkKind, WorkSum]()
    for key, seconds in stage_ops(result, slowest_stage(result)).items():
        of_kind = sums.setdefault((_kind_of(key.work), _pass_of(key.phase)), WorkSum())
        of_kind.count += seconds.count
        of_kind.flops += seconds.count * getattr(key.work, "flops", 0)
        of_kind.num_bytes += seconds.count * work_bytes(key.work, result.plan.sent_bytes)
        of_kind.total_s += seconds.total_s
        of_kind.exposed_s += seconds.exposed_s
    return sums


def _pass_of(phase: Phase) -> str:
    if phase in (Phase.FORWARD, Phase.OPTIMIZER):
        return phase.value
    return "backward"


def _kind_of(work: OpWork) -> str:
    match work:
        case Gemm() | GroupedGemm():
            return "products"
        case FusedAttention():
            return "attention"
        case Collective():
            return work.kind.value.replace("_", "-")
        case Elementwise():
            return _FAMILIES.get(work.family, "other kernels")
    return "messages and host"
