"""Published times of fused attention that no profile is fitted on.

Source: NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn at
commit 3929da2 (cuDNN 9.19, H200, bf16, causal): gpt_oss and dsv3.
"""

WINDOW_MS = {
    32768: (3.021, 9.045),
    16384: (1.499, 4.392),
    8192: (0.738, 2.149),
    4096: (0.358, 1.042),
    2048: (0.166, 0.488),
}
"""Forward and backward by sequence length: two sequences, a window of 1,024 tokens, 64 heads of 64
channels, 8 heads of keys and values."""

LATENT_MS = {8192: (4.278, 16.162), 4096: (1.148, 4.424), 2048: (0.33, 1.271)}
"""Forward and backward by sequence length: one sequence, 128 heads of 192 channels with values of
128, a deterministic backward pass."""
