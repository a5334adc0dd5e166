"""Products of experts and their all-to-alls, measured and published by others.

No profile is fitted on these figures.
"""

from simtrain.workload.work import ProductType

GROUPED_US = {
    (20, 1232, 3072, 5120): (765.22, 884.27, 895.11),
    (20, 1232, 5120, 1536): (437.97, 455.56, 478.03),
    (32, 1024, 4096, 7168): (1867.1, 1972.2, 2464.9),
    (32, 1024, 7168, 2048): (1063.3, 934.65, 1450.6),
    (40, 616, 3072, 5120): (732.46, 998.63, 1004.5),
    (40, 616, 5120, 1536): (572.62, 612.9, 476.86),
    (40, 2460, 3072, 5120): (2826.2, 3043.7, 3301.9),
    (40, 2460, 5120, 1536): (1387.3, 1407.3, 1708.6),
    (40, 9832, 3072, 5120): (11585.0, 11563.0, 13136.0),
    (40, 9832, 5120, 1536): (6182.0, 5932.3, 6649.9),
    (64, 512, 4096, 7168): (2352.7, 2144.5, 2958.4),
    (64, 512, 7168, 2048): (1088.7, 1445.5, 1503.6),
    (80, 308, 3072, 5120): (954.99, 1186.7, 1415.7),
    (80, 308, 5120, 1536): (733.2, 696.26, 703.98),
    (128, 256, 4096, 7168): (3116.7, 2602.5, 3905.5),
    (128, 256, 7168, 2048): (1383.2, 1887.0, 1959.4),
    (160, 154, 3072, 5120): (1707.4, 1809.9, 2318.5),
    (160, 154, 5120, 1536): (1459.6, 1375.2, 1402.2),
    (256, 128, 4096, 7168): (4190.1, 3805.8, 6040.7),
    (256, 128, 7168, 2048): (2332.4, 2893.7, 3024.6),
}
"""Transformer Engine's grouped products on B200, in microseconds.

By experts, tokens of each, outputs and inputs: forward, input gradient (both in bf16), and weight
gradient (accumulated in fp32). Source: MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json,
times from its efficiencies of 2,250 TFLOP/s.
"""

GROUPED_FP8: dict[tuple[str, ProductType, str], dict[tuple[int, int, int, int], float]] = {
    ("H800", "fp8_block", "forward"): {
        (4, 8192, 4096, 7168): 1346,
        (4, 8192, 7168, 2048): 1214,
        (8, 4096, 4096, 7168): 1346,
        (8, 4096, 7168, 2048): 1214,
    },
    ("H200", "fp8_block", "weight gradient"): {
        (4, 4096, 7168, 4096): 813.2,
        (4, 4096, 2048, 7168): 813.9,
        (4, 8192, 7168, 4096): 858.6,
        (4, 8192, 2048, 7168): 873,
        (8, 4096, 7168, 4096): 815.7,
    },
    ("B200", "mxfp8", "forward"): {(8, 16384, 2048, 7168): 2303},
    ("B200", "mxfp8", "weight gradient"): {(8, 16384, 2048, 7168): 1830},
}
"""Grouped products in fp8, in TFLOP/s.

By the GPU, the data type and the product; experts, tokens of each, outputs and inputs. Sources:
deepseek-ai/DeepGEMM, README.md at commit 327ec92 (contiguous layout, H800, whose multiprocessors
are those of an H100), and its issue 107 (H200; results in fp32); pytorch/ao at commit 36027d82d,
torchao/prototype/moe_training/README.md (torch._scaled_grouped_mm, a B200 of 1,000 W).
"""

DEEPSEEK_V3_TRACE_MS = 22.926
"""Sixteen grouped products in DeepSeek-V3's training, in milliseconds.

Forward and input-gradient products of four layers, on ranks with 4 experts and 4,096 tokens, each
to 8 experts of hidden size 7168 and 2048. DeepEP holds 24 of an H800's 132 multiprocessors beside
them. Source: deepseek-ai/profile-data at commit 4496024, train.json.
"""

COMBINE_US = {
    1: {512: 190.48, 1024: 307.14, 2048: 528.69, 4096: 972.51, 8192: 1831.5, 16384: 3513.3},
    2: {512: 318.27, 1024: 540.77, 2048: 949.13, 4096: 1777, 8192: 3338, 16384: 6407},
    4: {512: 540.67, 1024: 967.03, 2048: 1834, 4096: 3522, 8192: 6881, 16384: 13517},
}
"""DeepEP's combination in bf16 over nodes of eight H100s, in microseconds, by tokens of a rank.

Hidden size 7168, 8 of 256 experts a token, on 20 multiprocessors in a node and 24 across nodes.
Source: ai-dynamo/aiconfigurator, systems/data/h100_sxm/comm/sglang/0.5.6.post2,
wideep_deepep_normal_perf.parquet.
"""

DISPATCH_US = {
    1: {512: 97.22, 1024: 157.18, 2048: 271.87, 4096: 491.24, 8192: 965.62, 16384: 1930.8},
    2: {512: 138.9, 1024: 235.4, 2048: 412.33, 4096: 748.87, 8192: 1414, 16384: 2740},
    4: {512: 275.3, 1024: 496.87, 2048: 932.07, 4096: 1791, 8192: 3510, 16384: 6957},
}
"""DeepEP's dispatch in fp8, otherwise as `COMBINE_US` and from the same table."""

EXCHANGES_US = {
    ("h100_sxm", 8): (1265, 1277, 661, 624),
    ("h100_sxm", 16): (5774, 5628, 1485, 1688),
    ("h100_sxm", 32): (8059, 7815, 3064, 3088),
    ("h100_sxm", 64): (9164, 8727, 4626, 4398),
    ("gb200", 8): (735, 741, 391, 353),
    ("gb200", 16): (743, 765, 578, 527),
    ("gb200", 32): (769, 758, 612, 646),
    ("gb200", 64): (930, 827, 675, 744),
}
"""Exchanges of experts' tokens in microseconds, by profile and ranks.

All-to-alls: dispatch, combination; then HybridEP: dispatch, combination. 4,096 tokens per rank of
hidden size 7168. Source: NVIDIA 2026, "Scalable Training of Mixture-of-Experts Models with Megatron
Core" (arXiv 2603.07685), Table 7. It prints neither the number of experts of a token nor the
routing; 8 of 256 in 4 of 8 groups, as in DeepSeek-V3, and bf16 are inferred (see the document).
"""

LAYERS_MS: dict[tuple[str, str, str], tuple[float, float]] = {
    ("deepseek", "bf16", "all_to_all"): (7.1192, 10.4827),
    ("deepseek", "bf16", "deepep"): (5.6817, 9.0551),
    ("deepseek", "bf16", "hybridep"): (5.3908, 8.795),
    ("deepseek", "fp8", "all_to_all"): (7.6093, 10.1265),
    ("deepseek", "fp8", "deepep"): (6.0348, 8.6021),
    ("deepseek", "fp8", "hybridep"): (5.1429, 7.6875),
    ("mixtral", "bf16", "all_to_all"): (4.3269, 7.6843),
    ("mixtral", "bf16", "deepep"): (4.6356, 7.8544),
    ("mixtral", "bf16", "hybridep"): (4.3426, 7.7408),
    ("mixtral", "fp8", "all_to_all"): (3.7876, 6.6182),
    ("mixtral", "fp8", "deepep"): (4.1012, 6.8272),
    ("mixtral", "fp8", "hybridep"): (3.7007, 6.5717),
}
"""One layer of experts on 8 H100s, in milliseconds: forward, backward.

By model, data type (fp8: blockwise) and dispatcher; 4,096 tokens per rank, random balanced routing.
Source: NVIDIA/Megatron-LM at commit d98e8a64dd,
tests/functional_tests/test_cases/common/moe_perf/baseline.json, and test_cases.py for the models.
"""

_FP8 = "precision={compute: fp8, fp8_recipe: mxfp8}", "recompute=auto"
_EVEN = "tensor: 1, sequence_parallel: false, first_stage_layers: null, last_stage_layers: null"
BRIDGE_S: dict[tuple[str, ...], dict[str, float]] = {
    (
        "Qwen3 30B-A3B on 8 GB200",
        *("qwen3_30b_a3b", "cluster=gb200", "batch={micro: 4, global: 512}", *_FP8),
        "parallelism={pipeline: 1, data: 8, expert: 8}",
    ): {"25.11": 11.03, "26.04": 10.07, "26.06": 6.44, "26.08": 6.56},
    (
        "Qwen3 30B-A3B on 8 GB300",
        *("qwen3_30b_a3b", "cluster=gb300", "batch={micro: 8, global: 512}", *_FP8),
        "parallelism={pipeline: 1, data: 8, expert: 8}",
    ): {"26.04": 8.33, "26.08": 5.89},
    (
        "Qwen3 235B-A22B on 256 GB200",
        *("qwen3_235b_a22b", "cluster=gb200", "batch={micro: 1, global: 8192}", *_FP8),
        f"parallelism={{{_EVEN}, data: 32, expert: 32, pipeline: 8, interleave: 3, "
        "layout: 'Et*3|(t*4|)*22t*3L'}",
    ): {"26.06": 17.77},
    (
        "Qwen3 235B-A22B on 256 GB300",
        *("qwen3_235b_a22b", "cluster=gb300", "batch={micro: 2, global: 8192}", *_FP8),
        f"parallelism={{{_EVEN}, data: 64, expert: 32, pipeline: 4, interleave: 12, "
        "layout: 'Et|(t*2|)*46tL'}",
    ): {"26.04": 18.74, "26.06": 14.54},
}
"""Iterations of Qwen3 in mxfp8, in seconds, by run, scenario and assignments, and by release.

Source: NVIDIA-NeMo/Megatron-Bridge at commit 067f987df, docs/performance-summary.md and
performance-summary-archive.md: global batch times 4,096 tokens over tokens per second of all GPUs.
They print layout and batch. Where layers do not divide, embedding and loss count as one each.
"""
