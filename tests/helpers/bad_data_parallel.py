"""Options of data parallelism that do not combine, with the expected errors."""

from tests.helpers.bad_scenarios import adding, bad

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
        adding("parallelism: {data: 2}\noverlap: {gradient_buckets: megatron}\n"),
        ":10:29: E362",
        "overlap.gradient_buckets is megatron while gradients are not reduced in buckets",
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
        "no two stages overlap the gradient reduction with the backward",
    ),
    bad(
        "buckets of a single replica",
        adding("overlap: {data_parallel: true, gradient_buckets: 300}\n"),
        ":9:50: E362",
        "fix: write overlap.gradient_buckets: layer, or parallelism.data: 2 or",
    ),
    bad(
        "stages of a single replica aligned",
        adding(
            "parallelism: {pipeline: 4}\n"
            "overlap: {data_parallel: true, align_gradient_reduction: true}\n"
        ),
        ":10:58: E363",
        "fix: write overlap.align_gradient_reduction: false, or parallelism.data: 2 or",
    ),
    bad(
        "gathers aligned without interleaving",
        adding("overlap: {align_parameter_gather: true}\n"),
        ":9:35: E364",
        "Megatron-LM turns --align-param-gather off",
    ),
    bad(
        "states divided over half a replica more",
        adding("parallelism: {data: 4}\nmemory: {zero_stage: 1, shard_over: 3}\n"),
        ":10:37: E365",
        "memory.shard_over is 3, which cannot shard states over parallelism.data (4)",
        "fix: write memory.shard_over: 2 or 4",
    ),
    bad(
        "states that nothing divides, over two replicas",
        adding("parallelism: {data: 4}\nmemory: {shard_over: 2}\n"),
        ":10:22: E366",
        "fix: write memory.shard_over: null, or memory.zero_stage: 1",
    ),
    bad(
        "prefetch without gathers",
        adding("parallelism: {data: 4}\noverlap: {prefetch: 2}\n"),
        ":10:21: E367",
        "overlap.prefetch is 2 while memory.zero_stage is 0 and overlap.data_parallel is false",
    ),
    bad(
        "parameters that stay without being gathered",
        adding("memory: {reshard_after_forward: false}\n"),
        ":9:33: E368",
        "fix: write memory.reshard_after_forward: true",
    ),
    bad(
        "parameters over ranks that do not divide",
        adding("parallelism: {data: 4}\nmemory: {zero_stage: 3, reshard_after_forward: 3}\n"),
        ":10:48: E369",
        "fix: write memory.reshard_after_forward: 2 or true",
    ),
    bad(
        "a word for reshard_after_forward",
        adding("memory: {reshard_after_forward: never}\n"),
        ":9:33: E203",
    ),
    bad(
        "reductions left to the last microbatch without divided gradients",
        adding("memory: {reduce_every_microbatch: false}\n"),
        ":9:35: E370",
        "fix: write memory.reduce_every_microbatch: true",
    ),
    bad(
        "states offloaded from fully_shard",
        adding(
            "parallelism: {data: 4}\nmemory: {zero_stage: 3, offload_optimizer: true}\n"
            "software: torchtitan\n"
        ),
        ":10:44: E378",
        "fix: write memory.offload_optimizer: false, or software.fully_shard: false",
    ),
]
