"""Layers that no pipeline can be split into as the scenario says, and what each has to be told."""

from tests.helpers.bad_scenarios import adding, bad, layers

BAD_STAGES = [
    bad(
        "a stage without layers",
        adding("parallelism: {pipeline: 4, last_stage_layers: 0}\n"),
        ":9:47: E204",
        "parallelism.last_stage_layers is 0, but must be greater than or equal to 1",
    ),
    bad(
        "half a layer",
        adding("parallelism: {pipeline: 4, first_stage_layers: 11.5}\n"),
        ":9:48: E203",
        "must be an integer, not the decimal number 11.5",
    ),
    bad(
        "an uneven rest",
        adding("parallelism: {pipeline: 4, first_stage_layers: 11}\n"),
        ":9:48: E305",
        "model.num_layers (48) minus parallelism.first_stage_layers (11) leaves 37 for 3 stages",
        "fix: write parallelism.first_stage_layers: 12 or 9, or model.num_layers: 47 or 50",
    ),
    bad(
        "nothing left for the other stages",
        adding("parallelism: {pipeline: 4, first_stage_layers: 24, last_stage_layers: 24}\n"),
        ":9:48: E305",
        "first_stage_layers + parallelism.last_stage_layers (24 + 24 = 48) leaves 0 for 2 stages",
        "not a positive multiple of these stages x parallelism.interleave (2 x 1 = 2)",
        "fix: write parallelism.first_stage_layers: 22 or 20",
        "parallelism.pipeline: 2",
    ),
    bad(
        "two ends that are not the model",
        adding("parallelism:\n  pipeline: 2\n  first_stage_layers: 20\n  last_stage_layers: 29\n"),
        ":11:23: E305",
        "(20 + 29 = 49), but model.num_layers is 48 and there are no other stages",
        "fix: write parallelism.first_stage_layers: 19 or null",
    ),
    bad(
        "a stage of its own without a pipeline",
        adding("parallelism: {last_stage_layers: 12}\n"),
        ":9:34: E327",
        "parallelism.last_stage_layers is set while parallelism.pipeline is 1",
        "fix: write parallelism.last_stage_layers: null, or parallelism.pipeline: 2 or 3",
    ),
    bad(
        "half a chunk",
        layers("49") + "parallelism: {pipeline: 4, interleave: 3, last_stage_layers: 13}\n",
        ":9:62: E328",
        "parallelism.last_stage_layers (13) is not a multiple of parallelism.interleave (3)",
        "all chunks of a stage have equally many layers",
        "fix: write parallelism.interleave: 1",
    ),
]
