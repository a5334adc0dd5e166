"""Layers that cannot be divided into stages as the scenario says, with the expected errors."""

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
        "parallelism.last_stage_layers is 12 while parallelism.pipeline is 1",
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
    bad(
        "a layout that cannot be read",
        adding('parallelism: {pipeline: 2, layout: "Et*24|(t)24L"}\n'),
        ":9:36: E206",
        "parallelism.layout: '()24' is neither one of E, t, m, L nor | between chunks",
        "fix: write the chunks as in Et*5|(t*6|)*6t*7L",
    ),
    bad(
        "a layout that repeats too often",
        adding('parallelism: {pipeline: 2, layout: "Et*24|t*24000L"}\n'),
        ":9:36: E206",
        "*24000 repeats more than 1000 times",
    ),
    bad(
        "a layout of two chunks per stage",
        adding('parallelism: {pipeline: 4, layout: "Et*5|(t*6|)*6t*7L"}\n'),
        ":9:36: E339",
        "parallelism.layout has 8 chunks, but parallelism.pipeline x interleave is 4 x 1 = 4",
        "fix: write parallelism.interleave: 2, or parallelism.pipeline: 8",
    ),
    bad(
        "a layout of a single stage",
        adding('parallelism: {layout: "Et*48L"}\n'),
        ":9:23: E339",
        "parallelism.layout has 1 chunk, but parallelism.pipeline x interleave is 1 x 1 = 1",
        "fix: write parallelism.layout: null",
    ),
    bad(
        "a layout without embedding and loss",
        adding('parallelism: {pipeline: 2, layout: "t*24|t*24"}\n'),
        ":9:36: E359",
        'the letters of parallelism.layout ("t*24|t*24") are not in the order E, t, m, L',
        "fix: write parallelism.layout: Et*24|t*24L or null",
    ),
    bad(
        "a layout of fewer layers, with token prediction",
        adding('parallelism: {pipeline: 2, layout: "Et*20|t*24mL"}\n'),
        ":9:36: E396",
        "has 44 x t, but model.num_layers is 48, and 1 x m, but model.mtp_num_layers is 0",
        "fix: write parallelism.layout: null",
    ),
    bad(
        "token prediction before the last chunk of its stage",
        adding(
            'parallelism: {pipeline: 8, interleave: 4, layout: "Et*19|(t|)*22t*7m|(|)*7L"}\n'
        ).replace("model:", "model:\n  mtp_num_layers: 1\n  position_embedding: rope"),
        ":11:51: E490",
        "parallelism.layout has m in chunk 24 of 32; m may be in one of the chunks 26 to 32",
    ),
    bad(
        "token prediction apart from the loss, with transfers that are gathered",
        adding(
            "parallelism: {tensor: 2, pipeline: 8, interleave: 4, "
            'layout: "Et*19|(t|)*29m|L"}\n'
            "overlap: {pipeline: true}\n"
        ).replace("model:", "model:\n  mtp_num_layers: 1\n  position_embedding: rope"),
        ":11:62: E495",
        "parallelism.scatter_gather is true and overlap.pipeline is true, but parallelism.layout",
        "fix: write overlap.pipeline: false, or parallelism.scatter_gather: false",
    ),
    bad(
        "a layout and layers of the first stage",
        adding('parallelism: {pipeline: 2, first_stage_layers: 20, layout: "Et*20|t*28L"}\n'),
        ":9:48: E491",
        "parallelism.first_stage_layers is 20 while parallelism.layout is Et*20|t*28L",
        "fix: write parallelism.first_stage_layers: null, or parallelism.layout: null",
    ),
]
