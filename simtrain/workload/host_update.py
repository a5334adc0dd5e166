"""The update of parameters on the host as groups of them: NVMe reads, Adam, and NVMe writes.

With a delayed update or with states on NVMe, the update has streams of its own: while Adam updates
one group, NVMe reads the states of the next one and writes those of the last one.

Sources: Ren et al., "ZeRO-Offload" (2021), Section 5.2; Rajbhandari et al., "ZeRO-Infinity" (2021),
Section 5.2.2; DeepSpeed's runtime/swap_tensor/pipelined_optimizer_swapper.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from simtrain.workload.chunk import Parameters
from simtrain.workload.ops import Op, Phase
from simtrain.workload.step_options import StepOptions
from simtrain.workload.work import FP32_BYTES, HostResource, HostWork

UpdateKind = Literal["read", "adam", "write"]
UPDATE_KINDS: tuple[UpdateKind, ...] = ("read", "adam", "write")
NUM_BUFFERS = 3
"""Groups whose states are in the host's memory at once: read, updated and written."""
ADAM_READS = 4
"""Gradient, master weight, momentum, variance (all fp32)."""
ADAM_WRITES = 3
"""Master weight, momentum, variance."""


def group_sizes(options: StepOptions, parameters: Parameters) -> tuple[int, ...]:
    """Return the number of parameters in each group that a rank updates at once; the last is rest.

    Empty if the update has no streams of its own, or nothing is trained.
    """
    trained = parameters.trained
    number = options.held(trained.total, trained.experts, from_stage=1)
    if not options.updates_beside or not number:
        return ()
    whole, rest = divmod(number, options.sub_group_size)
    return (options.sub_group_size,) * whole + ((rest,) if rest else ())


def update_op(options: StepOptions, kind: UpdateKind, size: int) -> Op | None:
    """Return the work of a kind on a group of `size` parameters; None if it has none.

    NVMe reads what Adam reads, and gradients if these are on NVMe. It writes what Adam writes, and
    the parameters of the model in the compute type if these are on NVMe.
    """
    states, users = sum(options.state_bytes), options.users
    match kind:
        case "read":
            if not options.optimizer_on_nvme:
                return None
            gradients = FP32_BYTES if options.offloads_gradients else 0
            work = HostWork(size * (states + gradients), HostResource.NVME_READ, users)
            return Op("optimizer states from NVMe", work, Phase.OPTIMIZER)
        case "adam":
            moved = (ADAM_READS + ADAM_WRITES) * FP32_BYTES
            work = HostWork(size * moved, HostResource.ADAM, users)
            return Op("Adam on the host", work, Phase.OPTIMIZER)
        case "write":
            written = states * options.optimizer_on_nvme
            written += options.element_bytes * options.parameters_on_nvme
            work = HostWork(size * written, HostResource.NVME_WRITE, users, leaves=True)
            return Op("states to NVMe", work, Phase.OPTIMIZER) if written else None


def update_ops(options: StepOptions, parameters: Parameters) -> Iterator[Op]:
    """Yield all work of an update, group by group."""
    for size in group_sizes(options, parameters):
        for kind in UPDATE_KINDS:
            if op := update_op(options, kind, size):
                yield op
