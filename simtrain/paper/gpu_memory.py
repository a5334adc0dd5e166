"""Figure 1: parameters, optimizer states and activations, compared with a GPU's memory."""

from __future__ import annotations

from simtrain.hardware.load import profile_of
from simtrain.iteration.memory.replay import MemoryReplay
from simtrain.iteration.memory.states import model_states
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.paper.entries import PaperEntry, PaperLimit, Progress, Reproduction, reported
from simtrain.paper.formulas import Formulas
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_plan, paper_scenario
from simtrain.paper.published import reproduction
from simtrain.scenario import Scenario
from simtrain.schedules import most_outstanding


def fig1(progress: Progress | None = None) -> Reproduction:
    """Reproduce the bars of Figure 1, their equations, and the replayed first stage."""
    states, embeddings, equations, activations, totals = {}, {}, {}, {}, {}
    for model in reported(MODELS, progress):
        layers, ends, capacity = _states_bytes(paper_scenario(model, BASELINE))
        states[model], embeddings[model] = layers, ends
        for strategy in (BASELINE, PRESENT):
            labels, plan = (model, strategy), paper_plan(paper_scenario(model, strategy))
            activations[labels] = activations_bytes = replayed_bytes(plan, 0)
            paper = float(Formulas.of(plan.scenario).first_stage_bytes)
            equations[labels] = paper, _layers_bytes(plan)
            fits = strategy == PRESENT
            limit = PaperLimit(highest=capacity) if fits else PaperLimit(lowest=capacity)
            totals[labels] = PaperEntry(labels, None, layers + ends + activations_bytes, limit)
    return reproduction(
        "fig1",
        states=states,
        embeddings=embeddings,
        equations=equations,
        activations=activations,
        totals=totals,
    )


def replayed_bytes(plan: Plan, stage: int) -> int:
    """Return the peak of a stage's activations in bytes, from the replayed schedule."""
    actions = slice(*plan.schedule.rank_starts[stage : stage + 2].tolist())
    return int(MemoryReplay.of(plan).running_bytes[actions].max())


def _states_bytes(scenario: Scenario) -> tuple[int, int, int]:
    """Return bytes of the first stage: states of its layers, other states; and a GPU's capacity."""
    plan = paper_plan(scenario)
    parameters = plan.stage_parameters[0]
    layers = model_states(plan.step_options, parameters.layers).total_bytes
    whole = model_states(plan.step_options, parameters.total).total_bytes
    return layers, whole - layers, profile_of(scenario).gpu.memory_capacity.value


def _layers_bytes(plan: Plan) -> int:
    """Return the layers' activations in all forward passes outstanding on the first stage."""
    layers = plan.layers_pass(plan.scenario.chunks_layers[0], "F")
    return int(most_outstanding(plan.schedule)[0]) * pass_memory(layers).remaining_bytes
