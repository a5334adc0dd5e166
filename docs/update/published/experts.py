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
