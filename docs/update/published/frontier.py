"""What reports of frontier models state about their trainings.

No profile is fitted on these figures.
"""

DEEPSEEK_V3_GPU_HOURS = 180_000
"""H800 GPU-hours per trillion tokens of DeepSeek-V3's pre-training.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (arXiv 2412.19437), Section 1.
"""

DEEPSEEK_V3_PAIR_MS = {
    "products": 75.064,
    "attention": 22.783,
    "casts": 15.915,
    "permutation": 4.151,
    "rotary": 1.512,
    "norms": 3.448,
    "dispatch": 31.004,
    "combine": 49.448,
}
"""Sums of kernels of a forward and a backward pass of four of its expert layers, in milliseconds.

By kind, hidden or not. Source: deepseek-ai/profile-data at commit 4496024, train.json.
"""

DEEPSEEK_V3_PAIR_COMPUTES_MS, DEEPSEEK_V3_PAIR_TAKES_MS = 124.338, 129.012
"""Time in which a kernel of this pair computes, and time from its first to its last kernel."""

DEEPSEEK_V3_PAIR_HIDDEN = 0.963
"""Share of this pair's communication beside which a kernel computes."""

DEEPGEMM_PRODUCTS = (
    (4096, 2112, 7168, 1058, 1.1),
    (4096, 24576, 1536, 990, 1.0),
    (4096, 32768, 512, 590, 1.0),
    (4096, 7168, 16384, 1358, 1.2),
    (4096, 4096, 7168, 1304, 1.1),
    (4096, 7168, 2048, 1025, 1.1),
    (8192, 4096, 7168, 1297, 1.2),
    (8192, 7168, 2048, 1099, 1.2),
    (4096, 4096, 7168, 1288, 1.2),
    (4096, 7168, 2048, 1093, 1.1),
)
"""m, n, k, TFLOP/s of DeepGEMM on H800, and its speedup over DeepSeek's CUTLASS kernels.

The last four are of one group of grouped products. Source: deepseek-ai/DeepGEMM, README at commit
a6d97a1 (February 2025), products of at least 4,096 rows.
"""

_LLAMA = (
    *("llama3_405b", "parallelism.first_stage_layers=null", "parallelism.last_stage_layers=null"),
    *("parallelism.layout=E|(t|)*126L", "parallelism.interleave=8", "recompute=none"),
)
_LLAMA_16K = *_LLAMA, "hardware.cluster.num_nodes=2048"
LLAMA_MFU: dict[tuple[str, ...], tuple[str, float]] = {
    (*_LLAMA, "hardware.cluster.num_nodes=1024", "parallelism.data=64", "batch.global=2048"): (
        "8,192 GPUs, 8,192 tokens",
        0.43,
    ),
    (*_LLAMA_16K, "parallelism.data=128", "batch.global=2048"): ("16,384 GPUs, 8,192 tokens", 0.41),
    (
        *(*_LLAMA_16K, "parallelism.data=8", "parallelism.context=16", "batch.global=128"),
        *("parallelism.context_communication=all_gather", "model.seq_length=131072"),
    ): ("16,384 GPUs, 131,072 tokens", 0.38),
}
"""MFU of Llama 3 405B on H100s, by scenario.

Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv 2407.21783), Table 4. Section
3.3.2: the first chunk has only the embedding and the last one only output layer and loss; no
recompute at 8,192 tokens; context parallelism by all-gathers. One layer per chunk is inferred.
"""

NEMOTRON_S: dict[tuple[str, ...], tuple[str, float, float]] = {
    ("nemotron4_340b", "parallelism.data=16", "batch.global=768"): ("1,536 GPUs", 10.3, 0.424),
    ("nemotron4_340b", "parallelism.data=32", "batch.global=1536"): ("3,072 GPUs", 10.3, 0.423),
    (
        *("nemotron4_340b", "parallelism.data=64", "batch.global=2304"),
        "hardware.cluster.num_nodes=768",
    ): ("6,144 GPUs", 8.0, 0.41),
}
"""Seconds per iteration and MFU of Nemotron-4 340B on H100s, by scenario.

Source: NVIDIA 2024, "Nemotron-4 340B Technical Report" (arXiv 2406.11704), Table 2; Section 2.3: 8
tensor-parallel ranks, 12 stages with interleaving. Chunks of one layer are inferred.
"""

NEMOTRON_H_S = {
    64: 15.058,
    128: 15.496,
    256: 15.892,
    512: 15.586,
    1024: 15.678,
    2048: 15.723,
}
"""Seconds per iteration of Nemotron-H 56B in fp8 by the number of H100s, 24 sequences per replica.

Source: NVIDIA 2025, DGX Cloud Benchmarking, nemotronh/README.md (table "Expected Performance"). 32
GPUs, 15.119 s, are left out: the simulated ranks need 2 GiB more than they have.
"""

NEMOTRON_H_FLOPS = 2.816e15
"""FLOPs of the model per sequence, as the same page counts them."""
