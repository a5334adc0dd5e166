"""States of the model that passes copy between the GPU and its host, and between host and NVMe.

Sources: Ren et al., "ZeRO-Offload" (2021), Section 4; Rajbhandari et al., "ZeRO-Infinity" (2021),
Sections 5 and 6; DeepSpeed's runtime/zero/stage3.py (`partition_grads`: gradients of a later
microbatch are added on the GPU to the sum, which comes from the host and goes back to it).
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.base.mesh import Mesh
from simtrain.scenario import Scenario
from simtrain.workload.ops import Op, Phase
from simtrain.workload.work import FP32_BYTES, HostResource, HostWork


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Which states a pass copies.

    Args:
        parameters, gradients: the states on the host.
        one_owner: a parameter belongs to one rank, which copies all of it.
        parameters_on_nvme, gradients_on_nvme: the host reads or writes them on disks too.
        users: ranks that copy gradients at the same time.
        readers: ranks that copy parameters at the same time; with one owner, one per replica group.
        adds_sum: the gradients are added to the sum of earlier microbatches, which comes back.
        is_last: the gradients are complete after this microbatch.
    """

    parameters: bool
    gradients: bool
    one_owner: bool
    parameters_on_nvme: bool
    gradients_on_nvme: bool
    users: int
    readers: int
    adds_sum: bool = False
    is_last: bool = True

    @classmethod
    def of(cls, scenario: Scenario, mesh: Mesh) -> HostCopies | None:
        """Return the copies in passes of a scenario; None without any."""
        memory = scenario.memory
        if not memory.copies_in_passes:
            return None
        one_owner, ranks = memory.parameter_owners == "one", mesh.num_ranks
        return cls(
            memory.offload_parameters,
            memory.offload_gradients,
            one_owner,
            memory.parameters_on_nvme,
            memory.offload_gradients and memory.optimizer_on_nvme,
            users=ranks,
            readers=ranks // mesh.data_group.num_ranks if one_owner else ranks,
            is_last=scenario.num_microbatches == 1,
        )

    def copied_elements(self, elements: int, num_ranks: int) -> int:
        """Parameters that a rank copies to its GPU before `num_ranks` ranks gather them all."""
        return elements if self.one_owner else -(-elements // num_ranks)

    def read(self, num_bytes: int, phase: Phase) -> Op:
        """Read parameters from NVMe to the host."""
        return _op("parameters from NVMe", num_bytes, HostResource.NVME_READ, self.readers, phase)

    def parameters_in(self, num_bytes: int, phase: Phase) -> Op:
        """Copy parameters to the GPU."""
        return _op("parameters from host", num_bytes, HostResource.LINK, self.readers, phase)

    def sum_in(self, num_bytes: int) -> Op:
        """Bring the sum of earlier gradients back to the GPU."""
        phase = Phase.WEIGHT_GRADIENT
        return _op("gradient sum from host", num_bytes, HostResource.LINK, self.users, phase)

    def gradients_out(self, num_bytes: int) -> Op:
        """Copy gradients to the host."""
        phase = Phase.WEIGHT_GRADIENT
        op = _op("gradients to host", num_bytes, HostResource.LINK, self.users, phase, leaves=True)
        return op

    def write(self, elements: int) -> Op:
        """Write gradients to NVMe in the type of the optimizer states."""
        name, phase = "gradients to NVMe", Phase.WEIGHT_GRADIENT
        num_bytes, resource = elements * FP32_BYTES, HostResource.NVME_WRITE
        return _op(name, num_bytes, resource, self.users, phase, leaves=True)


def _op(
    name: str,
    num_bytes: int,
    resource: HostResource,
    users: int,
    phase: Phase,
    *,
    leaves: bool = False,
) -> Op:
    return Op(name, HostWork(num_bytes, resource, users, leaves), phase)
