"""Memory of a node's host, and its disks, that offloaded states and activations need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.offload_memory import OffloadMemory
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.units import format_bytes, gib
from simtrain.workload.chunk import Parameters
from simtrain.workload.host_update import NUM_BUFFERS, group_sizes
from simtrain.workload.record import record_pass
from simtrain.workload.step_options import StepOptions
from simtrain.workload.work import FP32_BYTES


@dataclass(frozen=True, slots=True)
class HostStates:
    """Bytes of offloaded model states of one rank: in the host's memory, and on NVMe.

    ZeRO-Infinity, Section 3: 2 bytes of parameters, 2 of gradients, and 16 of momentum, variance,
    master weights and gradients in fp32, per parameter. ZeRO-Offload, Section 3, does not count the
    last ones: 2 + 12 bytes are on the host.

    Args:
        parameters_bytes: of parameters in the compute type.
        gradients_bytes: of reduced gradients; twice with a delayed update, whose Adam reads those
            of the iteration before.
        optimizer_bytes: of master weights, momentum and variance.
        fp32_gradients_bytes: gradients in the type that Adam reads, if they come in another one.
        buffers_bytes: of states between NVMe and Adam, and of parameters between NVMe and the GPU.
        nvme_bytes: of states on NVMe.
    """

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    fp32_gradients_bytes: int = 0
    buffers_bytes: int = 0
    nvme_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes in the host's memory."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.fp32_gradients_bytes
            + self.buffers_bytes
        )


def host_states(
    options: StepOptions,
    parameters: Parameters,
    *,
    staged_bytes: int = 0,
    adds_gradients: bool = False,
) -> HostStates:
    """Return the offloaded states of a rank.

    Args:
        options: options of the optimizer step.
        parameters: those of the rank.
        staged_bytes: most parameters that wait on the host between NVMe and the GPU.
        adds_gradients: several microbatches add their gradients up in the host's memory.
    """
    if not options.offloads:
        return HostStates()
    trained = parameters.trained
    number = options.held(trained.total, trained.experts, from_stage=1)
    weights = options.element_bytes * options.held(
        parameters.total, parameters.experts, from_stage=3
    )
    weights *= options.offloads_parameters
    copies = 2 if options.delays_update else 1
    gradients = copies * options.gradient_bytes * number
    converts = options.gradient_bytes != FP32_BYTES
    states, on_nvme, group = sum(options.state_bytes) * number, 0, 0
    fp32_gradients = FP32_BYTES * number * converts
    if options.optimizer_on_nvme:
        swaps_gradients = options.offloads_gradients
        each = sum(options.state_bytes) + FP32_BYTES * swaps_gradients
        on_nvme += each * number
        group = NUM_BUFFERS * each * max(group_sizes(options, parameters), default=0)
        states, group = 0, min(group, each * number)
        if swaps_gradients:
            gradients *= adds_gradients
            fp32_gradients = 0
    if options.parameters_on_nvme:
        on_nvme, weights = on_nvme + weights, 0
    return HostStates(weights, gradients, states, fp32_gradients, group + staged_bytes, on_nvme)


@dataclass(frozen=True, slots=True)
class HostMemory(PlainData):
    """Memory of a node's host, and NVMe of a node, that hold what is offloaded.

    Args:
        needed_bytes: the most that the ranks of a node need, if they need it at the same time.
        capacity_bytes: memory of the host; None if the profile does not say it.
        states_bytes: the part of `needed_bytes` that model states are.
        nvme_bytes: the most that the ranks of a node have on NVMe.
        nvme_capacity_bytes: NVMe of a node; None without.
        nvme_states_bytes: the part of `nvme_bytes` that model states are.
    """

    json_fields: ClassVar = keys(
        "needed_bytes capacity_bytes states_bytes nvme_bytes nvme_capacity_bytes "
        "nvme_states_bytes fits"
    )

    needed_bytes: int
    capacity_bytes: int | None
    states_bytes: int = 0
    nvme_bytes: int = 0
    nvme_capacity_bytes: int | None = None
    nvme_states_bytes: int = 0

    def __repr__(self) -> str:
        capacity = "" if self.capacity_bytes is None else f" of {format_bytes(self.capacity_bytes)}"
        return f"<HostMemory {format_bytes(self.needed_bytes)}{capacity}>"

    @property
    def fits(self) -> bool:
        """Whether the node has this memory, and this NVMe; true if that is not known."""
        return self.memory_fits and (
            self.nvme_capacity_bytes is None or self.nvme_bytes <= self.nvme_capacity_bytes
        )

    @property
    def memory_fits(self) -> bool:
        """Whether the host has this memory; true if that is not known."""
        return self.capacity_bytes is None or self.needed_bytes <= self.capacity_bytes

    @property
    def subject(self) -> str:
        """What the host holds, in words."""
        return _subject(self.needed_bytes, self.states_bytes)

    @property
    def nvme_subject(self) -> str:
        """What NVMe holds, in words."""
        return _subject(self.nvme_bytes, self.nvme_states_bytes)

    @property
    def shortage(self) -> str:
        """What does not fit: "activations need 12 GiB of a node's host, which has 8 GiB"."""
        if not self.memory_fits:
            needs = f"{self.subject} need {gib(self.needed_bytes)} GiB of a node's host"
            return f"{needs}, which has {gib(self.capacity_bytes or 0)} GiB"
        needs = f"{self.nvme_subject} need {gib(self.nvme_bytes)} GiB of a node's NVMe"
        return f"{needs}, which has {gib(self.nvme_capacity_bytes or 0)} GiB"

    @classmethod
    def of(
        cls, plan: Plan, profile: HardwareProfile, iteration: IterationTimeline | None
    ) -> HostMemory:
        """Add up the peaks of the ranks of each node, which has consecutive ranks.

        A plan that copies activations needs the iteration.
        """
        states, stages = _states_of_stages(plan), range(plan.mesh.pp)
        activations = swapped = [0] * plan.mesh.pp
        if plan.offloads and iteration:
            copies = OffloadMemory.of(iteration)
            activations = [*map(copies.host_bytes, stages)]
            if plan.scenario.offload.swaps:
                activations, swapped = [*map(copies.staged_bytes, stages)], activations
        of_states = [stage.memory_bytes for stage in states]
        on_nvme = [stage.nvme_bytes for stage in states]
        needed = [sum(parts) for parts in zip(activations, of_states, strict=True)]
        on_disks = [sum(parts) for parts in zip(swapped, on_nvme, strict=True)]
        link, disks = profile.host_link, profile.nvme
        gpus = profile.cluster.gpus_per_node.value
        memory = link.memory if link else None
        return cls(
            _on_a_node(plan, gpus, needed),
            memory.value if memory else None,
            _on_a_node(plan, gpus, of_states),
            _on_a_node(plan, gpus, on_disks),
            disks.capacity.value if disks else None,
            _on_a_node(plan, gpus, on_nvme),
        )


def _subject(num_bytes: int, states_bytes: int) -> str:
    """Return what some bytes are, given the part of them that model states are."""
    if not states_bytes:
        return "activations"
    return "offloaded states" + (" and activations" if num_bytes > states_bytes else "")


def _on_a_node(plan: Plan, per_node: int, of_stages: list[int]) -> int:
    """Return the most bytes of the ranks of a node, given those of a rank of each stage."""
    mesh, stride = plan.mesh, plan.mesh.stride("pp")
    if stride >= per_node:
        return per_node * max(of_stages)
    together = max(1, per_node // stride)
    nodes = (of_stages[first : first + together] for first in range(0, mesh.pp, together))
    return stride * max(map(sum, nodes))


def _states_of_stages(plan: Plan) -> list[HostStates]:
    """Return the offloaded states of a rank of each stage."""
    options = plan.step_options
    staged = 0
    if options.parameters_on_nvme:
        staged = max(record_pass(pass_).staged_bytes for pass_ in plan.passes.values())
    return [
        host_states(options, parameters, staged_bytes=staged, adds_gradients=plan.has_turns)
        for parameters in plan.stage_parameters
    ]
