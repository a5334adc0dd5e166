"""Table 2: activation memory, FLOPs and communication of a layer, from its ops."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.durations.collectives import total_wire_bytes
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.paper.entries import Progress, Reproduction
from simtrain.paper.formulas import Formulas
from simtrain.paper.models import BASELINE, MODELS, STRATEGIES, paper_plan, paper_scenario
from simtrain.paper.published import reproduction
from simtrain.scenario import Scenario
from simtrain.workload.batch import GetBatch
from simtrain.workload.chunk import Chunk
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass

ALONE = "no parallelism"


def table2(progress: Progress | None = None) -> Reproduction:
    """Reproduce Table 2 for the models of Table 3, and Section 4.3's embedding and output layer."""
    activations, flops, sent = {}, {}, {}
    for model in MODELS:
        for strategy, scenario in _configured(model):
            labels, formulas = (model, strategy), Formulas.of(scenario)
            forward, backward = layer_ops(scenario)
            ops = [*forward, *backward]
            # The table omits the all-gathers that sequence parallelism repeats in the backward.
            sent_bytes = total_wire_bytes(ops, include_extra=False)
            activations[labels] = float(formulas.layer_bytes), saved_bytes(scenario)
            flops[labels] = float(formulas.layer_flops), total_flops(ops)
            sent[labels] = float(formulas.layer_communicated_bytes), sent_bytes
    scenario = paper_scenario("22B", "sequence")
    formulas = Formulas.of(scenario)
    layers, embedding, both = _kept(paper_plan(scenario))
    ends = {
        "embedding dropout": (float(formulas.embedding_dropout_bytes), embedding - layers),
        "embedding, final layer norm, output layer and logits": (
            float(formulas.ends_bytes),
            both - layers,
        ),
    }
    total = float(formulas.first_stage_bytes)
    shares = {name: (paper / total, ours / layers) for name, (paper, ours) in ends.items()}
    return reproduction(
        "table2",
        activations=activations,
        flops=flops,
        communication=sent,
        ends=ends,
        ends_share=shares,
    )


def saved_bytes(scenario: Scenario, num_layers: int = 1) -> int:
    """Return the bytes that layers save for the backward pass, from their ops."""
    return pass_memory(paper_plan(scenario).layers_pass(num_layers, "F")).remaining_bytes


def _configured(model: str) -> Iterator[tuple[str, Scenario]]:
    yield ALONE, paper_scenario(model, BASELINE, "parallelism.tensor=1")
    for strategy in STRATEGIES:
        yield strategy, paper_scenario(model, strategy)


def layer_ops(scenario: Scenario) -> tuple[list[Op], list[Op]]:
    """Return the ops of a layer's forward pass, and of its backward pass."""
    plan = paper_plan(scenario)
    forward, backward = ([*record_pass(plan.layers_pass(1, kind)).ops] for kind in ("F", "B"))
    return forward, backward


def _kept(plan: Plan) -> tuple[int, int, int]:
    """Return the bytes saved by the layers; plus the embedding; plus embedding and head."""
    (chunk,) = plan.chunks
    blocks = [(block, times) for block, times in chunk.runs if not isinstance(block, GetBatch)]
    embedding, layers, head = blocks
    chunks = (layers,), (embedding, layers), (embedding, layers, head)
    kept = [
        pass_memory(Pass(Chunk(runs), "F", plan.scenario.recompute, plan.options)).remaining_bytes
        for runs in chunks
    ]
    return kept[0], kept[1], kept[2]
