"""The section `software` of a scenario: the software stack and its kernels."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from simtrain.base.strict_yaml import FieldError
from simtrain.scenario.releases import Circumstances, split_reference
from simtrain.scenario.section import CountOrZero, Section
from simtrain.scenario.software import (
    DEFAULT_STACK,
    AttentionKernel,
    CrossEntropyFusion,
    Fp8Columns,
    GraphModule,
    StackFacts,
    facts_of,
    refusal,
)
from simtrain.units import parse_bytes, parse_non_negative_seconds


def _time(text: str) -> str:
    parse_non_negative_seconds(text)
    return text


def _size(text: str) -> str:
    parse_bytes(text)
    return text


class Software(Section):
    """The software stack, and the entries of it that this scenario overrides.

    `software: deepspeed_2022` is short for `software: {stack: deepspeed_2022}`. All entries except
    `stack` default to null, which takes the value of the stack. `simtrain show model` lists
    the stacks that come with simtrain.

    stack: name of a software stack that comes with simtrain; megatron_2022 by default. Its newest
        release, or the one after an @: megatron_bridge@25.11.
    fused_softmax: true if mask and softmax of unfused attention run as one kernel.
    fused_rotary: true if the rotation of queries, or of keys, runs as one kernel. With latent
        attention it always does.
    fused_rms_norm: true if RMS norm runs as one kernel.
    fused_activation: true if bias, activation and gate of the MLP run as one kernel.
    fused_dropout_add: true if bias, dropout and residual add run as one kernel.
    fused_cross_entropy: true if the kernels of cross_entropy_fusion compute the cross entropy.
    cross_entropy_fusion: kernels of a fused cross entropy. native is Megatron-LM's own, which holds
        logits and exponentials in fp32: more memory than unfused. te is Transformer Engine's, which
        keeps logits in the compute dtype.
    fused_gradient_accumulation: true if the product that computes a weight gradient also
        accumulates it.
    norm_in_linear: true if a norm with a single linear layer after it is fused into that layer
        (Transformer Engine's LayerNormLinear); it affects only recompute.modules.
    fused_optimizer: true if Adam makes one pass over its states.
    cuda_graphs: true if passes are captured once and launched whole, so that kernels do not wait
        for the host.
    cuda_graph_modules: parts of each layer that CUDA graphs capture (Megatron-LM's
        --cuda-graph-modules); all kernels of such a part take the host one call.
    fully_shard: true if memory.zero_stage 3 is PyTorch's fully_shard, which has fp32 shards that
        serve as master weights, and copies into and out of the buffers of collectives.
    attention_kernel: kernel of fused attention, newest (the hardware profile's) or
        flash_attention_2.
    attention_speed: speed of fused attention relative to that kernel.
    fp8_columns: how weight gradients in fp8 get copies by columns. cast writes them together with
        copies by rows (Transformer Engine). recast saves only rows, and casts them again by columns
        in the backward pass; weights keep one fp8 copy, which is transposed there (DeepSeek-V3).
    grouped_products: true if one kernel has the products of all experts of a layer, as PyTorch's
        _grouped_mm. Otherwise the host launches a product, and in fp8 a cast, for each expert
        (Transformer Engine).
    fused_grouped_mlp: true if products of experts in mxfp8 run the activation and the casts between
        them in their epilogues (Transformer Engine's operation fuser with
        NVTE_CUTEDSL_FUSED_GROUPED_MLP).
    paged_stash: true if what fused experts save is copied into pages, and back before the backward
        pass (--moe-paged-stash).
    checkpointed_fp32_norms: true if norms read an fp32 copy of their input, which a kernel of its
        own makes, and run again in the backward pass (InternEvo's dropout_selective_checkpoint).
    separate_masking: true if unfused attention copies queries, keys and values by head, and
        divides, masks and lowers the scores with a kernel each (Megatron-LM of 2019).
    complex_rotary: true if the kernels of a rotation that is not fused multiply complex numbers in
        fp32, as torchtitan's Llama does. Otherwise they multiply halves by cosines and sines.
    repeated_keys: true if kernels repeat grouped keys and values for each query head before fused
        attention, which then saves the repeated ones (torchtitan's repeat_kv).
    torch_workspaces: number of workspaces that PyTorch keeps for cuBLAS during the whole run.
    linear_workspaces: number of workspaces that Transformer Engine keeps for products of linear
        layers. The hardware profile has their size. Userbuffers need three times as many.
    expert_workspaces: number of workspaces that it keeps in addition for grouped products of
        experts.
    cublas_workspace: size of each of PyTorch's workspaces, which CUBLAS_WORKSPACE_CONFIG sets; 32
        MiB for ":4096:8". By default PyTorch's choice for the GPU, from the hardware profile.
    host_issue: host time to issue a kernel, such as 25 us.
    host_call: host time of a call of the framework (a module's forward pass, a node of autograd) in
        addition to that of its kernels, such as 100 us; on the host of an H100 (host.speed 1).
    blocking_launches: true if the host waits for each kernel and each collective of a pass that it
        launches (CUDA_LAUNCH_BLOCKING=1), so that none overlaps another.
    """

    stack: str = Field(default=DEFAULT_STACK, examples=["deepspeed_2022"])
    fused_softmax: bool | None = Field(default=None, examples=["false"])
    fused_rotary: bool | None = Field(default=None, examples=["false"])
    fused_rms_norm: bool | None = Field(default=None, examples=["false"])
    fused_activation: bool | None = Field(default=None, examples=["false"])
    fused_dropout_add: bool | None = Field(default=None, examples=["false"])
    fused_cross_entropy: bool | None = Field(default=None, examples=["true"])
    cross_entropy_fusion: CrossEntropyFusion | None = Field(default=None, examples=["te"])
    fused_gradient_accumulation: bool | None = Field(default=None, examples=["false"])
    norm_in_linear: bool | None = Field(default=None, examples=["true"])
    fused_optimizer: bool | None = Field(default=None, examples=["false"])
    cuda_graphs: bool | None = Field(default=None, examples=["true"])
    cuda_graph_modules: tuple[GraphModule, ...] | None = Field(
        default=None, strict=False, examples=["[attn, moe_router]"]
    )
    fully_shard: bool | None = Field(default=None, examples=["true"])
    attention_kernel: AttentionKernel | None = Field(default=None, examples=["flash_attention_2"])
    attention_speed: Annotated[float, Field(ge=0.01, le=4)] | None = Field(
        default=None, examples=[0.6]
    )
    fp8_columns: Fp8Columns | None = Field(default=None, examples=["recast"])
    grouped_products: bool | None = Field(default=None, examples=["true"])
    fused_grouped_mlp: bool | None = Field(default=None, examples=["true"])
    paged_stash: bool | None = Field(default=None, examples=["true"])
    checkpointed_fp32_norms: bool | None = Field(default=None, examples=["true"])
    separate_masking: bool | None = Field(default=None, examples=["true"])
    complex_rotary: bool | None = Field(default=None, examples=["true"])
    repeated_keys: bool | None = Field(default=None, examples=["true"])
    torch_workspaces: CountOrZero | None = Field(default=None, examples=["0"])
    linear_workspaces: CountOrZero | None = Field(default=None, examples=["0"])
    expert_workspaces: CountOrZero | None = Field(default=None, examples=["0"])
    cublas_workspace: Annotated[str, AfterValidator(_size)] | None = Field(
        default=None, examples=["32 MiB"]
    )
    host_issue: Annotated[str, AfterValidator(_time)] | None = Field(
        default=None, examples=["25 us"]
    )
    host_call: Annotated[str, AfterValidator(_time)] | None = Field(
        default=None, examples=["100 us"]
    )
    blocking_launches: bool | None = Field(default=None, examples=["true"])

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        """Expand a single word to a section."""
        return written if isinstance(written, (dict, cls)) else {"stack": written}

    @field_validator("stack")
    @classmethod
    def _known(cls, name: str) -> str:
        if refused := refusal(name):
            raise FieldError((), *refused)
        return name

    @property
    def overridden(self) -> dict[str, Any]:
        """The entries that this scenario overrides, in base units."""
        written = {name: value for name, value in vars(self).items() if value is not None}
        del written["stack"]
        for name in ("host_issue", "host_call"):
            if name in written:
                written[name] = parse_non_negative_seconds(written[name])
        if self.cublas_workspace is not None:
            written["cublas_workspace"] = parse_bytes(self.cublas_workspace)
        return written

    @property
    def name(self) -> str:
        """The stack without its release."""
        return split_reference(self.stack)[0]

    def facts_for(self, run: Circumstances | None) -> StackFacts:
        """Return the properties of the stack for a run, with the overrides of this scenario."""
        return _facts_with_overrides(self, run)


@functools.lru_cache(maxsize=1024)
def _facts_with_overrides(software: Software, run: Circumstances | None) -> StackFacts:
    """Return `Software.facts_for`; cached, because rules and plans read them many times."""
    return facts_of(software.stack, software.overridden, run)
