"""Scenarios, plans, chunks, passes and machines for all tests."""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from calibrate.torch_model.shape import LayerShape
from simtrain.durations.model import DurationModel
from simtrain.hardware.algorithms import Protocol
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.plan import PassVariant, Plan
from simtrain.iteration.programs.pass_tasks import PassMachine, pass_program
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import RecomputePolicy, Scenario, check_scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate
from simtrain.workload.chunk import Chunk, unit_parameters
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.model_ends import GetBatch
from simtrain.workload.ops import Op, Phase
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.passes import Pass, PassKind, PassOptions, record_pass

# Table 3: heads, hidden size, layers, pipeline, interleave, global batch, microbatch; t is 8.
TABLE3 = {
    "22B": (64, 6144, 48, 1, 1, 4, 4),
    "175B": (96, 12288, 96, 8, 3, 64, 1),
    "530B": (128, 20480, 105, 35, 3, 280, 1),
    "1T": (160, 25600, 128, 64, 1, 512, 1),
}
STRATEGIES = [
    (sequence, recompute)
    for recompute in ("none", "selective", "full")
    for sequence in (False, True)
]


def scenario_with(model: dict[str, Any], **sections: Any) -> Scenario:
    """Return a checked scenario from plain data."""
    data = {"model": model, "batch": {"micro": 1, "global": 1}, **sections}
    scenario = Scenario.model_validate(data)
    check_scenario(scenario)
    return scenario


def paper_scenario(name: str, *, sequence: bool = False, recompute: str = "none") -> Scenario:
    """Return a model of Table 3 under a strategy of Table 2."""
    heads, hidden, layers, pipeline, interleave, batch, micro = TABLE3[name]
    return scenario_with(
        {
            "num_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "seq_length": 2048,
        },
        parallelism={
            "tensor": 8,
            "sequence_parallel": sequence,
            "pipeline": pipeline,
            "interleave": interleave,
        },
        batch={"micro": micro, "global": batch},
        recompute=recompute,
    )


@st.composite
def layer_scenarios(draw: st.DrawFn, max_tensor: int = 12) -> Scenario:
    """Draw one layer of any legal shape, on up to `max_tensor` tensor-parallel ranks."""
    t = draw(st.integers(1, max_tensor))
    heads = t * draw(st.integers(1, 5))
    return scenario_with(
        {
            "num_layers": 1,
            "hidden_size": heads * draw(st.integers(1, 40)),
            "num_attention_heads": heads,
            "seq_length": t * draw(st.integers(1, 60)),
            "vocab_size": t * draw(st.integers(1, 500)),
        },
        parallelism={"tensor": t, "sequence_parallel": t > 1 and draw(st.booleans())},
        batch={"micro": (micro := draw(st.integers(1, 6))), "global": micro},
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )


def shape_of(scenario: Scenario) -> LayerShape:
    """Return the sizes of the scenario's layers, for formulas."""
    return LayerShape.of(scenario)


@functools.cache
def a100() -> HardwareProfile:
    """Return the shipped profile."""
    return load_profile("a100_sxm4_80gb")


def changed(profile: HardwareProfile, **values: Any) -> HardwareProfile:
    """Return the profile with other values: host__issue=0.0 sets host.issue.value."""
    for name, value in values.items():
        profile = _set(profile, [*name.split("__"), "value"], value)
    return profile


def _set(model: Any, path: list[str], value: Any) -> Any:
    head, *rest = path
    new = _set(getattr(model, head), rest, value) if rest else value
    return model.model_copy(update={head: new})


_INSTANT = {"name": "instant", "base_latency": "0 s", "node_step": "0 s", "efficiency": 1.0}
INSTANT_RINGS = {
    "inter_node__step_latency": 0.0,
    "collectives__ring": [Protocol.model_validate(_INSTANT)],
}
"""Changes after which rings over nodes have no latencies."""


def ring_start_s() -> float:
    """Return the latency that every ring collective over nodes has once, in the shipped profile."""
    table = a100().collectives
    assert table is not None and table.ring is not None
    (protocol,) = table.ring.value
    return protocol.base_latency


def machine_of(profile: HardwareProfile) -> Machine:
    """Return a machine with empty caches."""
    return Machine(DurationModel(profile))


def exchange_peaks(scenario: Scenario) -> tuple[int, int]:
    """Return the most bytes of gathered parameters and of unreduced gradients in any pass."""
    records = [record_pass(pass_) for pass_ in plan_of(scenario).passes.values()]
    return (
        max(record.gathered_bytes for record in records),
        max(record.bucket_bytes for record in records),
    )


def pass_of(plan: Plan, action: Action) -> Pass:
    """Return the pass that an action of a plan runs."""
    saves_all = (action.virtual_stage, action.microbatch) in saving_all(plan)
    chunk = plan.model_chunks.numbers[action.virtual_stage]
    return plan.passes[PassVariant(chunk, action.kind, saves_all)]


def saving_all(plan: Plan) -> set[tuple[int, int]]:
    """Return the virtual stages and microbatches that save everything."""
    places = np.flatnonzero(plan.pass_order.saves_all).tolist()
    return {plan.schedule.action(place)[::2] for place in places}


def plan_of(scenario: Scenario, num_saved_per_stage: tuple[int, ...] | None = None) -> Plan:
    """Return the scenario's plan on nodes of eight GPUs, as in the shipped profile."""
    return Plan.of(scenario, a100().cluster.gpus_per_node.value, num_saved_per_stage)


def chunk_with(
    scenario: Scenario,
    num_layers: int = 0,
    *,
    batch: bool = False,
    embedding: bool = False,
    head: bool = False,
) -> Chunk:
    """Return a chunk with `num_layers` layers of the scenario's model, and the
    blocks set to true.
    """
    (first, _), (layer, _), (last, _) = gpt_blocks(scenario).runs
    counts = [(GetBatch(), batch), (first, embedding), (layer, num_layers), (last, head)]
    return Chunk(tuple((block, int(count)) for block, count in counts if count))


def pass_with(
    scenario: Scenario,
    chunk: Chunk,
    kind: PassKind,
    *,
    recompute: RecomputePolicy | None = None,
    overlaps: bool = True,
) -> Pass:
    """Return a pass of a chunk without ZeRO.

    Args:
        recompute: policy that replaces the scenario's.
        overlaps: whether tensor-parallel collectives are asynchronous.
    """
    policy = scenario.recompute if recompute is None else recompute
    overlap = OverlapPolicy() if overlaps else OverlapPolicy(frozenset())
    return Pass(chunk, kind, policy, PassOptions(plan_of(scenario).microbatch, overlap))


def ops_of(one: Pass) -> tuple[Op, ...]:
    """Return the ops of a pass, in issue order."""
    return tuple(record_pass(one).ops)


def layer_ops(scenario: Scenario) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Return the ops of one layer, forward and backward."""
    layer = chunk_with(scenario, 1)
    return ops_of(pass_with(scenario, layer, "F")), ops_of(pass_with(scenario, layer, "B"))


def kept_bytes(record: PassRecord) -> int:
    """Return the bytes that the ops of a forward pass save; blocks share no tensors."""
    blocks: dict[int, list[Op]] = defaultdict(list)
    for segment, owner in zip(record.segments, record.owners, strict=True):
        blocks[owner].extend(segment.ops)
    return sum(map(saved_bytes, blocks.values()))


def saved_bytes(ops: Iterable[Op]) -> int:
    """Return the bytes that a block's forward ops save for its backward pass, each tensor once."""
    forward = (op for op in ops if op.phase is Phase.FORWARD)
    return sum(tensor.num_bytes for tensor in {one for op in forward for one in op.saves})


SMALL_MODEL = {"num_layers": 8, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048}
SMALL_GRID = {"tensor": 4, "pipeline": 4, "data": 1}


def small(grid: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return eight layers on four stages of four ranks, with eight microbatches per replica."""
    grid = SMALL_GRID | (grid or {})
    batch = sections.pop("batch", {"micro": 1, "global": 8 * grid["data"]})
    model = SMALL_MODEL | sections.pop("model", {})
    return scenario_with(model, parallelism=grid, batch=batch, **sections)


def run(scenario: Scenario, **changes: Any) -> Result:
    return simulate(scenario, changed(a100(), **changes))


def gradient_reduction_s(result: Result, stage: int) -> float:
    """Return the time in which a stage's own stream averages and reduces gradients."""
    names = ("gradient average", "gradient reduction")
    spans = result.timeline.spans()
    return math.fsum(
        span.duration_s for span in spans if span.stream == f"stage {stage}" and span.name in names
    )


ONE_STAGE = {"tensor": 1, "pipeline": 1, "data": 4}
NARROW = {"gradients": "bf16"}


def zero(stage: int, grid: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return eight layers on one stage, with four replicas of eight microbatches each."""
    memory = {"zero_stage": stage} | sections.pop("memory", {})
    return small(ONE_STAGE | (grid or {}), memory=memory, **sections)


def with_microbatches(scenario: Scenario, number: int) -> Scenario:
    batch = scenario.batch.model_copy(update={"global_": number * scenario.parallelism.data})
    return scenario.model_copy(update={"batch": batch})


def num_parameters(scenario: Scenario) -> int:
    """Return the number of parameters per rank of the first stage."""
    return plan_of(scenario).stage_parameters[0].total


def layer_parameters(scenario: Scenario) -> int:
    """Return the number of parameters of one layer per rank."""
    plan = plan_of(scenario)
    return unit_parameters(plan.chunks[0], plan.microbatch)[0].total


def waits_of(record: PassRecord) -> list[list[int]]:
    """Return, for each op, the positions of the ops that it waits for on other streams."""
    graph = pass_program(record, PassMachine(lambda work: 0.0, 0.0, lambda work: 1.0)).graph
    # Op i is task 2i + 1. Its first wait is for its launch.
    return [
        [other // 2 for other in graph.waits(task)[1:]] for task in range(1, graph.num_tasks, 2)
    ]
