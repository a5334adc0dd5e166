"""What a configuration needs at least, without simulating it: its peak, and its iteration time.

Neither is ever above what is simulated: what they rule out is ruled out.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

from simtrain.durations.model import DurationModel
from simtrain.hardware.profile import HardwareProfile
from simtrain.memory.report import allocator_bytes
from simtrain.memory.states import model_states
from simtrain.plan import chunk_of, microbatch_of, slices
from simtrain.scenario import Parallelism, RecomputePolicy, Scenario
from simtrain.workload.chunk import Parameters, parameters
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.issue import BLOCKING
from simtrain.workload.ops import Op
from simtrain.workload.optimizer import StepOptions, step_ops
from simtrain.workload.passes import Pass, PassOptions
from simtrain.workload.recompute import KEEP_ALL
from simtrain.workload.record import record_pass
from simtrain.workload.tape import Microbatch
from simtrain.workload.work import Collective

_ROUNDING = 1 - 1e-9
"""Sums in another order differ in their last digits."""


class Bounds:
    """Lower bounds of legal scenarios that differ from a base as the points of a space do."""

    def __init__(self, base: Scenario, profile: HardwareProfile) -> None:
        self.profile = profile
        self._model = gpt_blocks(base)
        self._durations = DurationModel(profile)
        self._passes_s = functools.cache(self._kernels_of_passes_s)
        self._step_s = functools.cache(self._kernels_of_step_s)

    def peak_bytes(self, scenario: Scenario) -> int:
        """A lower bound of the peak of the fullest stage: its model states and their allocator.

        At every moment a rank holds its parameters, gradients and optimizer states, and whatever
        else it holds adds to them; what the allocator holds beside tensors grows with these.
        """
        _, options, stages = self._rank(scenario)
        return max(self._states_bytes(options, one) for one in stages)

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
        microbatch, options, (first, *_) = self._rank(scenario)
        layer_s, head_s = self._passes_s(microbatch, _certainly_again(scenario.recompute))
        num_microbatches = scenario.num_microbatches
        stages = _stage_layers(scenario.model.num_layers, scenario.parallelism)
        passes_s = max(
            passed * layer_s + num_microbatches * own * layer_s for passed, own in stages
        )
        # The head is on the last stage, which has the most stages before it.
        passed, own = stages[-1]
        passes_s = max(passes_s, passed * layer_s + num_microbatches * (own * layer_s + head_s))
        return _ROUNDING * (passes_s + self._step_s(options, first))

    def _rank(self, scenario: Scenario) -> tuple[Microbatch, StepOptions, tuple[Parameters, ...]]:
        """The microbatch of a rank, the options of its step, and each stage's parameters."""
        mesh = scenario.mesh(self.profile.cluster.domains)
        layers = _stage_layers(scenario.model.num_layers, scenario.parallelism)
        stages = slices(self._model, tuple(own for _, own in layers)).different
        microbatch = microbatch_of(scenario, mesh)
        held = tuple(parameters((stage,), microbatch) for stage in stages)
        return microbatch, StepOptions.of(scenario, mesh), held

    def _kernels_of_passes_s(
        self, microbatch: Microbatch, recompute: RecomputePolicy
    ) -> tuple[float, float]:
        """Seconds of the kernels of a layer, and of the head, for a microbatch both ways."""
        blocks = [*self._model.blocks]
        layer = next(block for block in blocks if block.is_unit)
        options = PassOptions(microbatch, BLOCKING)
        layer_s, head_s = (
            math.fsum(
                self._kernels_s(record_pass(Pass(chunk_of([block]), kind, recompute, options)).ops)
                for kind in ("F", "B")
            )
            for block in (layer, blocks[-1])
        )
        return layer_s, head_s

    def _kernels_of_step_s(self, options: StepOptions, first: Parameters) -> float:
        ops = step_ops(options, first)
        serial = (ops.get(name, ()) for name in ("to_host", "norm", "update"))
        return self._kernels_s(itertools.chain.from_iterable(serial))

    def _kernels_s(self, ops: Iterable[Op]) -> float:
        return math.fsum(
            self._durations.seconds(op.work) for op in ops if not isinstance(op.work, Collective)
        )

    def _states_bytes(self, options: StepOptions, held: Parameters) -> int:
        states_bytes = model_states(options, held.total).total_bytes
        return states_bytes + allocator_bytes(self.profile, states_bytes)


@functools.lru_cache(maxsize=4096)
def _stage_layers(num_layers: int, split: Parallelism) -> tuple[tuple[int, int], ...]:
    """For each stage: layers of the first chunks of the stages before it, and its own."""
    stages = [split.layers_of_stage(stage, num_layers) for stage in range(split.pipeline)]
    passed = itertools.accumulate((own // split.interleave for own in stages), initial=0)
    return tuple(zip(passed, stages, strict=False))


def _certainly_again(policy: RecomputePolicy) -> RecomputePolicy:
    """The policy where every layer of every microbatch follows it, else none: at least that."""
    for_all = policy.method == "uniform" and policy.keep_microbatches == 0
    return policy if for_all and policy.strategy != "auto" else KEEP_ALL
