"""Duration of any work on a hardware profile: the one place where ops meet hardware."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simtrain.durations.attention import (
    AttentionMachine,
    attention_is_extrapolated,
    attention_seconds,
)
from simtrain.durations.collectives import (
    collective_is_extrapolated,
    collective_seconds,
    device_load,
    transfer_seconds,
)
from simtrain.durations.gemm import GemmMachine, gemm_is_extrapolated, gemm_seconds
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.sections import KernelBandwidths
from simtrain.workload.work import (
    Collective,
    Elementwise,
    FusedAttention,
    Gemm,
    GroupedGemm,
    HostResource,
    HostWork,
    ProductType,
    Work,
)

_MOST_CACHED = 1 << 17


@dataclass(frozen=True)
class DurationModel:
    """Durations of work that runs alone on a profile's machine; equal work is computed once."""

    profile: HardwareProfile
    _seconds: dict[Work, float] = field(default_factory=dict, repr=False)
    _machines: dict[ProductType, GemmMachine] = field(default_factory=dict, repr=False)

    def gemm_machine(self, dtype: ProductType) -> GemmMachine:
        """The numbers for matrix products of a data type."""
        machine = self._machines.get(dtype)
        if machine is None:
            machine = self._machines[dtype] = GemmMachine.of(self.profile, dtype)
        return machine

    def seconds(self, work: Work) -> float:
        """Time of one piece of work."""
        known = self._seconds.get(work)
        if known is None:
            if len(self._seconds) >= _MOST_CACHED:  # bounds the memory of long studies
                self._seconds.clear()
            known = self._seconds[work] = self._seconds_of(work)
        return known

    def transfer_s(self, num_bytes: float, levels_crossed: int, num_sharing: int = 1) -> float:
        """Time of a transfer between pipeline ranks (see `transfer_seconds`)."""
        return transfer_seconds(
            num_bytes, levels_crossed, num_sharing=num_sharing, profile=self.profile
        )

    def device_load(self, work: Work) -> float:
        """Share of the GPU that work uses while it runs alone: 1, or less for a collective.

        Copy engines move bytes to and from the host, so they put no load on it.
        """
        if isinstance(work, Collective):
            return device_load(work, self.seconds(work), self.profile)
        return 0.0 if isinstance(work, HostWork) else 1.0

    def is_extrapolated(self, work: Work) -> bool:
        """Whether the work is outside the range on which the profile was fitted."""
        match work:
            case Gemm():
                return gemm_is_extrapolated(work, self.profile)
            case GroupedGemm():
                return self.is_extrapolated(work.product)
            case FusedAttention():
                kernel = self.profile.fused_attention
                return kernel is not None and attention_is_extrapolated(
                    work, kernel.valid_shapes.value
                )
            case Collective():
                return collective_is_extrapolated(work, self.profile)
        return False

    def _seconds_of(self, work: Work) -> float:
        match work:
            case Gemm():
                return gemm_seconds(work, self.gemm_machine(work.dtype))
            case GroupedGemm():
                return work.batch * self.seconds(work.product)
            case FusedAttention():
                kernel = self.profile.fused_attention
                assert kernel is not None, "a scenario is checked against its profile before"
                return attention_seconds(work, AttentionMachine.of(self.profile, kernel))
            case Elementwise():
                latency_s = self.profile.memory_bound.kernel_latency.value
                return latency_s + work.moved_bytes / self._bandwidth(work)
            case Collective():
                return collective_seconds(work, self.profile)
            case HostWork():
                return work.num_bytes / self._host_bytes_per_s(work)

    def _bandwidth(self, work: Elementwise) -> float:
        memory, family = self.profile.memory_bound, work.family
        of_family: KernelBandwidths | None = getattr(memory.kernels, family.value, None)
        measured = of_family and (of_family.backward if work.is_backward else of_family.forward)
        if of_family and measured is None and family.is_alike_backward:
            measured = of_family.forward
        default = memory.stream_bandwidth if family.streams else memory.fused_bandwidth
        return (measured or default).value

    def _host_bytes_per_s(self, work: HostWork) -> float:
        """One GPU's share of a resource of its node, given the ranks that use it."""
        if work.resource is HostResource.SWAP:
            disk = HostResource.NVME_WRITE if work.leaves else HostResource.NVME_READ
            path = (HostResource.LINK, disk)
            return min(self._host_bytes_per_s(replace(work, resource=each)) for each in path)
        gpus = self.profile.cluster.gpus_per_node.value
        users = gpus if work.users is None else min(work.users, gpus)
        link, disks = self.profile.host_link, self.profile.nvme
        if work.resource in (HostResource.NVME_READ, HostResource.NVME_WRITE):
            assert disks is not None, "scenario.check refuses states on NVMe without nvme"
            is_read = work.resource is HostResource.NVME_READ
            return (disks.read_bandwidth if is_read else disks.write_bandwidth).value / users
        assert link is not None, "scenario.check refuses offloading without a host_link"
        is_adam = work.resource is HostResource.ADAM
        of_each = (link.adam_bandwidth if is_adam else link.bandwidth).value
        if link.single_bandwidth is None:
            return of_each
        shared = of_each * gpus / users
        return shared if is_adam else min(shared, link.single_bandwidth.value)
