"""Lengths of the first and last stage: a few close to balance, if stages cannot be even."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.pipeline_layout import chunks_of_layout, layers_of_layout
from simtrain.schedules import back_and_forth, looped
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.run import search
from simtrain.studies.search.space import Space
from simtrain.studies.search.stage_lengths import (
    EVEN,
    StageLengths,
    balanced_layout,
    explicit_lengths,
    layers_of_model_end,
    lengths_to_try,
)
from simtrain.views.search import search_view
from tests.helpers.search_spaces import BASES, all_points, base, broken, holding


def lengths(searched: Space, num_stages: int) -> set[tuple[int | None, int | None]]:
    """Return the lengths of legal points with this number of stages and one chunk each."""
    return {
        (point.first_stage_layers, point.last_stage_layers)
        for point in legal_points(searched).points
        if (point.pipeline, point.interleave) == (num_stages, 1)
    }


@given(st.integers(2, 130), st.integers(2, 32), st.integers(1, 4), st.floats(0, 5))
def test_lengths_leave_whole_chunks_of_equal_length_between(
    num_layers: int, num_stages: int, num_chunks: int, model_end: float
) -> None:
    found = lengths_to_try(num_layers, looped(num_stages, num_chunks), model_end)
    assert len(found) == len({*found}) <= 2
    if num_layers % num_stages == 0:
        assert found == [EVEN]
        return
    for first, last in found:
        assert first is not None and last is not None
        middle, rest = divmod(num_layers - first - last, max(num_stages - 2, 1))
        assert rest == 0 and (middle > 0 or num_stages == 2)
        assert {first % num_chunks, last % num_chunks, middle % num_chunks} == {0}
        share = num_layers / num_stages
        assert max(first, middle, last) <= share + max(num_chunks, share / 4)


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "model_end", "expected"),
    [
        # DeepSeek-V3 in sixteen stages, as shipped, and Llama 3 405B in sixteen.
        (61, 16, 3.9, (4, 1)),
        (126, 16, 0.6, (7, 7)),
        # Without work at the end of the model, stages are as even as possible.
        (7, 2, 0.0, (3, 4)),
        (7, 2, 2.0, (4, 3)),
    ],
)
def test_the_last_stage_has_fewer_layers_for_the_loss(
    num_layers: int, num_stages: int, model_end: float, expected: tuple[int, int]
) -> None:
    found = lengths_to_try(num_layers, looped(num_stages, 1), model_end)
    best = found[0] if found else None
    assert best == expected or (num_layers == 7 and model_end == 5.0)


def test_stages_that_cannot_be_close_to_even_are_not_tried() -> None:
    """61 layers in 32 stages leave 31 layers for the first and last one."""
    assert lengths_to_try(61, looped(32, 1), 0.0) == []
    assert lengths_to_try(61, looped(4, 2), 0.0) == []


@given(st.integers(9, 130), st.integers(2, 16), st.integers(1, 4), st.floats(0, 5))
def test_a_balanced_layout_places_every_layer(
    num_layers: int, num_stages: int, num_chunks: int, model_end: float
) -> None:
    """Stages but the last differ by at most one layer, as do the chunks of a stage."""
    placement = looped(num_stages, num_chunks)
    layout = balanced_layout(num_layers, placement, model_end, 1)
    if layout is None:
        return
    chunks = chunks_of_layout(layout)
    assert "".join(chunks) == "E" + "t" * num_layers + "mL"
    layers = layers_of_layout(layout)
    stages = [[layers[place] for place in rank] for rank in placement.virtual_stages]
    others = [sum(stage) for stage in stages[:-1]]
    assert max(others) - min(others) <= 1 and min(map(min, stages[:-1])) > 0
    assert all(max(stage) - min(stage) <= 1 for stage in stages)


def test_the_layout_of_deepseek_v3_in_two_chunks_per_stage() -> None:
    assert balanced_layout(61, looped(16, 2), 3.9, 1) == "Et*2|(t*2|)*14t|(t*2|)*15mL"


def test_empty_lengths_are_the_share_of_the_other_stages() -> None:
    assert explicit_lengths(StageLengths(None, 13), 61, 4) == (16, 13)
    assert explicit_lengths(StageLengths(2, 2), 4, 2) == (2, 2)
    assert explicit_lengths(StageLengths(2, None), 8, 4) == EVEN
    assert explicit_lengths(StageLengths(3, None), 8, 4) is None
    assert explicit_lengths(StageLengths(3, 3), 8, 2) is None


def test_the_end_of_a_model_counts_as_layers() -> None:
    """A head multiplies by a matrix of h x V, a layer by 12 h² and in attention by 2 s h (one
    direction of masks is not subtracted).
    """
    hidden, vocabulary, length = 512, 51200, 512
    model_end = layers_of_model_end(base(model={"vocab_size": vocabulary}))
    assert model_end == pytest.approx(vocabulary / (12 * hidden + 2 * length))


@pytest.mark.parametrize("name", ["deepseek_v3", "llama3_405b"])
def test_models_whose_layers_no_stages_share_evenly_get_pipelines(name: str) -> None:
    """The scenario has no lengths, as after an import from Hugging Face."""
    shipped = load_scenario(name)
    data = shipped.model_dump(by_alias=True, exclude_unset=True)
    data |= {"parallelism": {"tensor": 8}, "batch": data["batch"] | {"micro": 1}}
    fixed = ("parallelism", "tensor"), ("batch", "micro"), ("memory",), ("recompute",)
    plain = holding(Scenario.model_validate(data), *fixed)
    searched = Space(plain, (1024,), expert=(8,) if plain.model.experts else None)
    stages = {point.pipeline for point in legal_points(searched).points}
    assert {4, 8, 16} <= stages


def test_lengths_of_the_file_are_tried_beside_balanced_ones() -> None:
    searched = Space(BASES["uneven"], (4,))
    assert {(2, 2), (1, 1)} <= lengths(searched, 4)
    assert lengths(searched, 2) == {(None, None)}
    assert lengths(searched, 1) == {(None, None)}


def test_lengths_set_outside_of_the_file_are_kept() -> None:
    path = ("parallelism", "first_stage_layers")
    points = all_points(Space(holding(BASES["uneven"], path), (4,)))
    assert {(one.first_stage_layers, one.last_stage_layers) for one in points} == {(2, 2)}


def test_a_layout_has_no_lengths() -> None:
    split = {"pipeline": 3, "layout": "Et|tt|tL"}
    searched = Space(base(parallelism=split), (3, 6))
    assert lengths(searched, 3) == {(None, None)}
    assert not any(broken(searched.scenario(one)) for one in legal_points(searched).points)


def test_the_result_names_what_was_varied_and_held() -> None:
    result = search(BASES["prime"], (4,), top=1)
    data = json.loads(json.dumps(result.to_dict()))
    lengths = {"parallelism.first_stage_layers", "parallelism.last_stage_layers"}
    assert lengths <= {*data["varied"]}
    assert {"memory.zero_stage", "precision", "attention_backend", "overlap"} <= {*data["held"]}
    assert not {*data["varied"]} & {*data["held"]}
    last = search_view(result).sentences[-1]
    assert last.startswith(f"Exact among {data['num_legal']} layouts: ")
    assert " more (--vary)" in last and "--details" in last
    details = " ".join(search_view(result, details=True).sentences)
    assert "Varied: tensor, pipeline, " in details
    assert "precision" in details.partition("Held: ")[2]


def test_a_v_has_the_end_of_the_model_on_its_first_stage() -> None:
    """Its first stage has as many layers as the last one of a loop, and the other way round."""
    loop, v = (lengths_to_try(42, placement(4, 2), 2.0) for placement in (looped, back_and_forth))
    assert loop and [(last, first) for first, last in loop] == [*v]
