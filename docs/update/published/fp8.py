"""Products, casts and iterations in fp8 and fp4, measured and published by others.

No profile is fitted on these figures, but `b300_sxm` has the median rate of `FP4_PRODUCTS_MS`.
"""

TE_TOKENS = 15872
TE_WEIGHTS = ((12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384))
"""Outputs and inputs of the products of `TE_PRODUCTS_MS`: one layer with hidden size 4096."""

TE_PRODUCTS_MS = {
    "forward": (10.632, 5.577, 6.503),
    "input gradient": (10.747, 5.661, 6.795),
    "weight gradient": (10.530, 5.547, 6.987),
}
"""The four products of a layer in bf16, in fp8, and in fp8 with casts of both operands.

One scale per tensor, on an H200 NVL. Source: Transformer Engine, docs/examples/gemm_profiling at
commit d0067d0da.
"""

FP4_PRODUCTS_MS = {
    "forward": (1.254, 1.932),
    "input gradient": (1.305, 2.189),
    "weight gradient": (1.205, 2.331),
}
"""The same products on a B300 in NVFP4, without and with casts; source as above."""

TORCHTITAN = {"bf16": (6667, 77.0), "fp8": (8532, 76.8)}
"""Tokens per second and GiB per GPU of Llama 3.1 8B on eight H100s, compiled.

Source: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at commit 31a17bfdb.
"""

TORCHTITAN_TENSOR = (
    ("70B on 256, 16 sequences, bf16", "llama3_70b", 32, 16, False, True, 652.4),
    ("70B on 256, 16 sequences, fp8", "llama3_70b", 32, 16, True, True, 942.4),
    ("8B on 64, 12 sequences, fp8", "llama3_8b", 8, 12, True, False, 5078.1),
    ("405B on 128, 2 sequences, fp8", "llama3_405b", 16, 2, True, True, 185.0),
)
"""Llama 3.1 with tensor parallelism over 8 H100s and FSDP, compiled.

Run, scenario, replicas, sequences per replica, whether products are in fp8, whether tensor
parallelism is asynchronous, tokens per second and GPU.

Full recompute, but single ops of 8B. Sources: torchtitan,
benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md; 405B, on H100s with 95 GB, docs/performance.md
at commit 1d5815c4b.
"""
