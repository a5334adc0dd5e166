"""The example of ZeRO: where the memory of GPT-2 1.5B goes.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020),
Section 3, and the division of model states by stages over replicas (its Section 5).
"""

from __future__ import annotations

from simtrain.memory.buffers import FP32_GRADIENTS, step_buffers
from simtrain.memory.states import model_states
from simtrain.paper.comparison import Progress
from simtrain.paper.entries import GIGABYTES, Entry, Limit, Reproduction, Section
from simtrain.paper.formulas import Formulas
from simtrain.paper.layer_work import saved_bytes
from simtrain.paper.models import paper_plan
from simtrain.scenario import Scenario, load_scenario
from simtrain.workload.record import record_pass

GPT2 = "gpt2_1_5b"
STAGES = (0, 1, 2, 3)
REPLICAS = (1, 2, 4, 8, 16, 32, 64)
PARTS, ALL_STATES = "model states and buffers", "weights, gradients and optimizer states"
STATES = "model states by ZeRO stage and number of replicas"
SMALL_GPU_GB = 32
"""The GPU on which the text says that the model cannot be trained."""
LINEAR_OUTPUTS = ("query and key", "value", "attention output", "GeLU input", "GeLU output")
"""What the text's 12 · hidden · batch · sequence · layers elements are: 3 + 1 + 4 + 4."""
UNIT_LAYERS = 6
"""48 layers cut into about as many units as each has layers (√48 is 6.9): 8 units of 6."""
ROUNDED, CHECKPOINTED = 0.05, 0.1
_STATES_NOTE = (
    "Paper: Section 3 of ZeRO, for 1.5 billion parameters. Limit: 5 %, since the model has 1.56 "
    "billion: the rounding of its name, and a vocabulary padded to 50304."
)
_ACTIVATIONS_NOTE = (
    "Paper: 60 GB, by its footnote 12 x hidden x batch x sequence x layers elements of 2 bytes. "
    "These are the outputs of the linear layers only: Q, K, V, attention output, both sides of "
    "GeLU. A layer also keeps the inputs of its layer norms and linear layers and the dropout "
    "masks (10 of 34 sbh) and, without a fused attention, the attention scores (80 sbh more): "
    "held to Equation 1 of Korthikanti et al., and to its 34 sbh with selective recompute."
)
_CHECKPOINT_NOTE = (
    "Paper: about 8 GB, about the square root of the layers kept and as many computed again at "
    "once; limit 10 %. Below it ours for one layer a unit, which keeps more and holds less at once."
)
_ZERO_NOTE = (
    "Paper: 2 + 2 + 12 bytes a parameter, each part divided by the replicas from its stage on. "
    "Limit: 16 bytes, where the parameters are no multiple of the replicas."
)


def zero(progress: Progress | None = None) -> Reproduction:
    """The figures of Section 3, and the model states under every stage of ZeRO."""
    scenario = load_scenario(GPT2)
    sections = (_states(scenario), _activations(), _checkpointing(), _divided(scenario))
    return Reproduction("ZeRO: the memory of GPT-2 1.5B", sections)


def _states(scenario: Scenario) -> Section:
    plan, num_parameters = paper_plan(scenario), _num_parameters(scenario)
    states = model_states(plan.step_options, num_parameters)
    buffers = step_buffers(plan, num_parameters, global_bytes=0)
    rows = (
        ("weights in fp16", 3e9, states.parameters_bytes),
        (ALL_STATES, 24e9, states.total_bytes),
        ("gradients flattened into an fp32 buffer", 6e9, buffers[FP32_GRADIENTS]),
    )
    entries = tuple(
        Entry((name,), paper, ours, Limit.near(paper, ROUNDED)) for name, paper, ours in rows
    )
    return Section(PARTS, GIGABYTES, ("part",), entries, _STATES_NOTE)


def _activations() -> Section:
    everything = load_scenario(GPT2, ("recompute=none",))
    selective = load_scenario(GPT2, ("recompute=selective",))
    entries = [
        Entry(
            ("as the text counts: outputs of the linear layers",),
            60e9,
            _linear_output_bytes(everything, everything.model.num_layers),
            Limit.near(60e9, ROUNDED),
        )
    ]
    for name, scenario in (
        ("everything that the layers keep", everything),
        ("the same with selective recompute", selective),
    ):
        formulas = Formulas.of(scenario)
        paper = float(formulas.layer_bytes * formulas.layers)
        ours = saved_bytes(scenario, formulas.layers)
        entries.append(Entry((name,), paper, ours, Limit.exactly(paper)))
    title = "activations, 32 sequences of 1024 tokens"
    return Section(title, GIGABYTES, ("counted",), tuple(entries), _ACTIVATIONS_NOTE)


def _checkpointing() -> Section:
    long = f"recompute={{strategy: full, num_layers: {UNIT_LAYERS}}}"
    units, layers = load_scenario(GPT2, (long,)), load_scenario(GPT2)
    everything = load_scenario(GPT2, ("recompute=none",))
    counted = _inputs_bytes(units) + _linear_output_bytes(everything, UNIT_LAYERS)
    inputs = _inputs_bytes(layers)
    again = saved_bytes(everything) - saved_bytes(layers)
    entries = (
        Entry(
            (f"as the text counts: units of {UNIT_LAYERS} layers",),
            8e9,
            counted,
            Limit.near(8e9, CHECKPOINTED),
        ),
        Entry(("units of one layer: their inputs",), None, inputs),
        Entry(("units of one layer: everything of one layer beside them",), None, inputs + again),
    )
    return Section(
        "activations with checkpointing", GIGABYTES, ("kept",), entries, _CHECKPOINT_NOTE
    )


def _divided(scenario: Scenario) -> Section:
    num_parameters = _num_parameters(scenario)
    entries = []
    for stage in STAGES:
        for replicas in REPLICAS:
            if replicas == 1 and stage:
                continue  # there is nothing to divide over
            options = paper_plan(_replicated(stage, replicas)).step_options
            ours = model_states(options, num_parameters).total_bytes
            parts = zip((12, 2, 2), (1, 2, 3), strict=True)
            per_parameter = sum(
                size / replicas if stage >= first else size for size, first in parts
            )
            paper = per_parameter * num_parameters
            labels = (str(stage), str(replicas))
            entries.append(Entry(labels, paper, ours, Limit.within(paper, 16)))
    return Section(STATES, GIGABYTES, ("ZeRO stage", "replicas"), tuple(entries), _ZERO_NOTE)


def _replicated(stage: int, replicas: int) -> Scenario:
    batch = 32 * replicas
    return load_scenario(
        GPT2,
        (f"memory.zero_stage={stage}", f"parallelism.data={replicas}", f"batch.global={batch}"),
    )


def _num_parameters(scenario: Scenario) -> int:
    return paper_plan(scenario).stage_parameters[0].total


def _inputs_bytes(scenario: Scenario) -> int:
    """What the forward pass keeps of checkpointed layers."""
    return saved_bytes(scenario, scenario.model.num_layers)


def _linear_output_bytes(scenario: Scenario, num_layers: int) -> int:
    ops = record_pass(paper_plan(scenario).layers_pass(num_layers, "F")).ops
    tensors = (tensor for op in ops for tensor in op.saves)
    return sum(tensor.num_bytes for tensor in tensors if tensor.name in LINEAR_OUTPUTS)
