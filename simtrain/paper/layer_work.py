"""Table 2: activations memory, FLOPs and communication of a layer, from its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from simtrain.durations.collectives import total_wire_bytes
from simtrain.memory.working import pass_memory
from simtrain.paper.comparison import Progress
from simtrain.paper.entries import BYTES, FLOPS, PERCENT, Entry, Limit, Reproduction, Section, Unit
from simtrain.paper.formulas import Formulas
from simtrain.paper.models import BASELINE, MODELS, STRATEGIES, paper_plan, paper_scenario
from simtrain.plan import Plan
from simtrain.scenario import Scenario
from simtrain.workload.batch import GetBatch
from simtrain.workload.chunk import Chunk
from simtrain.workload.ops import Op, total_flops
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass

ALONE = "no parallelism"
ACTIVATIONS = "activations memory of a layer"
_NOTE = "Paper: the formulas of Table 2. Ours: sums over the ops of a layer. Equal to the last one."
_ENDS_NOTE = (
    "Paper: the formula of Section 4.3 (embedding dropout, final layer norm, output layer, fp32 "
    "logits), whose text says that these are less than 0.01 % of the total. By its own formula the "
    "embedding's dropout alone is 0.015 %, and with the head, which a model without pipeline has "
    "on its first stage, they are 0.6 %: the shares are held to the formula."
)


def table2(progress: Progress | None = None) -> Reproduction:
    """The rows of Table 2 for the four models of Table 3, and the ends of Section 4.3."""
    cases = {
        (model, strategy): scenario for model in MODELS for strategy, scenario in _configured(model)
    }
    sections = (
        _column(ACTIVATIONS, BYTES, cases, saved_bytes, lambda f: f.layer_bytes),
        _column("FLOPs of a layer", FLOPS, cases, _flops, lambda f: f.layer_flops),
        _column(
            "bytes communicated for a layer",
            BYTES,
            cases,
            _communicated_bytes,
            lambda f: f.layer_communicated_bytes,
        ),
        *_ends(),
    )
    return Reproduction("Table 2: one transformer layer on each rank", sections)


def saved_bytes(scenario: Scenario, num_layers: int = 1) -> int:
    """Bytes that layers keep for their backward pass, by their ops."""
    return pass_memory(paper_plan(scenario).layers_pass(num_layers, "F")).left_bytes


def _configured(model: str) -> Iterator[tuple[str, Scenario]]:
    yield ALONE, paper_scenario(model, BASELINE, "parallelism.tensor=1")
    for strategy in STRATEGIES:
        yield strategy, paper_scenario(model, strategy)


def _column(
    title: str,
    unit: Unit,
    cases: dict[tuple[str, str], Scenario],
    measure: Callable[[Scenario], float],
    formula: Callable[[Formulas], Fraction],
) -> Section:
    entries = []
    for labels, scenario in cases.items():
        paper = float(formula(Formulas.of(scenario)))
        entries.append(Entry(labels, paper, measure(scenario), Limit.exactly(paper)))
    return Section(title, unit, ("model", "strategy"), tuple(entries), _NOTE)


def _both_passes(scenario: Scenario) -> Iterator[Op]:
    plan = paper_plan(scenario)
    for kind in ("F", "B"):
        yield from record_pass(plan.layers_pass(1, kind)).ops


def _flops(scenario: Scenario) -> float:
    return total_flops(_both_passes(scenario))


def _communicated_bytes(scenario: Scenario) -> float:
    """Without what the table leaves out: the gathers that sequence parallelism repeats."""
    return total_wire_bytes(_both_passes(scenario), include_extra=False)


def _ends() -> tuple[Section, Section]:
    """What embedding and head of the 22B model keep, in bytes and as shares of the layers."""
    scenario = paper_scenario("22B", "sequence")
    formulas = Formulas.of(scenario)
    layers, embedding, both = _kept(paper_plan(scenario))
    papers = (float(formulas.embedding_dropout_bytes), float(formulas.ends_bytes))
    ours = (embedding - layers, both - layers)
    names = ("embedding dropout", "embedding, final layer norm, output layer and logits")
    total = float(formulas.first_stage_bytes)
    return (
        Section(
            "what the ends of the 22B model keep (Section 4.3)",
            BYTES,
            ("part",),
            tuple(
                Entry((name,), paper, mine, Limit.exactly(paper))
                for name, paper, mine in zip(names, papers, ours, strict=True)
            ),
            _ENDS_NOTE,
        ),
        Section(
            "the same as a share of the layers' (Equation 5)",
            PERCENT,
            ("part",),
            tuple(
                Entry((name,), paper / total, mine / layers, Limit.near(paper / total, 1e-12))
                for name, paper, mine in zip(names, papers, ours, strict=True)
            ),
            "",
        ),
    )


def _kept(plan: Plan) -> tuple[int, int, int]:
    """What the layers keep, the same with the embedding, and with the head too."""
    (chunk,) = plan.chunks
    blocks = [(block, times) for block, times in chunk.runs if not isinstance(block, GetBatch)]
    embedding, layers, head = blocks
    chunks = (layers,), (embedding, layers), (embedding, layers, head)
    kept = [
        pass_memory(Pass(Chunk(runs), "F", plan.scenario.recompute, plan.options)).left_bytes
        for runs in chunks
    ]
    return kept[0], kept[1], kept[2]
