"""`recompute: optimal` finds what enumeration of all sets finds, and is never slower."""

import itertools
from dataclasses import dataclass

import pytest

from simtrain.durations.model import DurationModel
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import Scenario
from simtrain.studies.choose import choose
from simtrain.studies.op_sets import best_op_sets
from simtrain.workload import blocks
from simtrain.workload.ops import Tensor
from simtrain.workload.saved_ops import layer_tensors
from simtrain.workload.tape import Tape, record
from tests.helpers.toys import a100, scenario_with
from tests.studies.test_choose import profile_with, time_of

MODEL = {"num_layers": 4, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048}
LLAMA = MODEL | {
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}


@dataclass(frozen=True)
class SmallLayer:
    """A gated MLP: six ops, so that all 64 sets can be simulated."""

    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        y = blocks.norm(tape, x, "norm", "rms_norm")
        gate, values = blocks.column_linears(
            tape, y, {"gate": 4096, "up": 4096}, "MLP", biases={"gate": False, "up": False}
        )
        y = blocks.activation(tape, (gate, values), "SwiGLU", gated=True)
        return blocks.add(tape, (blocks.row_linear(tape, y, "down", bias=False),), x, "residual")


def scenario_of(recompute: object, stack: str = "torchtitan_compiled") -> Scenario:
    return scenario_with(
        LLAMA, batch={"micro": 1, "global": 4}, recompute=recompute, software={"stack": stack}
    )


def layers_of(scenario: Scenario) -> list[SmallLayer]:
    return [SmallLayer()] * scenario.model.num_layers


def small_plan(scenario: Scenario) -> Plan:
    return Plan.of(scenario, a100().cluster.gpus_per_node.value, None, layers_of(scenario))


def peak(scenario: Scenario) -> int:
    return memory_report(small_plan(scenario), profile_with(1)).fullest.peak_bytes


def capacity(share: float) -> int:
    """Return a capacity in which this share of all activations fits."""
    least, whole = peak(scenario_of("full")), peak(scenario_of("none"))
    return int(least + share * (whole - least))


def chosen(scenario: Scenario, num_bytes: int) -> PlannedIteration:
    machine = Machine(DurationModel(profile_with(num_bytes)))
    return choose(scenario, machine, layers_of(scenario)).chosen.evaluation


@pytest.fixture(scope="module")
def every_set() -> list[tuple[int, float]]:
    """Peak and time of every set of saved ops."""
    tensors = layer_tensors(record(SmallLayer(), small_plan(scenario_of("none")).microbatch))
    names = [node.name for node in tensors.nodes]
    assert len(names) == 6
    sets = itertools.chain.from_iterable(
        itertools.combinations(["norm", "gate", "up", "SwiGLU", "down", "residual sum"], size)
        for size in range(7)
    )
    scenarios = [scenario_of({"saved_ops": list(ops)}) for ops in sets]
    return [
        (peak(scenario), time_of(small_plan(scenario)).iteration_time_s) for scenario in scenarios
    ]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_the_chosen_set_is_as_fast_as_the_best_of_all(
    share: float, every_set: list[tuple[int, float]]
) -> None:
    limit = capacity(share)
    best_s = min(time_s for num_bytes, time_s in every_set if num_bytes <= limit)
    choice = chosen(scenario_of("optimal"), limit)
    assert choice.fit.peak_bytes <= limit
    assert choice.iteration_time_s <= best_s * (1 + 1e-12)


@pytest.mark.parametrize("stack", ["torchtitan_compiled", "megatron_core"])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.8])
def test_optimal_is_never_slower_than_other_strategies(stack: str, share: float) -> None:
    limit = capacity(share)
    times_s = [
        chosen(scenario_of(strategy, stack), limit).iteration_time_s
        for strategy in ("optimal", "auto")
    ]
    assert times_s[0] <= times_s[1]


def test_times_and_bytes_of_sets_are_those_of_the_passes() -> None:
    scenario = scenario_of("none")
    seconds = DurationModel(a100()).seconds
    sets = best_op_sets(small_plan(scenario), seconds)
    assert sets[0].again_s == 0
    assert [op_set.saved_bytes for op_set in sets] == sorted(
        (op_set.saved_bytes for op_set in sets), reverse=True
    )
    none_s = time_of(small_plan(scenario)).iteration_time_s
    for op_set in sets:
        by_op = scenario_of({"saved_ops": list(op_set.ops)})
        again_s = time_of(small_plan(by_op)).iteration_time_s - none_s
        assert again_s == pytest.approx(4 * op_set.again_s, rel=1e-9, abs=1e-12)
