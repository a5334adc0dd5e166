"""What a configuration needs at least, without simulating it: its peak, and its iteration time.

Neither is ever above what is simulated: what they rule out is ruled out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

from simtrain.costs.price import Pricer
from simtrain.hardware.placement import Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.report import allocator_bytes
from simtrain.memory.states import model_states
from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.host import HostOp
from simtrain.workload.ops import Collective, Op
from simtrain.workload.optimizer import step_ops
from simtrain.workload.parameters import StageParameters, stage_parameters
from simtrain.workload.recompute import KEEP_ALL
from simtrain.workload.shape import LayerShape

_ROUNDING = 1 - 1e-9
"""Sums in another order differ in their last digits."""


class Bounds:
    """Lower bounds of legal scenarios that differ from a base as the points of a space do."""

    def __init__(self, base: Scenario, profile: HardwareProfile) -> None:
        self.profile = profile
        # Only kernels are priced, whose seconds do not depend on where ranks sit.
        self._pricer = Pricer(profile, Placement.of(base, profile.cluster.gpus_per_node.value))
        self._passes_s = functools.cache(self._kernels_of_passes_s)
        self._states: dict[object, int] = {}
        self._stages: dict[object, tuple[tuple[int, int], ...]] = {}
        self._steps_s: dict[object, float] = {}

    def peak_bytes(self, scenario: Scenario) -> int:
        """A lower bound of the peak of the fullest stage: its model states and their allocator.

        At every moment a rank holds its parameters, gradients and optimizer states, and whatever
        else it holds adds to them; what the allocator holds beside tensors grows with these.
        """
        key = _key_of_states(scenario)
        if key not in self._states:
            last = scenario.parallelism.pipeline - 1
            self._states[key] = max(
                self._stage_peak_bytes(scenario, stage) for stage in {0, min(1, last), last}
            )
        return self._states[key]

    def time_s(self, scenario: Scenario) -> float:
        """A lower bound of the iteration time: kernels alone, in a pipeline, then the optimizer.

        A stage runs the passes of its m microbatches one after another, and each pass takes at
        least the kernels of its layers and head, which share a stream: collectives, launches and
        what slows kernels down only add to that. Before the first of them, its microbatch has
        passed forward through the first chunks of all earlier stages, and after the last of them
        its microbatch passes backward through these: whatever the schedule, each chunk needs the
        one before it forward and the one after it backward. The last of these passes is the first
        stage's, which then has its gradients' norm and its parameters' update before it. So an
        iteration takes at least, for every stage i, with both passes of one microbatch taking c_j
        through the first chunk of stage j and w_i through all chunks of stage i,

            sum over j < i of c_j + m w_i + the first stage's kernels of the optimizer step.

        Where v chunks of p stages are equal, the first two are m w (1 + (p - 1) / (m v)): the
        bubble of the interleaved schedule (Narayanan et al. 2021, Section 2.2.2).
        """
        shape = LayerShape.of(scenario)
        layer_s, head_s = self._passes_s(shape, _certainly_again(scenario.recompute))
        num_microbatches = scenario.num_microbatches
        passes_s = max(
            passed * layer_s + num_microbatches * own * layer_s
            for passed, own in self._num_layers(scenario)
        )
        # The head is on the last stage, which has the most stages before it.
        passed, own = self._num_layers(scenario)[-1]
        passes_s = max(passes_s, passed * layer_s + num_microbatches * (own * layer_s + head_s))
        return _ROUNDING * (passes_s + self._step_s(scenario))

    def _num_layers(self, scenario: Scenario) -> tuple[tuple[int, int], ...]:
        """For each stage: layers of the first chunks of the stages before it, and its own."""
        split = scenario.parallelism
        key = split.pipeline, split.interleave
        if key not in self._stages:
            self._stages[key] = tuple(_num_layers(scenario))
        return self._stages[key]

    def _kernels_of_passes_s(
        self, shape: LayerShape, recompute: RecomputePolicy
    ) -> tuple[float, float]:
        """Seconds of the kernels of a layer, and of the head, for a microbatch both ways."""
        layer, head = Chunk(num_layers=1), Chunk(num_layers=0, has_head=True)
        seconds = [
            self._kernels_s(
                op for one_way in ways for op in one_way(shape, recompute, hide=False).ops()
            )
            for ways in ((layer.forward, layer.backward), (head.forward, head.backward))
        ]
        return seconds[0], seconds[1]

    def _step_s(self, scenario: Scenario) -> float:
        key = _key_of_states(scenario)
        if key not in self._steps_s:
            ops = step_ops(scenario, _parameters(scenario, stage=0))
            serial = (*ops.to_host, *ops.gradient_norm, *ops.update)
            self._steps_s[key] = self._kernels_s(serial)
        return self._steps_s[key]

    def _kernels_s(self, ops: Iterable[Op | HostOp]) -> float:
        return math.fsum(
            self._pricer.cost(op).duration_s for op in ops if not isinstance(op, Collective)
        )

    def _stage_peak_bytes(self, scenario: Scenario, stage: int) -> int:
        parameters = _parameters(scenario, stage)
        states_bytes = model_states(scenario, parameters.total).total_bytes
        return states_bytes + allocator_bytes(self.profile, states_bytes)


def _key_of_states(scenario: Scenario) -> object:
    """What tells apart how many parameters a rank holds, and what ZeRO leaves of their states."""
    split = scenario.parallelism
    return split.tensor, split.pipeline, split.data, scenario.memory.zero_stage


def _parameters(scenario: Scenario, stage: int) -> StageParameters:
    """Parameters of a rank of a stage; how its layers are cut into chunks does not matter."""
    last = scenario.parallelism.pipeline - 1
    layers = scenario.layers_of_stage(stage)
    all_chunks = Chunk(layers, has_embedding=stage == 0, has_head=stage == last)
    tied = scenario.model.tied_embeddings
    return stage_parameters(LayerShape.of(scenario), (all_chunks,), tied=tied)


def _num_layers(scenario: Scenario) -> Iterator[tuple[int, int]]:
    passed = 0
    for stage in range(scenario.parallelism.pipeline):
        yield passed, scenario.layers_of_stage(stage)
        passed += scenario.layers_of_chunk(stage)


def _certainly_again(policy: RecomputePolicy) -> RecomputePolicy:
    """The policy where every layer of every microbatch follows it, else none: at least that."""
    for_all = policy.method == "uniform" and policy.keep_microbatches == 0
    return policy if for_all and policy.strategy != "auto" else KEEP_ALL
