"""Fields that a search is asked to vary or to hold."""

import itertools
from operator import attrgetter
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.scenario import load_unchecked
from simtrain.schedules import NAMED
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.run import search
from simtrain.studies.search.space import Space
from simtrain.studies.search.variation import check_held, check_varied, read_vary, tunable_fields
from simtrain.views.search import search_view
from tests.helpers.search_spaces import BASES, base, broken, holding


def varying(name: str, *options: str) -> Space:
    varied = check_varied(BASES[name], read_vary(options))
    return Space(BASES[name], (4,), vary=varied)


@pytest.mark.parametrize(
    ("options", "field", "values"),
    [
        (("batch.micro=1,4",), "batch.micro", {1, 4}),
        (("parallelism.tensor=2",), "parallelism.tensor", {2}),
        (("overlap.data_parallel",), "overlap.data_parallel", {False, True}),
        (
            ("overlap.data_parallel=true", "overlap.gradient_buckets"),
            "overlap.gradient_buckets",
            {"layer", "megatron"},
        ),
        (
            ("recompute.modules=[mlp],[core_attention]",),
            "recompute.modules",
            {("mlp",), ("core_attention",)},
        ),
        (("recompute=full",), "recompute.strategy", {"full"}),
        (("schedule=gpipe", "overlap.data_parallel"), "schedule", {"gpipe"}),
        (("model.seq_length=256,512",), "model.seq_length", {256, 512}),
    ],
)
def test_a_search_has_these_values_of_a_field(
    options: tuple[str, ...], field: str, values: set[object]
) -> None:
    searched = varying("narrow", *options)
    points = legal_points(searched).points
    scenarios = [searched.scenario(point) for point in points]
    assert {attrgetter(field)(scenario) for scenario in scenarios} == values
    assert not any(broken(scenario) for scenario in scenarios[::7])
    assert len({*points}) == len(points)


def test_a_schedule_without_values_is_every_named_one() -> None:
    """By default only those of Megatron-LM are searched."""
    flushing = tuple(name for name, family in NAMED.items() if family.flushes)
    assert check_varied(base(), {"schedule": None}) == {"schedule": flushing}
    assert {one.schedule for one in legal_points(varying("plain")).points} < {*NAMED}


def test_variants_are_the_searches_with_each_value_set() -> None:
    points = legal_points(varying("narrow", "overlap.data_parallel=true,false")).points
    alone = [
        legal_points(Space(BASES["narrow"].replace({"overlap.data_parallel": value}), (4,))).points
        for value in (True, False)
    ]
    assert [point._replace(settings=()) for point in points] == [*alone[0], *alone[1]]


def test_a_held_field_keeps_the_value_of_the_file() -> None:
    fields = check_held(["parallelism.tensor", "memory", "recompute"])
    points = legal_points(Space(base(parallelism={"tensor": 2}), (4,), hold=fields)).points
    assert {(one.tensor, one.zero_stage, one.recompute.strategy) for one in points} == {
        (2, 0, "none")
    }


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("overlap.userbufers", "E802 .*did you mean overlap.userbuffers"),
        ("cluster=h100_sxm", "E838 a search has one machine"),
        ("memory.zero_stage=1,2", "E838 memory.zero_stage is set by --set and varied"),
        ("memory.shard_over", "E838 memory.shard_over has no list of all its values"),
        ("recompute=auto", "E838 auto is a choice"),
        ("batch.micro=0", "E204 batch.micro is 0"),
    ],
)
def test_fields_that_cannot_be_varied(option: str, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        check_varied(
            load_unchecked("table5_22b_present", ["memory.zero_stage=1"]), read_vary([option])
        )


def test_an_unknown_field_cannot_be_held() -> None:
    with pytest.raises(InputError, match=r"--hold overlp: E802 "):
        check_held(["overlp"])


def test_flags_and_choices_are_tuned() -> None:
    fields = tunable_fields(BASES["plain"])
    assert fields["overlap.userbuffers"] == (False, True)
    assert fields["overlap.gradient_buckets"] == ("layer", "megatron")
    assert "overlap.tensor_parallel" not in fields and "parallelism.tensor" not in fields


# ------------------------------------------------------------------------- refinement and front


def refined(**arguments: Any) -> Any:
    fields = ("parallelism.pipeline", "batch.micro", "memory.zero_stage")
    scenario = holding(base(batch={"global": 8}), ("parallelism", "sequence_parallel"))
    return search(scenario, (4,), top=3, hold=fields, refines=True, **arguments)


def test_a_refined_layout_is_legal_and_no_slower_than_the_best() -> None:
    result = refined()
    refinement, best = result.refinement, result.ranked[0]
    made = refinement.layout.scenario
    assert not broken(made) and refinement.layout.peak_bytes <= result.limit_bytes
    assert refinement.layout.iteration_time_s <= best.iteration_time_s
    assert refinement.changes and refinement.num_simulated <= refinement.num_tried
    data = result.to_dict()["refined"]
    assert set(data["changes"]) <= {*refinement.fields}
    assert not {*refinement.fields} & {*result.held}
    view = search_view(result, details=True)
    (said,) = (fact for name, fact in view.parts[1].rows if name == "Options that help")
    assert said.value == refinement.layout.iteration_time_s
    assert f"number {refinement.rank} with " in said.text
    assert any(line.startswith("Refined: ") for line in view.sentences)


def test_held_settings_are_not_refined() -> None:
    fields = ("overlap", "memory", "placement", "parallelism", "recompute", "batch", "schedule")
    result = search(base(), (1,), hold=fields, refines=True)
    assert not result.refinement.changes and not result.refinement.fields
    lines = [*map(str, search_view(result, details=True).sentences)]
    assert "None of 0 changes of single settings of the best layouts is better." in lines


@pytest.mark.parametrize(
    ("field", "num_legal"), [("overlap.align_parameter_gather", 1), ("overlap.gradient_buckets", 0)]
)
def test_the_value_that_a_layout_has_is_no_change_of_it(field: str, num_legal: int) -> None:
    """Both fields have two values, and the other one of the second is illegal here."""
    scenario = base(batch={"global": 8})
    held = [other for other in tunable_fields(scenario) if other != field]
    refinement = search(scenario, (4,), top=2, hold=[*held, "recompute"], refines=True).refinement
    assert refinement and not refinement.changes
    assert refinement.num_tried == 2 * num_legal  # of the two best layouts
    assert refinement.fields == (field,) * num_legal


@pytest.mark.ci
@pytest.mark.slow
def test_a_front_needs_less_and_less_memory_for_more_time() -> None:
    result = search(load_unchecked("table5_22b_present"), (8,), top=2, refines=True)
    front = result.outcome.front
    assert front[0].evaluation == result.ranked[0].evaluation and len(front) > 1
    for first, second in itertools.pairwise(front):
        assert second.iteration_time_s >= first.iteration_time_s
        assert second.peak_bytes < first.peak_bytes - 0.01 * result.limit_bytes
    (line,) = (
        line
        for line in map(str, search_view(result, details=True).sentences)
        if line.startswith("With less memory than number 1: ")
    )
    assert line.count("% slower with ") == len(front) - 1


def test_a_varied_field_keeps_the_rules_of_the_cluster() -> None:
    """H100s of DGX machines have no NVMe: their layouts with it are counted as illegal."""
    hosts = {"zero_stage": 3, "offload_optimizer": True, "offload_parameters": True}
    scenario = base(memory=hosts, cluster="h100_sxm", software="deepspeed_2022")
    result = search(scenario, gpus=4, vary={"memory.nvme": ["none", "all"]}, only_best=True)
    assert result.exact and not result.failures
    assert result.num_illegal_by_rule["E978"] > 0
    assert {layout.point.settings for layout in result.ranked if layout.point} == {
        (("memory.nvme", "none"),)
    }
