"""What ZeRO stages 2 and 3 do within the passes of a chunk: parameters gathered, gradients reduced.

Sources: Rajbhandari et al., "ZeRO" (2020), Section 7; DeepSpeed's runtime/zero/stage_1_and_2.py and
stage3.py; PyTorch's FullyShardedDataParallel. A gradient of which a rank keeps its part cannot be
added to whole, so each microbatch's is divided by the number of replicas, reduce-scattered layer by
layer in its backward pass, and added to the part. In stage 3 each layer's parameters are gathered
before its forward pass, and again before its backward pass (or the recompute before it, so that one
gather serves both). What is no layer (embedding, final layer norm, output layer) is one more unit,
as FSDP's root: gathered first, there for the whole pass, reduced last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from simtrain.scenario import Scenario
from simtrain.workload.issue import Handle, IssueOrder
from simtrain.workload.ops import Collective, CollectiveKind, Elementwise, Group, Kernel, Phase

OTHERS = -1
"""The unit of all that is no layer."""


@dataclass(frozen=True, slots=True)
class DividedStates:
    """Gradients, and in stage 3 parameters, of which each replica holds a part.

    Numbers of parameters are those of one rank of a replica that holds all of its stage. `hide`
    says whether gathers and reductions run beside compute (overlap.data_parallel).
    """

    data: int
    divides_parameters: bool
    hide: bool
    layer_parameters: int
    other_parameters: int
    element_bytes: int
    gradient_bytes: int

    @classmethod
    def of(cls, scenario: Scenario, layer_parameters: int, others: int) -> DividedStates | None:
        """What a scenario divides within its passes; None before stage 2."""
        stage = scenario.memory.zero_stage
        if stage < 2:
            return None
        return cls(
            data=scenario.parallelism.data,
            divides_parameters=stage == 3,
            hide=scenario.overlap.data_parallel,
            layer_parameters=layer_parameters,
            other_parameters=others,
            element_bytes=scenario.compute_bytes,
            gradient_bytes=scenario.gradient_bytes,
        )

    @property
    def variant(self) -> tuple[bool, ...]:
        """All of it but sizes, as `LayerShape.variant`."""
        layer, others = self.layer_parameters, self.other_parameters
        parts = -(-layer // self.data), -(-others // self.data)
        divides = self.divides_parameters, self.hide, self.data > 1
        # Where they are as many, the ops of a layer and of the others are not told apart.
        return *divides, others > 0, layer == others, parts[0] == parts[1]

    def num_parameters(self, unit: int) -> int:
        """Parameters of a layer or of the others."""
        return self.other_parameters if unit == OTHERS else self.layer_parameters

    def gather(self, unit: int, phase: Phase) -> Collective:
        """All-gather of a unit's parameters in the compute type."""
        num_bytes = self.num_parameters(unit) * self.element_bytes
        return self._collective("parameter gather", CollectiveKind.ALL_GATHER, num_bytes, phase)

    def reduction(self, unit: int) -> Collective:
        """Reduce-scatter of a unit's gradients in the type that they are summed in."""
        num_bytes = self.num_parameters(unit) * self.gradient_bytes
        kind = CollectiveKind.REDUCE_SCATTER
        return self._collective("gradient reduction", kind, num_bytes, Phase.WEIGHT_GRADIENT)

    def average(self, unit: int) -> Elementwise:
        """Divide a unit's gradients by the number of replicas."""
        num_bytes = self.num_parameters(unit) * self.gradient_bytes
        return _pass_over("gradient average", num_bytes, num_bytes)

    def accumulate(self, unit: int) -> Elementwise:
        """Add what was reduced to the part of the gradients that the rank keeps."""
        part_bytes = -(-self.num_parameters(unit) // self.data) * self.gradient_bytes
        return _pass_over("gradient accumulate", 2 * part_bytes, part_bytes)

    def _collective(
        self, name: str, kind: CollectiveKind, num_bytes: int, phase: Phase
    ) -> Collective:
        return Collective(name, kind, num_bytes, self.data, phase, group=Group.DATA)


@dataclass
class ParameterGathers:
    """The gathers of a pass: each unit's before it is used, and the next one's, if they hide."""

    order: IssueOrder
    states: DividedStates
    phase: Phase
    upcoming: deque[int]
    """Units in the order in which they are needed."""
    _in_flight: Handle | None = None

    def need(self, unit: int) -> None:
        """Let what is issued next wait for a unit's parameters, unless it has waited before."""
        if not self.upcoming or self.upcoming[0] != unit:
            return
        handle = self._in_flight or self._launch()
        self._in_flight = None
        self.upcoming.popleft()
        if self.upcoming and self.states.hide:
            self._in_flight = self._launch()
        self.order.wait(handle)

    def _launch(self) -> Handle | None:
        return self.order.launch(self.states.gather(self.upcoming[0], self.phase))


@dataclass
class GradientReductions:
    """The reductions of a backward pass, at most one of them under way at a time."""

    order: IssueOrder
    states: DividedStates
    _in_flight: tuple[int, Handle | None] | None = None

    def reduce(self, unit: int) -> None:
        """Reduce the gradients of a unit, which are complete."""
        self.finish()
        self.order.compute(self.states.average(unit))
        self._in_flight = unit, self.order.launch(self.states.reduction(unit))

    def finish(self) -> None:
        """Take what the last reduction brought."""
        if self._in_flight is not None:
            unit, handle = self._in_flight
            self.order.wait(handle)
            self.order.compute(self.states.accumulate(unit))
            self._in_flight = None


@dataclass
class Replicas:
    """What a pass exchanges with the other replicas; nothing at all without divided states."""

    gathers: ParameterGathers | None = None
    reductions: GradientReductions | None = None

    @classmethod
    def forward(
        cls, order: IssueOrder, states: DividedStates | None, layers: Iterable[int]
    ) -> Replicas:
        """Of a forward pass through these layers."""
        return cls(_gathers(order, states, layers, Phase.FORWARD))

    @classmethod
    def backward(
        cls, order: IssueOrder, states: DividedStates | None, layers: Iterable[int]
    ) -> Replicas:
        """Of a backward pass that needs the layers in this order."""
        reductions = GradientReductions(order, states) if states else None
        return cls(_gathers(order, states, layers, Phase.INPUT_GRADIENT), reductions)

    def need(self, unit: int) -> None:
        """Let what is issued next wait for a unit's parameters."""
        if self.gathers:
            self.gathers.need(unit)

    def reduce(self, unit: int) -> None:
        """Reduce the gradients of a unit."""
        if self.reductions and self.reductions.states.num_parameters(unit):
            self.reductions.reduce(unit)

    def finish(self) -> None:
        """Wait for the last reduction."""
        if self.reductions:
            self.reductions.finish()


def _gathers(
    order: IssueOrder, states: DividedStates | None, layers: Iterable[int], phase: Phase
) -> ParameterGathers | None:
    if states is None or not states.divides_parameters:
        return None
    others = [OTHERS] if states.other_parameters else []
    return ParameterGathers(order, states, phase, deque([*others, *layers]))


def _pass_over(name: str, read_bytes: int, write_bytes: int) -> Elementwise:
    """A kernel over gradients, which are no activations."""
    return Elementwise(name, read_bytes, write_bytes, Phase.WEIGHT_GRADIENT, Kernel.STREAM, holds=0)
