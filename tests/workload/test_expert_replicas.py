"""Parameters of experts are reduced, sharded and held over replicas of their own, by hand."""

from dataclasses import replace

from simtrain.memory.states import model_states
from simtrain.mesh import Group
from simtrain.workload.chunk import Chunk, parameters, unit_experts
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.optimizer import (
    data_reduction,
    step_ops,
)
from simtrain.workload.step_options import StepOptions
from simtrain.workload.tape import Parameter, Tape
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.toys import plan_of, small

DATA, EXPERT_DATA = Group(("dp",), 8, 8), Group(("dp",), 2, 2)
DENSE, EXPERTS = 1000, 603


class Layer:
    """A layer with a weight of its own, and one of experts."""

    is_unit = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        both = Parameter(DENSE), Parameter(EXPERTS, is_expert=True)
        tape.record("weights", (x,), (x,), lambda order: None, None, parameters=both)
        return x


def options(zero_stage: int) -> StepOptions:
    everyone = Group(("tp", "cp", "ep", "dp", "pp"), 8, 8)
    groups = {"data": DATA, "everyone": everyone, "model": Group(("tp", "pp"), 1, 1)}
    experts = {"expert_data": EXPERT_DATA, "expert_model": Group(("tp", "ep", "pp"), 4, 4)}
    return replace(plan_of(small()).step_options, zero_stage=zero_stage, **groups, **experts)


def sent(ops: tuple[Op, ...]) -> list[tuple[CollectiveKind, int, int]]:
    works = [op.work for op in ops]
    collectives = [work for work in works if isinstance(work, Collective)]
    return [(one.kind, one.array_bytes, one.group.num_ranks) for one in collectives]


def test_a_layer_knows_which_of_its_parameters_belong_to_experts() -> None:
    chunk, batch = Chunk(((Layer(), 3),)), plan_of(small()).microbatch
    held = parameters((chunk,), batch)
    assert (held.total, held.experts, held.layers) == (3 * 1603, 3 * 603, 3 * 1603)
    assert unit_experts(chunk, batch) == (603, 603, 603)


def test_each_kind_is_reduced_over_its_own_replicas() -> None:
    whole, sharded = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
    assert sent(data_reduction(options(0), 1603, 603)) == [(whole, 4000, 8), (whole, 2412, 2)]
    assert sent(data_reduction(options(1), 1603, 603)) == [(sharded, 4000, 8), (sharded, 2412, 2)]


def test_the_optimizer_shards_each_kind_over_its_own_replicas() -> None:
    """1000 / 8 and 603 / 2, rounded up: 125 + 302 of 1603 parameters on the fullest rank."""
    one = options(1)
    states = model_states(one, 1603, 603)
    assert states.optimizer_bytes == 12 * (125 + 302)
    assert states.parameters_bytes == 2 * 1603
    held = parameters((Chunk(((Layer(), 1),)),), plan_of(small()).microbatch)
    step = step_ops(one, held)
    adam = next(op for op in step["update"] if op.name == "Adam")
    assert adam.work.moved_bytes == (4 + 3) * 4 * 427  # type: ignore[union-attr]
    gathers = [(CollectiveKind.ALL_GATHER, 2000, 8), (CollectiveKind.ALL_GATHER, 1206, 2)]
    assert sent(step["parameter_gather"]) == gathers


def test_experts_have_a_norm_of_their_own() -> None:
    """Of the parameters that a rank's group holds: over 4 ranks of experts, or over all ranks."""
    held = parameters((Chunk(((Layer(), 1),)),), plan_of(small()).microbatch)
    norms = {stage: step_ops(options(stage), held)["norm_reduction"] for stage in (0, 1)}
    assert sent(norms[0]) == [(CollectiveKind.ALL_REDUCE, 4, 4)]
    assert sent(norms[1]) == [(CollectiveKind.ALL_REDUCE, 4, 8)] * 2
