"""The user's question: a model, how it is split, a batch, and the machine it runs on.

Fields are the contract of the scenario files. Values that no scenario can have are refused here,
combinations that the training framework refuses in `simtrain.scenario.rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from simtrain.strict_yaml import Document, Positions, section

# NCCL and MPI count ranks and CUDA counts grid blocks in 32-bit integers.
MAX_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]

SixteenBit = Literal["bf16", "fp16"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved"]
_BYTES_OF = {"bf16": 2, "fp16": 2, "fp32": 4}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Model(_Section):
    """A GPT-style transformer; `vocab_size` is the padded one."""

    num_layers: Count = Field(examples=[48])
    hidden_size: Count = Field(examples=[6144])
    num_attention_heads: Count = Field(examples=[64])
    ffn_hidden_size: Count = Field(
        default_factory=lambda model: 4 * model["hidden_size"], examples=[24576]
    )
    seq_length: Count = Field(examples=[2048])
    vocab_size: Count = Field(default=51200, examples=[51200])
    tied_embeddings: bool = Field(default=True, examples=["true"])


class Parallelism(_Section):
    """How the model is split: tensor x pipeline x data GPUs, `interleave` chunks per stage.

    `scatter_gather` is Megatron's scatter_gather_tensors_in_pipeline of 2022: each tensor-parallel
    rank sends 1/t of a stage's output and the receivers all-gather it. Under sequence parallelism
    the output is already split, so it is then off.
    """

    tensor: Count = Field(default=1, examples=[8])
    sequence_parallel: bool = Field(default=False, examples=["true"])
    pipeline: Count = Field(default=1, examples=[8])
    interleave: Count = Field(default=1, examples=[3])
    data: Count = Field(default=1, examples=[8])
    scatter_gather: bool = Field(
        default_factory=lambda parallelism: not parallelism["sequence_parallel"],
        examples=["false"],
    )


class Batch(_Section):
    """Sequences in a microbatch of one replica, and in the batch of all replicas."""

    micro: Count = Field(examples=[1])
    global_: Count = Field(alias="global", examples=[64])


class Precision(_Section):
    """The dtype of weights and activations, and the one gradients are summed and reduced in."""

    compute: SixteenBit = Field(default="bf16", examples=["bf16"])
    gradients: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", examples=["fp32"])


class Overlap(_Section):
    """Which communication runs beside compute; the defaults are what the paper ran.

    tensor_parallel: the collectives of the backward pass behind the gradient products.
    pipeline: asynchronous transfers between stages, instead of blocking ones.
    data_parallel: the gradient reduction behind the backward pass, instead of after it.
    """

    tensor_parallel: bool = Field(default=True, examples=["true"])
    pipeline: bool = Field(default=False, examples=["true"])
    data_parallel: bool = Field(default=False, examples=["true"])


def _default_schedule(scenario: dict[str, Any]) -> ScheduleName:
    return "interleaved" if scenario["parallelism"].interleave > 1 else "1f1b"


class Scenario(_Section):
    """One question to the simulator. `hardware` overrides entries of the cluster's profile.

    The derived quantities are whole numbers for every scenario that
    `simtrain.scenario.check_scenario` accepts.
    """

    name: str | None = Field(default=None, examples=["my-scenario"])
    description: str | None = Field(default=None, examples=["What this scenario shows"])
    model: Model
    parallelism: Parallelism = Parallelism()
    batch: Batch
    recompute: Literal["none", "selective", "full"] = Field(default="none", examples=["selective"])
    schedule: ScheduleName = Field(default_factory=_default_schedule, examples=["1f1b"])
    cluster: str = Field(default="a100_sxm4_80gb", min_length=1, examples=["a100_sxm4_80gb"])
    hardware: dict[str, Any] = Field(default_factory=dict)
    precision: Precision = Precision()
    overlap: Overlap = Overlap()

    _positions: Positions = PrivateAttr(default_factory=Positions)

    @property
    def positions(self) -> Positions:
        """Where in which file each field was written; empty for a scenario built in Python."""
        return self._positions

    @property
    def hardware_document(self) -> Document:
        """The overrides of the cluster's profile with their positions, to overlay it with."""
        return section(Document({"hardware": self.hardware}, self._positions), ("hardware",))

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas: tensor x pipeline x data."""
        return self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data

    @property
    def num_microbatches(self) -> int:
        """Microbatches that each replica runs in an iteration."""
        return self.batch.global_ // (self.batch.micro * self.parallelism.data)

    @property
    def num_chunks(self) -> int:
        """Chunks (virtual stages) of each stage."""
        return self.parallelism.interleave

    @property
    def layers_per_chunk(self) -> int:
        """Transformer layers of each chunk."""
        return self.model.num_layers // (self.parallelism.pipeline * self.num_chunks)

    @property
    def compute_bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return _BYTES_OF[self.precision.compute]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the gradient that is summed over microbatches and reduced."""
        return _BYTES_OF[self.precision.gradients]

    @property
    def strategy(self) -> str:
        """The paper's name of the memory strategy: baseline, sequence, selective+sequence, ..."""
        recompute = [] if self.recompute == "none" else [self.recompute]
        sequence = ["sequence"] if self.parallelism.sequence_parallel else []
        return "+".join(recompute + sequence) or "baseline"
