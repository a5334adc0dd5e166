"""The section `offload` of a scenario: which activations wait on the host."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.section import Count, Section

OffloadUnit = Literal["none", "layer", "chunk"]
OffloadDevice = Literal["host", "nvme"]
OffloadModule = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
OFFLOAD_MODULES: tuple[OffloadModule, ...] = get_args(OffloadModule)
"""Modules of Megatron-Core's offload_modules; other entries of offload.modules are names of ops."""


def _ordered(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Sort modules before names of ops, so that equivalent sections compare equal."""
    if len({*modules}) < len(modules) or not all(module.strip() for module in modules):
        raise FieldError((), "lists a module twice, or an empty name", "write each module once")
    first = [module for module in OFFLOAD_MODULES if module in modules]
    return (*first, *sorted(module for module in modules if module not in OFFLOAD_MODULES))


class Offload(Section):
    """Which saved activations are copied to the host until their backward pass.

    `offload: layer` is short for `offload: {unit: layer}`.

    unit: what is copied at once: nothing (none, default); the tensors of a layer (layer), after its
        forward pass and one layer before its backward pass, as Transformer Engine and Megatron-Core
        do; or those of a whole chunk (chunk), one backward pass ahead, as PipeOffload does. If
        another field is set, the default is layer.
    modules: whose saved tensors are copied; by default ([]) all that layers save. Names of
        Megatron-Core (offload_modules): attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm,
        expert_fc1, moe_act; or names of ops, as run --show ops prints them. The tensors are
        those that the module reads and its backward pass needs.
    layers: number of layers whose tensors are copied, the first ones of each chunk; by default
        (null) all (cpu_offloading_num_layers, without a pipeline).
    device: where the tensors wait. host (default): in the host's memory. nvme: on the disks of the
        node, to which they stream through a buffer of the host (ZeRO-Infinity, Section 5.1.2).
    chunks: number of chunks per stage whose tensors are copied, the first ones, which wait longest;
        by default (null) all (offload_chunk_num of PipeOffload).
    """

    unit: OffloadUnit = Field(default="none", examples=["layer"])
    modules: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_ordered)] = Field(
        default=(), examples=["[core_attn, attn_proj]"]
    )
    layers: Count | None = Field(default=None, examples=[4])
    chunks: Count | None = Field(default=None, examples=[1])
    device: OffloadDevice = Field(default="host", examples=["nvme"])

    @property
    def swaps(self) -> bool:
        """Whether activations wait on disks."""
        return self.device == "nvme"

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        """Expand a single word to a section; set the unit if only other fields are written."""
        if isinstance(written, dict):
            return {"unit": "layer", **written} if written else written
        return written if isinstance(written, cls) else {"unit": written}
