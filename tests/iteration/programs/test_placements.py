"""Iterations whose virtual stages are placed back and forth on the ranks."""

import pathlib
from typing import Any

import pytest

from simtrain.engine import simulate
from simtrain.iteration.memory.working import MemoryReplay
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.schedules import Schedule, interleaved
from tests.helpers.pipelines import PipelineSeconds, pipeline_program
from tests.helpers.search_spaces import EVALUATOR, base
from tests.helpers.v_shaped import VShaped

LAYERS = 24  # of which any number of chunks up to 4 x 3 has equally many


def scenario_of(schedule: Schedule, file: pathlib.Path, **sections: Any) -> Scenario:
    """Return a scenario that runs a schedule from a file on two replicas."""
    file.write_text(schedule.to_csv())
    split = {"pipeline": schedule.num_stages, "interleave": schedule.num_chunks, "data": 2}
    return base(
        model={"num_layers": LAYERS},
        parallelism=split,
        batch={"global": 2 * schedule.num_microbatches},
        schedule=str(file),
        **sections,
    )


def plan_of(scenario: Scenario) -> Plan:
    return Plan.of(scenario, EVALUATOR.profile_of(scenario).cluster.domains)


def test_neighbours_on_one_rank_follow_each_other_at_once() -> None:
    """Times of a V on two ranks by hand: the turn from virtual stage 1 to 2 sends nothing."""
    schedule = VShaped().build(2, 2, 1)
    seconds = PipelineSeconds(
        lambda action: 1.0 if action.kind == "F" else 2.0, lambda message, num_sends: 0.5
    )
    program, tasks = pipeline_program(schedule, seconds, overlap=True)
    start_s = simulate(program).start_s[tasks.first].tolist()
    actions = map(str, map(schedule.action, range(len(start_s))))
    assert dict(zip(actions, start_s, strict=True)) == {
        **{"0F0": 0.0, "1F0": 1.5, "2F0": 2.5, "3F0": 4.0},
        **{"3B0": 5.0, "2B0": 7.5, "1B0": 9.5, "0B0": 12.0},
    }


@pytest.mark.parametrize("tied", [True, False])
def test_the_first_rank_of_a_v_has_embedding_and_head(tmp_path: pathlib.Path, tied: bool) -> None:
    """A tied table is one tensor there, whose gradient no other stage has."""
    model = {"num_layers": LAYERS, "tied_embeddings": tied}
    scenario, loop = (
        scenario_of(schedule, tmp_path / f"{number}.csv").model_copy(
            update={"model": base(model=model).model}
        )
        for number, schedule in enumerate((VShaped().build(4, 2, 4), interleaved(4, 2, 4)))
    )
    plan, looped_plan = plan_of(scenario), plan_of(loop)
    assert scenario.embedding_stages == (0,)
    assert loop.embedding_stages == ((0, 3) if tied else (0,))
    assert plan.step_options.tied is None
    assert (looped_plan.step_options.tied is not None) is tied
    first, *others = (stage.total for stage in plan.stage_parameters)
    assert len({*others}) == 1 and first > others[0]
    assert first + sum(others) == plan.num_parameters
    copies = scenario.model.hidden_size * scenario.model.vocab_size * tied
    assert sum(stage.total for stage in looped_plan.stage_parameters) == (
        plan.num_parameters + copies
    )


def test_an_output_for_the_same_rank_is_kept_once(tmp_path: pathlib.Path) -> None:
    """The chunk after the turn saves it as its input; other outputs stay if they are not freed."""
    schedule = VShaped().build(2, 2, 1)
    kept, freed = (
        MemoryReplay.of(
            plan_of(
                scenario_of(
                    schedule, tmp_path / "order.csv", memory={"deallocate_outputs": deallocates}
                )
            )
        ).after_bytes
        for deallocates in (False, True)
    )
    output = 512 * 512 * 2
    actions = map(str, map(schedule.action, range(len(kept))))
    assert dict(zip(actions, (kept - freed).tolist(), strict=True)) == {
        **{"0F0": output, "3F0": output, "3B0": output, "0B0": 0},
        **{"1F0": 0, "2F0": output, "2B0": 0, "1B0": 0},
    }


def test_layers_of_a_layout_are_on_the_ranks_of_the_v(tmp_path: pathlib.Path) -> None:
    scenario = scenario_of(VShaped().build(2, 2, 2), tmp_path / "order.csv")
    layout = "E" + "|".join(("t" * 3, "t" * 4, "t" * 5, "t" * 12)) + "L"
    split = scenario.parallelism.model_copy(update={"layout": layout})
    scenario = scenario.model_copy(update={"parallelism": split})
    assert [scenario.layers_of_stage(stage) for stage in range(2)] == [3 + 12, 4 + 5]
