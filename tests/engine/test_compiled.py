"""Compiled loops and evaluators equal SimPy to the last bit, for any scenario and any pass."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.random_programs import times_by_engine
from simtrain.base.resources import list_scenarios
from simtrain.durations.model import DurationModel
from simtrain.engine.compiled import run_loop
from simtrain.engine.idle import idle_seconds
from simtrain.errors import InputError
from simtrain.iteration.memory.report import memory_report, peak_bytes
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.pass_tasks import PassMachine, simulate_pass
from simtrain.iteration.programs.seconds import IterationSeconds, Machine, pass_flops
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.check import RULES
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate as simulate_scenario
from simtrain.workload.ops import total_flops, total_model_flops
from simtrain.workload.passes import Pass, PassKind
from simtrain.workload.record import record_pass
from simtrain.workload.work import Collective, Work
from tests.helpers.toys import a100, plan_of, small, zero

SORTED = st.lists(st.integers(0, 60), max_size=20).map(sorted)


@given(st.lists(SORTED, min_size=4, max_size=4), st.integers(60, 70))
def test_idle_time_is_charged_to_the_first_running_stream(
    streams: list[list[int]], makespan: int
) -> None:
    """Stream 0 waits for streams 1 and 2 (category 0) and for stream 3 (category 1)."""
    tasks = [list(zip(moments[::2], moments[1::2], strict=False)) for moments in streams]
    running = [{at for start, end in queue for at in range(start, end)} for queue in tasks]
    idle = {*range(makespan)} - running[0]
    first = idle & (running[1] | running[2])
    expected = [len(first), len((idle & running[3]) - first)]
    starts = np.cumsum([0, *map(len, tasks)]).astype(np.int32)
    times = np.array([task for queue in tasks for task in queue], float).reshape(-1, 2)
    arrays: tuple[Any, ...] = (
        *(
            np.array(one, np.int32)
            for one in ([0, 0], [[1, 2, 3], [3, 0, 0]], [[0, 0, 1], [1, 0, 0]])
        ),
        *(starts, np.arange(starts[-1], dtype=np.int32)),
        *(times[:, 0].copy(), times[:, 1].copy(), np.zeros(2), np.full(2, float(makespan))),
    )
    found = run_loop(idle_seconds, arrays, is_compiled=False)
    assert found[0].tolist() == expected
    assert found[1].tolist() == [0, len(idle & running[3])]
    assert np.array_equal(run_loop(idle_seconds, arrays, is_compiled=True), found)


VARIANTS = {
    "overlap": small(overlap={"tensor_parallel": True}),
    "blocking": small(overlap={"tensor_parallel": False}),
    "sequence": small({"sequence_parallel": True}, recompute="selective"),
    "buckets": small({"data": 2}, overlap={"data_parallel": True}, memory={"zero_stage": 1}),
    "interleaved": small({"interleave": 2}, overlap={"pipeline": True}),
    "scattered": small({"interleave": 2, "scatter_gather": True}),
    "uneven": small({"last_stage_layers": 1, "first_stage_layers": 1}),
    "gpipe": small(schedule="gpipe", recompute="full"),
    "units": small({"pipeline": 2}, recompute={"strategy": "full", "num_layers": 3}),
    "block": small(
        {"pipeline": 2}, recompute={"strategy": "full", "method": "block", "num_layers": 2}
    ),
    "kept": small(recompute={"strategy": "full", "keep_microbatches": 1}),
    "held outputs": small(memory={"deallocate_outputs": False}),
    "distributed": small(recompute={"strategy": "full", "distribute": True}),
    "offload": small({"data": 2}, memory={"zero_stage": 1, "offload_optimizer": True}),
    "half gradients": small(precision={"gradients": "bf16"}),
    "fused": small({"sequence_parallel": True}, attention_backend="fused"),
    "fused again": small(attention_backend="fused", recompute="selective"),
    "zero 2": zero(2),
    "zero 3": zero(3, overlap={"data_parallel": True}),
    "zero 2, one after another": zero(2, recompute="selective"),
    "zero 3, units": zero(
        3,
        model={"num_layers": 17},
        overlap={"data_parallel": True},
        recompute={"strategy": "full", "num_layers": 3},
    ),
    "zero 3, tensor parallel": zero(3, {"tensor": 4, "sequence_parallel": True, "data": 2}),
    "zero-offload": zero(
        2, memory={"offload_optimizer": True, "offload_gradients": True, "delayed_update": True}
    ),
    "zero-infinity": zero(
        3,
        overlap={"data_parallel": True},
        memory={
            "offload_optimizer": True,
            "offload_gradients": True,
            "offload_parameters": True,
        },
    ),
    "one gpu and its host": small(
        {"tensor": 1, "pipeline": 1},
        memory={"offload_optimizer": True, "offload_gradients": True, "offload_parameters": True},
    ),
    "alone": small({"tensor": 1, "pipeline": 1}),
    "eight layers": small({"pipeline": 1, "sequence_parallel": True}, recompute="selective"),
    "eight again": small({"pipeline": 1}, recompute={"strategy": "full", "distribute": True}),
    "units of two": small({"pipeline": 1}, recompute={"strategy": "full", "num_layers": 2}),
    "a shorter unit": small(
        {"pipeline": 1},
        model={"num_layers": 11},
        recompute={"strategy": "full", "num_layers": 3, "distribute": True},
    ),
}


def assert_evaluated(scenario: Scenario, evaluator: Evaluator | None = None) -> None:
    """Check times, utilization and peaks to the last bit, and breakdowns within rounding."""
    result = simulate_scenario(scenario, engine="simpy")
    evaluation = (evaluator or Evaluator(allow_oom=True)).evaluate(scenario)
    run = evaluation.run
    assert run is not None and run.breakdown is not None
    assert run.iteration_time_s == result.iteration_time_s
    assert (run.mfu, run.hfu) == (result.mfu, result.hfu)
    assert run.tokens_per_s == result.tokens_per_s
    assert evaluation.peak_bytes == result.memory.fullest.peak_bytes
    assert evaluation.capacity_bytes == result.memory.capacity_bytes
    found, expected = dataclasses.astuple(run.breakdown), dataclasses.astuple(result.breakdown)
    assert found == pytest.approx(expected, abs=1e-12 * result.iteration_time_s)


@pytest.mark.parametrize("name", VARIANTS)
def test_compiled_equals_simpy_in_an_evaluation(name: str) -> None:
    assert_evaluated(VARIANTS[name])


@st.composite
def any_scenarios(draw: st.DrawFn, *, shards_gradients: bool = False) -> Scenario:
    """Draw small scenarios with any combination of options, most of them legal.

    `shards_gradients` draws ZeRO stages 2 and 3, without a pipeline.
    """

    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    pipeline, interleave, data = one_of(1, 2, 3, 4), one_of(1, 1, 2, 3), one_of(1, 2, 4)
    if shards_gradients:
        pipeline, interleave, data = 1, 1, one_of(2, 4)
    micro = one_of(1, 2)
    recompute = {"strategy": one_of("none", "selective", "full", "full")}
    if recompute["strategy"] == "full":
        recompute |= {
            "method": one_of("uniform", "uniform", "block"),
            "num_layers": one_of(1, 2, 3),
            "distribute": one_of(False, False, True),
        }
    if recompute["strategy"] != "none" and pipeline > 1:
        recompute["keep_microbatches"] = one_of(0, 0, 1, 2)
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": pipeline * interleave * one_of(1, 2, 5),
                "hidden_size": 2048,
                "num_attention_heads": 16,
                "seq_length": one_of(512, 1024),
                "tied_embeddings": one_of(True, False),
                "num_query_groups": one_of(8, 16),
                "activation": one_of("gelu", "swiglu"),
                "qk_norm": one_of(False, False, True),
                "position_embedding": one_of("learned", "rope"),
                "hidden_dropout": one_of(0, 0.1),
            },
            "parallelism": {
                "tensor": (tensor := one_of(1, 2, 8)),
                "sequence_parallel": tensor > 1 and one_of(True, False),
                "pipeline": pipeline,
                "data": data,
                "interleave": interleave,
            },
            "batch": {"micro": micro, "global": micro * data * pipeline * one_of(1, 2, 3)},
            "recompute": recompute,
            "memory": {
                "zero_stage": one_of(2, 3) if shards_gradients else one_of(0, 0, 1, 2, 3),
                "offload_optimizer": (on_host := one_of(False, False, True)),
                "offload_gradients": on_host and one_of(True, False),
                "offload_parameters": on_host and one_of(True, False),
                "delayed_update": on_host and one_of(True, False),
                "deallocate_outputs": one_of(True, False),
            },
            "overlap": {name: one_of(True, False) for name in ("tensor_parallel", "data_parallel")}
            | {"pipeline": interleave > 1 and one_of(True, False)},
            "attention_backend": one_of("unfused", "fused"),
        }
    )


REMEMBERING = Evaluator(allow_oom=True)


@given(any_scenarios())
@settings(max_examples=30)
def test_compiled_equals_simpy_on_any_scenario(scenario: Scenario) -> None:
    """One evaluator runs all scenarios, so its caches are tested too."""
    assume(not any(rule.check(scenario) for rule in RULES))
    assert_evaluated(scenario, REMEMBERING)


LARGE = [name for name in list_scenarios() if "1t_" in name or "530b" in name]


@pytest.mark.parametrize("name", sorted({*list_scenarios()} - {*LARGE}))
def test_compiled_equals_simpy_on_a_shipped_scenario(name: str) -> None:
    assert_evaluated(load_scenario(name))


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_compiled_equals_simpy_on_a_large_scenario(name: str) -> None:
    """Compares the start and end of each task."""
    seconds = IterationSeconds.of(plan_of(load_scenario(name)), Machine(DurationModel(a100())))
    program = tasks_of(seconds.structure).program(seconds)
    times = times_by_engine(program)
    for found in times.values():
        assert all(map(np.array_equal, found, times["simpy"]))


def test_caches_of_an_evaluator_do_not_change_results() -> None:
    """A fresh evaluator and one that has evaluated all other scenarios give equal results."""
    used = Evaluator(allow_oom=True)
    first = {name: used.evaluate(scenario) for name, scenario in VARIANTS.items()}
    for name, scenario in reversed(VARIANTS.items()):
        assert used.evaluate(scenario) == first[name]
        assert Evaluator(allow_oom=True).evaluate(scenario) == first[name]


def test_a_scenario_that_does_not_fit_is_not_simulated() -> None:
    large = small(model={"hidden_size": 32768, "num_attention_heads": 32})
    evaluation = Evaluator().evaluate(large)
    assert not evaluation.fits and evaluation.run is None
    assert evaluation.peak_bytes == memory_report(plan_of(large), a100()).fullest.peak_bytes


def test_an_illegal_scenario_is_an_error() -> None:
    bad = small().model_copy(
        update={"parallelism": small().parallelism.model_copy(update={"tensor": 5})}
    )
    with pytest.raises(InputError, match="E301"):
        Evaluator().evaluate(bad)


def test_an_evaluator_chooses_the_same_recompute_as_simulate() -> None:
    scenario = small(model={"hidden_size": 8192}, recompute="auto")
    result, evaluation = simulate_scenario(scenario), Evaluator().evaluate(scenario)
    assert evaluation.run is not None
    assert evaluation.scenario.recompute == result.scenario.recompute
    assert evaluation.run.iteration_time_s == result.iteration_time_s


def any_passes(scenario: Scenario) -> Iterator[Pass]:
    """Yield all passes of a scenario's chunks, also halves (I, W) that its schedule
    does not run. Only parameters that are sharded are gathered (G).
    """
    plan = plan_of(scenario)
    kinds = [kind for kind in get_args(PassKind) if kind != "G" or scenario.memory.zero_stage == 3]
    for chunk in plan.model_chunks.different:
        for kind in kinds:
            yield from dict.fromkeys(plan.chunk_pass(chunk, kind, keeps) for keeps in (False, True))


MODEL = DurationModel(a100())


def assert_passes(scenario: Scenario, machine: PassMachine) -> None:
    """Compare compiled loops and plain loops with SimPy to the last bit, for each pass."""
    for one in any_passes(scenario):
        record = record_pass(one)
        expected = simulate_pass(record, machine, "simpy")
        assert simulate_pass(record, machine, "compiled") == expected
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("simtrain.engine.run.runs_compiled", lambda num_tasks=0: False)
            assert simulate_pass(record, machine) == expected
        ops = [*record.ops]
        assert pass_flops(one) == (total_model_flops(ops), total_flops(ops))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_compiled_pass_equals_simpys(name: str) -> None:
    """Two widths follow each other, so a cached array of the first must not serve the second."""
    for wide in (1, 3):
        model = VARIANTS[name].model
        wider = model.model_copy(update={"hidden_size": wide * model.hidden_size})
        scenario = VARIANTS[name].model_copy(update={"model": wider})
        assert_passes(scenario, Machine(MODEL).pass_machine())


@pytest.mark.slow
@given(
    st.one_of(any_scenarios(), any_scenarios(shards_gradients=True)),
    st.sampled_from([0.0, 1e-6, 5e-6, 1e-4]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(max_examples=30)
def test_any_compiled_pass_equals_simpys(
    scenario: Scenario, launch_s: float, slowdown: float
) -> None:
    """Hosts launch kernels in no time, quickly, or slowly."""
    assume(not any(rule.check(scenario) for rule in RULES))

    def load(work: Work) -> float:
        return slowdown if isinstance(work, Collective) else 1.0

    assert_passes(scenario, PassMachine(MODEL.seconds, launch_s, load))


@pytest.mark.parametrize("name", VARIANTS)
def test_both_engines_give_equal_times_of_passes(name: str) -> None:
    simpy, compiled = (Machine(MODEL, engine) for engine in ("simpy", "compiled"))
    for one, _ in plan_of(VARIANTS[name]).different_passes():
        assert compiled.time(one) == simpy.time(one)


@pytest.mark.parametrize("name", VARIANTS)
def test_halves_of_a_backward_pass_have_the_flops_of_the_whole(name: str) -> None:
    """Each product runs once: in half I or in half W."""
    for whole in any_passes(VARIANTS[name]):
        if whole.kind != "B":
            continue
        halves = [dataclasses.replace(whole, kind=kind) for kind in ("I", "W")]
        of_halves = [pass_flops(half) for half in halves]
        assert tuple(map(sum, zip(*of_halves, strict=True))) == pass_flops(whole)
        kernels = [
            Counter((op.name, op.work) for op in record_pass(one).ops if total_flops([op]))
            for one in (whole, *halves)
        ]
        assert kernels[0] == kernels[1] + kernels[2]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_peak_without_times_equals_the_reports(name: str) -> None:
    plan = plan_of(VARIANTS[name])
    assert peak_bytes(plan, a100()) == memory_report(plan, a100()).fullest.peak_bytes
    assert math.isfinite(peak_bytes(plan, a100()))


def test_equal_passes_are_the_same_object() -> None:
    passes = [one for one, _ in plan_of(VARIANTS["sequence"]).different_passes()]
    assert len(set(passes)) == len(passes) == 6  # first, middle and last, forward and backward
