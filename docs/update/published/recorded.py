"""Published runs of torchtitan whose programs were recorded (benchmarks/torchtitan_program.py).

Throughputs in tokens per second and GPU are of pytorch/torchtitan: Llama 2 on 64 A100s with 80 GB,
docs/performance.md at commit 1d5815c4b (eager, bf16); Llama 3.1 8B on 8 H100s with 96 GB and 500 W,
benchmarks/llama3_h100_202412_torchtitan.md (FSDP, eager).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordedRun:
    """A published run, and its recording in docs/recorded_programs.

    Args:
        recording: name of the file, without its suffix.
        words: the run in words.
        cluster: the hardware profile.
        tokens_per_s: published, per GPU.
    """

    recording: str
    words: str
    cluster: str
    tokens_per_s: float


RECORDED = (
    RecordedRun("llama2_13b", "Llama 2 13B, 2 sequences, selective", "a100_sxm4_80gb", 1904),
    RecordedRun("llama2_70b", "Llama 2 70B, 1 sequence, selective", "a100_sxm4_80gb", 355),
    RecordedRun("llama2_70b_full", "Llama 2 70B, 2 sequences, full", "a100_sxm4_80gb", 353),
    RecordedRun("llama3_8b", "Llama 3.1 8B, 2 sequences, selective", "h100_sxm_500w", 5762),
)
