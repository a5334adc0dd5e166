"""`simtrain schedule`."""

from __future__ import annotations

from simtrain.commands.shared import ScenarioArgument, SetOption, emit


def schedule(scenario: ScenarioArgument, overrides: SetOption = None) -> None:
    """Print each stage's pipeline schedule, one row per stage.

    2F0 is the forward pass of microbatch 0 on virtual stage 2.

    Example: simtrain schedule table5_175b_present
    """
    from simtrain.scenario import load_scenario
    from simtrain.schedules import build

    loaded = load_scenario(scenario, overrides or ())
    order = build(
        loaded.schedule,
        loaded.parallelism.pipeline,
        loaded.parallelism.interleave,
        loaded.num_microbatches,
    )
    emit(order.to_csv())
