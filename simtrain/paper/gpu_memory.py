"""Figure 1: parameters, optimizer states and activations against the memory of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.hardware.load import profile_of
from simtrain.memory.curve import stage_steps
from simtrain.memory.states import model_states
from simtrain.memory.working import pass_memory
from simtrain.paper.comparison import Progress
from simtrain.paper.entries import GIB, Entry, Limit, Reproduction, Section
from simtrain.paper.formulas import Formulas
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_plan, paper_scenario
from simtrain.plan import Plan
from simtrain.scenario import Scenario
from simtrain.schedules import most_outstanding

STRATEGIES = (BASELINE, PRESENT)


@dataclass(frozen=True, slots=True)
class AsRead:
    """Bars of Figure 1 as others read them off, in GiB (the paper prints no figures)."""

    states: float
    activations: tuple[float, float]


FIGURE1 = {
    "22B": AsRead(45.6, (59.3, 9.6)),
    "175B": AsRead(45.6, (66.8, 12.4)),
    "530B": AsRead(31.6, (114, 23.1)),
    "1T": AsRead(33, (131, 26.6)),
}
READING, ENDS = 0.01, 0.03
STATES = "parameters, gradients and optimizer states of a stage's layers"
EMBEDDINGS = "the same of embedding and final layer norm on the first stage"
ACTIVATIONS = "activations of the first stage, replayed"
TOTAL = "states and activations of the first stage"
_STATES_NOTE = (
    "Paper: the bars as others read them off the figure. They are 18 bytes for each of the 12h²L "
    "weights, divided evenly over the GPUs; ours are the layers' with biases and layer norms. "
    "Limit: 1 %, the width of a reading."
)
_EMBEDDINGS_NOTE = "The figure leaves these out. Beside them the first stage holds the layers'."
_EQUATIONS_NOTE = (
    "Paper: Equations 5 and 6 (of the baseline: Equation 2 times L), times 1 + (p-1)/(pm) where "
    "the schedule is interleaved. Ours: forward passes outstanding on the first stage, times what "
    "the ops of a chunk's layers keep. Equal to the last byte. This is the figure's convention."
)
_ACTIVATIONS_NOTE = (
    "Paper: the bars as read. Ours: the fullest moment of the first stage's replayed schedule. "
    "Limit: 3 %, for what the figure leaves out: embedding dropout and, without a pipeline, the "
    "head with its fp32 logits (0.2 GiB of the 22B model)."
)
_TOTAL_NOTE = (
    "Paper: every baseline is above the memory of the GPU, and present work fits. Buffers and the "
    "allocator come on top: `simtrain memory`."
)


def fig1(progress: Progress | None = None) -> Reproduction:
    """The bars of Figure 1, the equations they come from, and the replayed first stage."""
    states, embeddings, equations, activations, totals = [], [], [], [], []
    for number, model in enumerate(MODELS):
        if progress:
            progress(model, number, len(MODELS))
        read = FIGURE1[model]
        layers, ends, capacity = _states_bytes(paper_scenario(model, BASELINE))
        read_bytes = read.states * 2**30
        states.append(Entry((model,), read_bytes, layers, Limit.near(read_bytes, READING)))
        embeddings.append(Entry((model,), None, ends))
        for strategy, gib in zip(STRATEGIES, read.activations, strict=True):
            labels, plan = (model, strategy), paper_plan(paper_scenario(model, strategy))
            held, held_read = replayed_bytes(plan, 0), gib * 2**30
            activations.append(Entry(labels, held_read, held, Limit.near(held_read, ENDS)))
            paper = float(Formulas.of(plan.scenario).first_stage_bytes)
            equations.append(Entry(labels, paper, _layers_bytes(plan), Limit.exactly(paper)))
            fits = strategy == PRESENT
            limit = Limit(highest=capacity) if fits else Limit(lowest=capacity)
            totals.append(Entry(labels, None, layers + ends + held, limit))
    one, two = ("model",), ("model", "strategy")
    sections = (
        Section(STATES, GIB, one, tuple(states), _STATES_NOTE),
        Section(EMBEDDINGS, GIB, one, tuple(embeddings), _EMBEDDINGS_NOTE),
        Section("activations by the equations", GIB, two, tuple(equations), _EQUATIONS_NOTE),
        Section(ACTIVATIONS, GIB, two, tuple(activations), _ACTIVATIONS_NOTE),
        Section(TOTAL, GIB, two, tuple(totals), _TOTAL_NOTE),
    )
    return Reproduction("Figure 1: parameters, optimizer states and activations", sections)


def replayed_bytes(plan: Plan, stage: int) -> int:
    """The most activations that a stage holds at any time."""
    return max(step.activations_bytes for step in stage_steps(plan, stage))


def _states_bytes(scenario: Scenario) -> tuple[int, int, int]:
    """States of the first stage's layers, of the rest of it, and the memory of a GPU."""
    plan = paper_plan(scenario)
    parameters = plan.stage_parameters[0]
    layers = model_states(plan.step_options, parameters.layers).total_bytes
    whole = model_states(plan.step_options, parameters.total).total_bytes
    return layers, whole - layers, profile_of(scenario).gpu.memory_capacity.value


def _layers_bytes(plan: Plan) -> int:
    """What the layers of all forward passes keep that the first stage has outstanding at most."""
    layers = plan.layers_pass(plan.scenario.layers_of_chunk(0), "F")
    return most_outstanding(plan.schedule.ranks[0]) * pass_memory(layers).left_bytes
