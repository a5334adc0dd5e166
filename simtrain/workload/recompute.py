"""Which blocks of a chunk are run again in the backward pass, and what they keep until then.

Source: Megatron-LM's core/recompute.py and tensor_parallel/random.py (`CheckpointFunction`, and
`CheckpointWithoutOutput` for regions that drop their outputs too).
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.scenario import RecomputePolicy
from simtrain.workload.segments import KEEP, Treatment

KEEP_ALL = RecomputePolicy()
TOKEN_PREDICTION = "multi-token prediction"
"""The region of a module of multi-token prediction, which full recompute runs again."""
_PREDICTION = Treatment(regions=frozenset({TOKEN_PREDICTION}))
DROP, KEEP_INPUT = Treatment(drops_all=True), Treatment(drops_all=True, keeps_input=True)


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive layers that keep their ops' tensors, or (`again`) only the input of the first.

    `first` is the number of its first layer in the chunk. Layers that are not run `again` recompute
    these `regions` of themselves; `distribute` keeps 1/t of the input.
    """

    first: int
    num_layers: int
    again: bool = False
    regions: frozenset[str] = frozenset()
    distribute: bool = False

    def treatment(self, layer: int) -> Treatment:
        """What a layer of the unit drops."""
        if self.again:
            return KEEP_INPUT if layer == self.first and not self.distribute else DROP
        return Treatment(self.regions)

    @property
    def layers(self) -> range:
        """Numbers of its layers in the chunk."""
        return range(self.first, self.first + self.num_layers)


def treatment_outside(policy: RecomputePolicy) -> Treatment:
    """What blocks that are no layers drop: regions of modules that predict further tokens.

    Source: Megatron-LM's `MultiTokenPredictionLayer._checkpointed_forward`, which recomputes
    nothing with the method block.
    """
    if policy.strategy == "selective":
        return Treatment(_regions(policy))
    is_uniform = policy.strategy == "full" and policy.method == "uniform"
    return _PREDICTION if is_uniform else KEEP


def units(policy: RecomputePolicy, num_layers: int) -> tuple[Unit, ...]:
    """The units of a chunk of `num_layers` layers, first to last.

    `strategy` is none, selective or full: choosing among them (auto) has been done before.
    """
    assert policy.strategy != "auto", "a strategy is chosen before work is laid out"
    if policy.strategy != "full":
        regions = _regions(policy)
        return tuple(Unit(layer, 1, regions=regions) for layer in range(num_layers))
    if policy.method == "block":
        recomputed = min(policy.num_layers, num_layers)
        again = (
            Unit(layer, 1, again=True, distribute=policy.distribute) for layer in range(recomputed)
        )
        return (*again, *(Unit(layer, 1) for layer in range(recomputed, num_layers)))
    return tuple(
        Unit(
            first,
            min(policy.num_layers, num_layers - first),
            again=True,
            distribute=policy.distribute,
        )
        for first in range(0, num_layers, policy.num_layers)
    )


def _regions(policy: RecomputePolicy) -> frozenset[str]:
    """The regions that layers recompute: those that are called as the policy's modules."""
    return frozenset(policy.modules if policy.strategy == "selective" else ())
