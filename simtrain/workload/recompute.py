"""Which blocks of a chunk are recomputed in the backward pass, and what they save until then.

Source: Megatron-LM's core/recompute.py and tensor_parallel/random.py (`CheckpointFunction`, and
`CheckpointWithoutOutput` for regions that discard their outputs too).
"""

from __future__ import annotations

from simtrain.base.values import dataclass
from simtrain.scenario import RecomputePolicy


@dataclass(frozen=True, slots=True)
class BlockRecompute:
    """What a block recomputes in its backward pass.

    Args:
        regions: names of regions that save only their inputs and are recomputed.
        whole_block: the whole block is recomputed, and saves nothing or only its input.
        saves_input: with `whole_block`, it saves its input, as the first block of a unit.
        ends_unit: with `whole_block`, no other block needs its output, as that of the last one.
        saved_ops: it saves its input and the outputs of these ops (`workload.saved_ops`); None if
            not by op.
    """

    regions: frozenset[str] = frozenset()
    whole_block: bool = False
    saves_input: bool = False
    ends_unit: bool = False
    saved_ops: tuple[str, ...] | None = None


NO_RECOMPUTE = BlockRecompute()
SAVE_ALL = RecomputePolicy.model_construct()
"""The policy of passes that recompute nothing."""
TOKEN_PREDICTION = "multi-token prediction"
"""The region of a module that predicts a further token. Full recompute includes it."""
CHECKPOINTED_NORM = "checkpointed norm"
"""The region of a norm that a software stack checkpoints where the policy recomputes less than the
whole layer."""
_PREDICTION = BlockRecompute(regions=frozenset({TOKEN_PREDICTION}))


@dataclass(frozen=True, slots=True)
class RecomputeUnit:
    """Consecutive layers that are recomputed together, or not at all.

    Args:
        first: number of its first layer in the chunk.
        num_layers: layers of the unit.
        recomputes: saves only the input of the first layer, and runs all layers forward again
            before their backward passes. Otherwise each layer saves its tensors.
        regions: names of the regions that each layer recomputes if the unit does not.
        saved_ops: ops whose outputs each layer saves with its input; None if not by op.
    """

    first: int
    num_layers: int
    recomputes: bool
    regions: frozenset[str]
    saved_ops: tuple[str, ...] | None

    def block_recompute(self, layer: int) -> BlockRecompute:
        if self.recomputes:
            saves_input = layer == self.first
            return BlockRecompute(
                whole_block=True, saves_input=saves_input, ends_unit=layer == self.layers[-1]
            )
        return BlockRecompute(self.regions, saved_ops=self.saved_ops)

    @property
    def layers(self) -> range:
        return range(self.first, self.first + self.num_layers)


def recompute_outside_layers(policy: RecomputePolicy) -> BlockRecompute:
    """Return what blocks outside the layers recompute: regions of multi-token prediction.

    Source: Megatron-LM's `MultiTokenPredictionLayer._checkpointed_forward`, which recomputes
    nothing with the method "block".
    """
    if policy.strategy == "selective":
        return BlockRecompute(_regions(policy))
    is_uniform = policy.strategy == "full" and policy.method == "uniform"
    return _PREDICTION if is_uniform else NO_RECOMPUTE


def recompute_units(policy: RecomputePolicy, num_layers: int) -> tuple[RecomputeUnit, ...]:
    """Divide the layers of a chunk into units, first to last; "auto" is settled earlier."""
    is_open = policy.strategy == "auto"
    assert not is_open, "the strategy is chosen before passes are recorded"
    is_full = policy.strategy == "full"
    is_uniform = is_full and policy.method == "uniform"
    size, regions = policy.num_layers if is_uniform else 1, _regions(policy)
    saved_ops = policy.saved_ops if policy.strategy == "ops" else None
    units = []
    for first in range(0, num_layers, size):
        recomputes = is_uniform or (is_full and first < policy.num_layers)
        number = min(size, num_layers - first)
        units.append(RecomputeUnit(first, number, recomputes, regions, saved_ops))
    return tuple(units)


def _regions(policy: RecomputePolicy) -> frozenset[str]:
    return frozenset(policy.modules if policy.strategy == "selective" else ())
