"""DeepSpeed of 2021: ZeRO stage 3 tensor by tensor, with collectives on lists of slices."""

from collections.abc import Iterable
from typing import Any

import pytest

from docs.update.published import scenario_of, simulated, tables
from simtrain.base.values import replace
from simtrain.iteration.programs.pass_tasks import simulate_pass
from simtrain.scenario import Scenario
from simtrain.schedules import Action
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import Op
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective
from tests.helpers.toys import (
    a100,
    exchange_peaks,
    machine_of,
    ops_of,
    pass_of,
    plan_of,
    scenario_with,
)

H, VOCAB, LENGTH, RANKS = 12288, 51200, 2048, 16
WEIGHTS = [3 * H * H, H * H, 4 * H * H, 4 * H * H]


def gpt(
    layers: int = 2, ranks: int = RANKS, stack: str = "deepspeed_2021", hidden: int = H
) -> Scenario:
    """Return a GPT, by default with the layers of GPT-3, and one sequence for each rank."""
    sizes = {"hidden_size": hidden, "num_layers": layers, "num_attention_heads": 96}
    return scenario_with(
        sizes | {"seq_length": LENGTH, "vocab_size": VOCAB},
        software=stack,
        memory={"zero_stage": 3},
        parallelism={"data": ranks},
        batch={"micro": 1, "global": ranks},
        precision={"compute": "fp16"},
        recompute="full",
    )


def pass_ops(scenario: Scenario, kind: Any) -> tuple[Op, ...]:
    return ops_of(pass_of(plan_of(scenario), Action(0, kind, 0)))


def elements(ops: Iterable[Op], name: str) -> list[int]:
    """Return the elements, of two bytes, of collectives with a name."""
    works = [op.work for op in ops if op.name == name]
    return [work.array_bytes // 2 for work in works if isinstance(work, Collective)]


def test_each_tensor_is_gathered_and_reduced_by_itself() -> None:
    """Norms and biases stay. Between recompute and backward, all but the last are gathered again:
    8 H² to 22 H² elements are used in between, and 10⁹ are the most that stay.
    """
    forward, backward = pass_ops(gpt(), "F"), pass_ops(gpt(), "B")
    root = [VOCAB * H, LENGTH * H]
    assert elements(forward, "parameter gather") == root + 2 * WEIGHTS
    gathered = elements(backward, "parameter gather")
    assert gathered == root + 2 * (WEIGHTS + WEIGHTS[:3])
    reduced = elements(backward, "gradient reduction")
    assert sorted(reduced)[-10:] == sorted(root + 2 * WEIGHTS)
    assert sum(op.num_slices for op in backward) == RANKS * (len(gathered) + len(reduced))


def test_small_layers_are_gathered_once_for_recompute_and_backward() -> None:
    narrow = gpt(hidden=1536)
    forward, backward = (elements(pass_ops(narrow, kind), "parameter gather") for kind in "FB")
    assert sorted(forward) == sorted(backward)


def test_the_host_copies_the_slice_of_each_rank() -> None:
    """A pass takes at least the host's time for its slices, and so does the step's last gather."""
    plan, machine = plan_of(gpt()), machine_of(a100())
    issue_s = a100().host.issue.value
    for kind in ("F", "B"):
        pass_ = pass_of(plan, Action(0, kind, 0))  # type: ignore[arg-type]
        slices = sum(op.num_slices for op in ops_of(pass_))
        assert machine.time(pass_).duration_s > slices * issue_s > 0
    (copies,) = plan.steps[0]["parameter_gather"]
    (parameters,) = plan.stage_parameters
    slices = RANKS * (1 + parameters.small_tensors)
    assert machine.op_seconds([copies]) == pytest.approx(slices * issue_s)


def test_the_host_waits_for_the_gpu_before_each_layer() -> None:
    """Without waits it launches the second layer's copies while the first layer runs."""
    record = record_pass(pass_of(plan_of(gpt()), Action(0, "F", 0)))
    machine = machine_of(a100()).pass_machine()
    assert record.synchronized
    ahead = replace(record, synchronized=())
    assert simulate_pass(ahead, machine).duration_s < simulate_pass(record, machine).duration_s


def test_engines_agree() -> None:
    times = {simulate(gpt(), engine=engine).iteration_time_s for engine in ("simpy", "compiled")}
    assert len(times) == 1


def test_buffers_hold_tensors_and_not_layers() -> None:
    """Three tensors are gathered at most, two buckets and two tensors are reduced."""
    largest = VOCAB * H
    gathered, bucket = exchange_peaks(gpt())
    assert gathered == 2 * 3 * largest
    assert bucket <= 2 * 2 * (500_000_000 + largest)


def test_more_replicas_slow_collectives_on_lists_down() -> None:
    """From 64 to 1,024 ranks, an iteration of equal work takes longer, and more so than with
    DeepSpeed of 2022, which gathers whole layers.
    """
    slower_s = {
        stack: simulate(gpt(ranks=1024, stack=stack)).iteration_time_s
        - simulate(gpt(ranks=64, stack=stack)).iteration_time_s
        for stack in ("deepspeed_2021", "deepspeed_2022")
    }
    assert slower_s["deepspeed_2021"] > 5 * slower_s["deepspeed_2022"] > 0


@pytest.mark.parametrize("row", [1, 2])
def test_zero_3_loses_to_the_pipeline(row: int) -> None:
    """Narayanan et al. 2021, Table 2: GPT-3 on 768 and 1,536 A100s."""
    table = tables()["narayanan_2021"]
    pipeline, sharded = table["runs"][2 * row : 2 * row + 2]
    rates = [simulated(scenario_of(table, run), "tflops", run) for run in (pipeline, sharded)]
    assert rates[0] > 1.1 * rates[1]
