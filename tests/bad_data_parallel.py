"""Options of data parallelism that do not go together, and what each has to be told."""

from bad_scenarios import adding, bad

BAD_DATA_PARALLEL = [
    bad(
        "parameters gathered beside compute, gradients reduced after it",
        adding(
            "memory: {zero_stage: 1}\nparallelism: {data: 2}\noverlap: {parameter_gather: true}\n"
        ),
        ":11:29: E360",
        "overlap.parameter_gather is true while overlap.data_parallel is false",
        "--overlap-param-gather needs --overlap-grad-reduce",
    ),
    bad(
        "parameters that no optimizer shards",
        adding("overlap: {data_parallel: true, parameter_gather: true}\n"),
        ":9:50: E361",
        "overlap.parameter_gather is true while memory.zero_stage is 0",
    ),
    bad(
        "buckets that nothing reduces",
        adding("overlap: {gradient_buckets: megatron}\n"),
        ":9:29: E362",
        "overlap.gradient_buckets is megatron, but gradients are not reduced in buckets",
        "fix: write overlap.gradient_buckets: layer, or overlap.data_parallel: true",
    ),
    bad(
        "an unknown rule of buckets",
        adding("overlap: {data_parallel: true, gradient_buckets: large}\n"),
        ":9:50: E205",
        "layer, megatron",
    ),
    bad(
        "one stage aligned",
        adding("overlap: {data_parallel: true, align_gradient_reduction: true}\n"),
        ":9:58: E363",
        "no two stages reduce gradients beside their backward passes",
    ),
    bad(
        "gathers aligned without interleaving",
        adding("overlap: {align_parameter_gather: true}\n"),
        ":9:35: E364",
        "Megatron-LM turns --align-param-gather off",
    ),
]
