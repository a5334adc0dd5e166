"""PipeDream-2BW: iterations that run into each other, and two versions of the weights."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.iteration.programs.iteration_tasks import repeat, steady_iteration
from simtrain.iteration.programs.pass_tasks import PassTime
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.schedules import build, most_outstanding
from tests.helpers.toys import run, small

MODEL = {"num_layers": 12, "hidden_size": 512, "vocab_size": 512, "tied_embeddings": False}


def scenario(
    schedule: str = "pipedream_2bw", p: int = 4, n: int = 12, data: int = 1, **sections: Any
) -> Scenario:
    return small(
        {"tensor": 1, "data": data, "pipeline": p},
        model=MODEL,
        batch={"micro": 1, "global": n * data},
        schedule=schedule,
        **sections,
    )


def lines(result: Result, copies: int) -> list[list[str]]:
    """Return the passes of each stage in several iterations, and its Adam."""
    tasks = result.iteration.tasks
    repeated = repeat(tasks, result.plan.schedule, copies)
    names = {
        int(task): str(tasks.graph.name_of(number % tasks.graph.num_tasks))
        for number, task in enumerate(repeated.number.ravel())
    }
    starts, queue = repeated.tasks.graph.queue
    shown: list[list[str]] = []
    for stage in range(tasks.num_stages):
        of_stage = [names[task] for task in queue[starts[stage] : starts[stage + 1]].tolist()]
        shown.append([name for name in of_stage if name[0].isdigit() or name == "Adam"])
    return shown


def test_two_iterations_of_two_microbatches_by_hand() -> None:
    """The second iteration's first forward pass runs before the first one's last backward pass,
    and the step after the next forward pass.
    """
    result = run(scenario(p=2, n=2))
    assert [" ".join(line) for line in lines(result, 2)] == [
        "0F0 0F1 0B0 0F0 0B1 0F1 Adam 0B0 0B1 Adam",
        "1F0 1B0 1F1 1B1 1F0 Adam 1B0 1F1 1B1 Adam",
    ]


@given(p=st.integers(2, 4), more=st.integers(0, 3), copies=st.integers(2, 3))
@settings(max_examples=10, deadline=None)
def test_iterations_run_in_the_order_of_one_long_1f1b(p: int, more: int, copies: int) -> None:
    n = p + more
    result = run(scenario(p=p, n=n))
    whole = build("1f1b", p, 1, copies * n)
    for line, actions in zip(lines(result, copies), whole.ranks, strict=True):
        passes = [name for name in line if name != "Adam"]
        assert passes == [
            str(action._replace(microbatch=action.microbatch % n)) for action in actions
        ]
        assert line.count("Adam") == copies


def with_passes(result: Result, seconds_of: dict[str, float]) -> tuple[float, float]:
    """Return the time of an iteration with these passes, and the longest transfer."""
    iteration = result.iteration
    passes = {
        part: PassTime(seconds_of[part.kind], 0.0, 0.0, 0.0, 0.0, ())
        for part in iteration.seconds.passes
    }
    seconds = replace(iteration.seconds, passes=passes)
    _, period_s = steady_iteration(seconds, iteration.tasks)
    messages = [part for part in iteration.tasks.parts if type(part).__name__ == "TransferPart"]
    return period_s, max(map(seconds.of_part, messages))


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("n", [4, 9])
def test_there_is_no_bubble(p: int, n: int) -> None:
    """n(F + B) and the step (Figure 2 of the paper); each round trip of p microbatches waits for
    2(p - 1) transfers, which 1F1B's p microbatches in flight share.
    """
    result = run(scenario(p=p, n=n))
    period_s, transfer_s = with_passes(result, {"F": 1.0, "B": 2.0})
    step_s = max(
        sum(step.get(name, 0.0) for name in step) for step in result.iteration.seconds.steps
    )
    assert period_s == pytest.approx(3 * n + n * 2 * transfer_s * (p - 1) / p, abs=1.1 * step_s)
    assert period_s > 3 * n


def test_memory_has_the_weights_twice_and_activations_of_1f1b() -> None:
    """2BW in Table 2 of Li and Hoefler 2021: two versions of the weights, 1 to p microbatches."""
    twice, once = (run(scenario(name)).memory.stages for name in ("pipedream_2bw", "1f1b"))
    for two, one in zip(twice, once, strict=True):
        assert two.states.parameters_bytes == 2 * one.states.parameters_bytes
        assert two.states.gradients_bytes == one.states.gradients_bytes
        assert two.states.optimizer_bytes == one.states.optimizer_bytes
        assert two.activations_bytes == one.activations_bytes
    assert most_outstanding(build("pipedream_2bw", 4, 1, 12)).tolist() == [4, 3, 2, 1]


def test_stages_do_not_wait_for_the_norm_of_others() -> None:
    names = {span.name for span in run(scenario()).timeline.spans()}
    assert "Adam" in names and "norm of the stages so far" not in names
    result = run(scenario())
    assert result.plan.step_options.everyone.num_ranks == 1


def flush_order(p: int, n: int) -> list[list[str]]:
    """Return PipeDream-Flush: a stage prefers backward passes, with p - r microbatches at most.

    Time runs in slots of one pass (Narayanan et al. 2021, Figure 3).
    """
    forwards, backwards, lines = [0] * p, [0] * p, [list[str]() for _ in range(p)]
    while min(backwards) < n:
        before = [*forwards], [*backwards]
        for rank in range(p):
            arrived = before[0][rank - 1] if rank else n
            returned = before[1][rank + 1] if rank < p - 1 else before[0][rank]
            if backwards[rank] < min(returned, before[0][rank]):
                lines[rank].append(f"{rank}B{backwards[rank]}")
                backwards[rank] += 1
            elif forwards[rank] < arrived and forwards[rank] - backwards[rank] < p - rank:
                lines[rank].append(f"{rank}F{forwards[rank]}")
                forwards[rank] += 1
    return lines


@given(st.integers(1, 8), st.integers(1, 12))
@settings(max_examples=40)
def test_pipedream_flush_is_1f1b(p: int, n: int) -> None:
    assert flush_order(p, n) == [[*map(str, line)] for line in build("1f1b", p, 1, n).ranks]
