"""Legal and illegal pipelines with separate numbers of layers on the end stages."""

from typing import Any

from hypothesis import strategies as st

from simtrain.scenario import Scenario

BOOL = st.booleans()


@st.composite
def uneven_pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """Draw pipelines whose layers add up to the model's layers, or differ by a few; all else is
    legal.
    """
    stages, chunks = draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 2, 3]))
    shared, first, last = (chunks * draw(st.integers(1, 4)) for _ in range(3))
    layers = [shared] * stages
    grid: dict[str, Any] = {"pipeline": stages, "interleave": chunks}
    if draw(BOOL):
        layers[0] = grid["first_stage_layers"] = first
    if draw(BOOL):
        layers[-1] = grid["last_stage_layers"] = last
    field = draw(st.sampled_from(["num_layers", *grid]))
    data = {"num_layers": sum(layers)} | grid
    data[field] = max(1, data[field] + draw(st.sampled_from([0, 0, 0, -1, 1, chunks, -chunks, 20])))
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
    return {
        "model": {"num_layers": data.pop("num_layers")} | sizes,
        "batch": {"micro": 1, "global": data["pipeline"]},
        "parallelism": data,
        "overlap": {"pipeline": data["interleave"] > 1},
        "recompute": {"strategy": "full", "num_layers": draw(st.sampled_from([1, 1, 2, 5]))},
    }


def layers_by_hand(scenario: Scenario) -> list[int]:
    """Return the layers per stage, rounded down, as in Megatron's get_num_layers_to_build."""
    split = scenario.parallelism
    rest, stages = scenario.model.num_layers, split.pipeline
    for own in (split.first_stage_layers, split.last_stage_layers):
        if own is not None:
            rest, stages = rest - own, stages - 1
    layers = [rest // stages if stages > 0 else 0] * split.pipeline
    if split.first_stage_layers is not None:
        layers[0] = split.first_stage_layers
    if split.last_stage_layers is not None:
        layers[-1] = split.last_stage_layers
    return layers


def layers_are_placed_by_hand(scenario: Scenario) -> bool:
    """Return whether each layer has a stage.

    The chunks of a stage must have the same number of layers, at least one.
    """
    split, layers = scenario.parallelism, layers_by_hand(scenario)
    has_own = split.first_stage_layers is not None or split.last_stage_layers is not None
    return (
        sum(layers) == scenario.model.num_layers
        and all(one > 0 and one % split.interleave == 0 for one in layers)
        and not (has_own and split.pipeline == 1)
    )
