"""What an op costs on a machine: the one place where work meets hardware."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from functools import cached_property

from simtrain.costs.attention import (
    AttentionMachine,
    attention_is_extrapolated,
    attention_seconds,
)
from simtrain.costs.gemm import GemmMachine, gemm_is_extrapolated, gemm_seconds
from simtrain.costs.host import host_bytes_per_s
from simtrain.costs.links import (
    collective_is_extrapolated,
    collective_seconds,
    transfer_seconds,
)
from simtrain.hardware.placement import GroupPlacement, Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.host import HostOp
from simtrain.workload.ops import (
    Collective,
    Elementwise,
    FusedAttention,
    Gemm,
    Group,
    Kernel,
    Op,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of an op, and whether the profile had to go beyond what it was fitted on."""

    duration_s: float
    extrapolated: bool = False


@dataclass(frozen=True)
class Pricer:
    """Prices ops on a profile, for ranks placed on its nodes; each distinct op is priced once."""

    profile: HardwareProfile
    placement: Placement
    _known: dict[Op | HostOp, Cost] = field(default_factory=dict)

    @cached_property
    def gemm_machine(self) -> GemmMachine:
        """The profile's numbers for matrix products."""
        return GemmMachine.of(self.profile)

    def cost(self, op: Op | HostOp) -> Cost:
        """Cost of an op run alone."""
        if op not in self._known:
            self._known[op] = self._price(op)
        return self._known[op]

    def transfer_s(self, num_bytes: float, same_node: bool, num_sharing: int = 1) -> float:
        """Seconds to send bytes from a rank of one stage to its peer of another."""
        return transfer_seconds(
            num_bytes, same_node=same_node, num_sharing=num_sharing, profile=self.profile
        )

    def group(self, group: Group) -> GroupPlacement:
        """How the ranks of a group lie on the nodes."""
        return _group(self.placement, group)

    def extrapolated(self) -> tuple[str, ...]:
        """Names of the ops priced so far that lie outside what the profile was fitted on."""
        return tuple(sorted({op.name for op, cost in self._known.items() if cost.extrapolated}))

    def _price(self, op: Op | HostOp) -> Cost:
        match op:
            case Gemm():
                return Cost(
                    gemm_seconds(op, self.gemm_machine),
                    gemm_is_extrapolated(op, self.profile.gemm),
                )
            case FusedAttention():
                kernel = self.profile.fused_attention
                assert kernel is not None, "a scenario is checked against its profile before"
                return Cost(
                    attention_seconds(op, AttentionMachine.of(self.profile, kernel)),
                    attention_is_extrapolated(op, kernel.valid_shapes.value),
                )
            case Elementwise():
                latency_s = self.profile.memory_bound.kernel_latency.value
                return Cost(latency_s + op.moved_bytes / self._bandwidth(op.kernel))
            case Collective():
                group = self.group(op.group)
                return Cost(
                    collective_seconds(op, group, self.profile),
                    collective_is_extrapolated(op, group, self.profile),
                )
            case HostOp():
                return Cost(op.num_bytes / host_bytes_per_s(op.resource, self.profile))

    def _bandwidth(self, kernel: Kernel) -> float:
        memory = self.profile.memory_bound
        fused = kernel is Kernel.FUSED
        return (memory.fused_bandwidth if fused else memory.stream_bandwidth).value


@functools.lru_cache(maxsize=1024)
def _group(placement: Placement, group: Group) -> GroupPlacement:
    return {
        Group.TENSOR: placement.tensor_group,
        Group.DATA: placement.data_group,
        Group.EMBEDDING: placement.embedding_group,
        Group.MODEL: placement.model_group,
        Group.ALL: placement.all_ranks,
    }[group]()
