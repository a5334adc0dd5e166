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
        cluster: the hardware profile.
        tokens_per_s: published, per GPU.
        flavor: the model's name and flavor in torchtitan's job.
        sequences: of a rank.
        recompute: `activation_checkpoint.mode` of the job.
    """

    recording: str
    cluster: str
    tokens_per_s: float
    flavor: tuple[str, str]
    sequences: int
    recompute: str

    @property
    def words(self) -> str:
        """The run in words."""
        name, size = self.flavor
        number = f"{self.sequences} sequence" + "s" * (self.sequences > 1)
        return f"{_NAMES[name]} {size}, {number}, {self.recompute}"

    @property
    def job(self) -> str:
        """The job of torchtitan as TOML."""
        name, size = self.flavor
        return _JOB.format(
            name=name,
            flavor=size,
            sequences=self.sequences,
            tokens=_TOKENS[name],
            recompute=self.recompute,
        )


_NAMES = {"llama2": "Llama 2", "llama3": "Llama 3.1"}
_TOKENS = {"llama2": 4096, "llama3": 8192}
_JOB = """\
[model]
name = "{name}"
flavor = "{flavor}"
[training]
batch_size = {sequences}
seq_len = {tokens}
[activation_checkpoint]
mode = "{recompute}"
selective_ac_option = "op"
"""

_A100, _H100 = "a100_sxm4_80gb", "h100_sxm_500w"
RECORDED = (
    RecordedRun("llama2_13b", _A100, 1904, ("llama2", "13B"), 2, "selective"),
    RecordedRun("llama2_70b", _A100, 355, ("llama2", "70B"), 1, "selective"),
    RecordedRun("llama2_70b_full", _A100, 353, ("llama2", "70B"), 2, "full"),
    RecordedRun("llama3_8b", _H100, 5762, ("llama3", "8B"), 2, "selective"),
)
