"""The space of a search contains all legal layouts and no other."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.scenario import (
    Batch,
    MemoryOptions,
    RecomputePolicy,
    Rule,
    Scenario,
    check_scenario,
    load_unchecked,
)
from simtrain.studies.changes import POLICIES
from simtrain.studies.search.legality import legal_points, rules_of_base
from simtrain.studies.search.space import Space
from tests.helpers.search_spaces import (
    BASES,
    EXPERT_MODEL,
    all_points,
    base,
    broken,
    holding,
    legal_by_enumeration,
    point,
    space,
)


@pytest.mark.ci
@pytest.mark.parametrize("name", BASES)
def test_legal_points_are_those_of_an_enumeration(name: str) -> None:
    searched = space(name)
    legal, every = legal_points(searched), all_points(searched)
    assert legal.num_configurations == len(every) == len({*every})
    assert legal.points and [*legal.points] == legal_by_enumeration(searched)
    assert legal.removed.total() + len(legal.points) == len(every)
    if not searched.options:
        codes = [broken(searched.scenario(point)) for point in every]
        for code, number in legal.removed.items():
            assert number <= sum(code in of_point for of_point in codes)


_SMALL = st.integers(1, 10)


@given(
    st.sampled_from(sorted(name for name in BASES if not space(name).held)),
    st.sampled_from([(t, p, 4 // (t * p)) for t in (1, 2, 4) for p in (1, 2, 4) if t * p <= 4]),
    st.tuples(_SMALL, _SMALL),
    st.tuples(st.booleans(), st.integers(0, 3), st.sampled_from(POLICIES)),
)
def test_points_outside_of_the_enumeration_are_illegal(
    name: str, split: tuple[int, ...], sizes: tuple[int, ...], rest: tuple[object, ...]
) -> None:
    """This holds also for numbers of chunks and microbatches that the enumeration never lists."""
    searched, one = space(name), point(*split, *sizes, *rest)
    if searched.base.schedule_family.allows_chunks(one.interleave):
        one = one._replace(schedule=searched.base.schedule)
    is_legal = not broken(searched.scenario(one))
    assert is_legal == (one in legal_points(searched).points)


def new_rule(breaks: Callable[[Scenario], object]) -> Rule:
    """Return a rule that refuses the scenarios for which `breaks` is true."""
    return Rule("E399", "for a test", "", lambda scenario: "broken" if breaks(scenario) else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "breaks",
    [
        lambda scenario: scenario.parallelism.tensor == 2 and scenario.batch.micro == 2,
        lambda scenario: scenario.recompute.strategy == "full" and scenario.num_microbatches > 1,
        lambda scenario: not scenario.parallelism.scatter_gather or scenario.schedule == "1f1b",
        lambda scenario: 2 in scenario.chunk_sizes and scenario.parallelism.mesh().dp == 2,
        lambda scenario: scenario.memory == MemoryOptions(zero_stage=1),
        lambda scenario: scenario.batch in {Batch(micro=2, global_=4)},
        lambda scenario: scenario.model_dump()["parallelism"]["tensor"] == 4,
        lambda scenario: not scenario.positions.places and scenario.memory.zero_stage == 1,
    ],
)
def test_a_new_rule_needs_no_change_of_the_search(
    breaks: Callable[[Scenario], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule can read any part of a scenario, in any way."""
    rule, searched = new_rule(breaks), space("plain", 8)
    monkeypatch.setattr("simtrain.studies.search.legality.RULES", (rule,))
    every = all_points(searched)
    legal = legal_points(searched)
    assert list(legal.points) == [p for p in every if rule.check(searched.scenario(p)) is None]
    assert legal.removed.total() == len(every) - len(legal.points)


def test_every_point_or_none_breaks_a_rule_of_the_base() -> None:
    searched = Space(base(model={"hidden_size": 500}, attention_backend="fused"), 4)
    of_base = {rule.code for rule in rules_of_base(searched)}
    assert {"E302", "E330"} <= of_base
    broken_somewhere = [
        of_base.intersection(broken(searched.scenario(p))) for p in all_points(searched)
    ]
    assert all(codes == {"E302"} for codes in broken_somewhere)


def test_every_named_schedule_is_searched_unless_it_is_held() -> None:
    """The scenario's own comes first; a single stage has no other."""
    for hold in (("schedule",), ()):
        scenario = base(schedule="gpipe", batch={"global": 8}, model={"num_layers": 8})
        searched = Space(holding(scenario, hold) if hold else scenario, 4)
        points = legal_points(searched).points
        schedules = {one.schedule for one in points}
        assert schedules == {"gpipe"} if hold else schedules >= {"1f1b", "gpipe", "interleaved"}
        assert {one.schedule for one in points if one.pipeline == 1} == {"gpipe"}
        assert {searched.scenario(one).schedule for one in points} == schedules


@pytest.mark.parametrize(
    ("override", "name", "values"),
    [
        ("parallelism.tensor=2", "tensor", {2}),
        ("parallelism={tensor: 2, data: 1}", "data", {1}),
        ("batch.micro=2", "micro", {2}),
        ("memory.zero_stage=1", "zero_stage", {1}),
        ("parallelism.interleave=2", "interleave", {2}),
        ("recompute=full", "recompute", {RecomputePolicy(strategy="full")}),
        ("recompute.method=block", "recompute", {RecomputePolicy(strategy="selective")}),
        ("model.seq_length=1024", "recompute", set(POLICIES)),
    ],
)
def test_overridden_fields_keep_their_values(override: str, name: str, values: set[object]) -> None:
    """This holds also if the override makes the file itself illegal."""
    searched = Space(load_unchecked("table5_22b_present", [override]), 8)
    points = all_points(searched)
    found = {getattr(point, name) for point in points}
    if "block" in override:
        assert [policy.method for policy in found] == ["block"]
    else:
        assert found == values
    for one in legal_points(searched).points[:20]:
        check_scenario(searched.scenario(one))


# ---------------------------------------------------------------- context and experts


def values(searched: Space, name: str) -> set[object]:
    return {getattr(one, name) for one in all_points(searched)}


def test_models_with_experts_have_all_expert_parallel_splits() -> None:
    """Each expert is on one rank or on all tensor-parallel ranks; no split is listed twice."""
    searched = space("experts", 4)
    splits = {one[:6] for one in all_points(searched)}
    assert len(splits) == len(searched.choices(()))
    assert values(searched, "expert") == {1, 2, 4}
    assert {(one[0], one[5]) for one in splits} == {(1, 1), (2, 2), (2, 1), (4, 4), (4, 1)}
    scenario = base(model=EXPERT_MODEL, parallelism={"expert_tensor": 2})
    shared = {one.expert_tensor for one in all_points(Space(scenario, 8)) if one.tensor == 8}
    assert shared == {8, 2, 1}


def test_long_sequences_have_context_parallel_splits() -> None:
    """Ranks get at least 4,096 tokens, unless the scenario or the argument allows fewer."""

    def contexts(length: int, now: int = 1) -> set[object]:
        scenario = base(model={"seq_length": length}, parallelism={"context": now})
        return values(Space(scenario, 48), "context")

    assert contexts(32767) == {1}
    assert contexts(32768) == {1, 2, 3, 4, 6, 8}
    assert contexts(512, now=3) == {1, 2, 3}


# ---------------------------------------------------------------- conditional settings

FLAGGED = {
    "gradient flags": (
        base(
            overlap={
                "data_parallel": True,
                "align_gradient_reduction": True,
                "gradient_buckets": "megatron",
                "parameter_gather": True,
                "align_parameter_gather": True,
            }
        ),
        4,
    ),
    "sharding flags": (
        base(
            overlap={"data_parallel": True, "prefetch": 2},
            memory={
                "shard_over": 2,
                "reshard_after_forward": False,
                "reduce_every_microbatch": False,
            },
        ),
        4,
    ),
    "context flags": (
        base(
            overlap={"pipeline": True, "userbuffers": True},
            parallelism={"context": 4, "context_communication": "a2a+p2p", "context_a2a": 2},
            attention_backend="fused",
        ),
        4,
    ),
    "flags of experts": (base(model=EXPERT_MODEL, parallelism={"expert": 2}), 4),
    "layout": (base(parallelism={"pipeline": 4, "layout": "E|tt|t|tL"}), 8),
}


@pytest.mark.parametrize("name", FLAGGED)
def test_settings_are_turned_off_exactly_if_a_rule_refuses_them(name: str) -> None:
    scenario, gpus = FLAGGED[name]
    searched = Space(holding(scenario, ("batch", "micro"), ("recompute",)), gpus)
    legal = legal_points(searched).points
    assert [*legal] == legal_by_enumeration(searched)
    assert {*searched.left_out(legal)} == {
        field for option in searched.options for field, _ in option[-1]
    } or name == "layout"
    plain = [one._replace(off=()) for one in legal]
    assert len({*plain}) == len(plain)
    for one, whole in zip(legal[::5], plain[::5], strict=True):
        assert (one == whole) is not bool(broken(searched.scenario(whole)))


def test_the_own_pipeline_layout_is_that_of_its_number_of_chunks() -> None:
    scenario, gpus = FLAGGED["layout"]
    points = legal_points(Space(scenario, gpus)).points
    layouts = {(one.pipeline * one.interleave, one.layout) for one in points}
    assert (4, "E|tt|t|tL") in layouts and (1, None) in layouts
    assert not any(layout for chunks, layout in layouts if chunks != 4)


def test_the_imbalance_is_at_most_the_number_of_expert_parallel_ranks() -> None:
    scenario = base(model=EXPERT_MODEL, parallelism={"expert": 2})
    searched = Space(holding(scenario, ("recompute",), ("batch", "micro")), 4)
    made = [*map(searched.scenario, legal_points(searched).points)]
    found = {
        (one.parallelism.expert, one.model.experts.imbalance) for one in made if one.model.experts
    }
    assert found == {(1, 1.0), (2, 1.5), (4, 1.5)}


def test_each_layout_has_the_defaults_of_the_software_stack() -> None:
    searched = Space(BASES["defaults of megatron_core"], 4)
    assert not searched.options
    points = legal_points(searched).points
    scenarios = [searched.scenario(one) for one in points]
    overlaps = {
        (one.interleave > 1, made.overlaps_pipeline)
        for one, made in zip(points, scenarios, strict=True)
        if one.schedule in ("1f1b", "gpipe", "interleaved")
    }
    assert overlaps == {(True, True), (False, False)}
    # Two blocking interleaved stages would be refused (E310).
    assert (2, 2) in {(one.pipeline, one.interleave) for one in points}
    aligned = {
        made.parallelism.pipeline > 1 for made in scenarios if made.aligns_gradient_reduction
    }
    assert aligned == {True}


@pytest.mark.parametrize("layers", [7, 13, 30, 61])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_uneven_stages_are_as_even_as_whole_chunks_allow(layers: int, stages: int) -> None:
    """Lengths of both ends, or a layout of all chunks; the loss counts as layers too."""
    scenario = base(model={"num_layers": layers, "vocab_size": 1024}, batch={"global": 32})
    searched = Space(scenario, stages)
    for one in legal_points(searched).points:
        if one.pipeline == stages and layers >= 2 * stages:
            of_stage = [0] * stages
            placement = searched.scenario(one).order.placement
            for chunk, number in enumerate(searched.scenario(one).chunks_layers):
                of_stage[placement.ranks[chunk]] += number
            assert sum(of_stage) == layers
            assert max(of_stage) <= layers / stages + one.interleave + 1
