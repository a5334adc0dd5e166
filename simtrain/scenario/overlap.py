"""The section `overlap` of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from simtrain.scenario.model import MAX_COUNT, Count
from simtrain.scenario.section import Section

# A number of parameters, or a rule by name.
_BucketRule = Annotated[
    Annotated[int, Field(ge=1, le=MAX_COUNT), Tag("count")]
    | Annotated[Literal["layer", "megatron"], Tag("rule")],
    Discriminator(lambda value: "rule" if isinstance(value, str) else "count"),
]


class Overlap(Section):
    """Which communication runs beside compute; the defaults are what the paper ran.

    tensor_parallel: the collectives of the backward pass behind the gradient products. By default
        as the software stack does.
    userbuffers: the gathers and reduce-scatters of QKV, projection and MLP pipelined with their
        products, chunk by chunk, in the forward pass too (Megatron-LM's --tp-comm-overlap, by
        Transformer Engine's defaults; PyTorch's asynchronous tensor parallelism).
    pipeline: asynchronous transfers between stages, instead of blocking ones.
    shared_expert: the shared expert beside the all-to-alls of the others, instead of after them
        (--moe-shared-expert-overlap).
    data_parallel: the gradient reduction behind the backward pass, instead of after it.
    parameter_gather: with the distributed optimizer (memory.zero_stage 1), the gather of the new
        parameters behind the first forward passes of the next iteration, instead of after the
        optimizer (--overlap-param-gather). Iterations are simulated from one optimizer step to the
        next, so that the gathers stand at their start.
    prefetch: with memory.zero_stage 3 and data_parallel, how many layers' parameters are gathered
        ahead of the layer that runs (set_modules_to_forward_prefetch and _to_backward_prefetch of
        PyTorch's FSDPModule, which gathers one ahead by itself).
    gradient_buckets: which gradients are reduced together, and which parameters are gathered
        together. layer: those of each layer. megatron: on the first chunk of the first stage at
        least max(40M, 1M x data) parameters, every other chunk as one bucket. A number: as
        megatron, with at least so many parameters (--ddp-bucket-size).
    align_gradient_reduction: all stages start to reduce the gradients of a chunk at about the same
        time (Megatron-LM's default; --no-align-grad-reduce turns it off).
    align_parameter_gather: all stages start to gather the parameters of a chunk at about the same
        time, and ahead of its first forward pass (--align-param-gather).
    """

    tensor_parallel: bool | None = Field(default=None, examples=["true"])
    userbuffers: bool = Field(default=False, examples=["true"])
    pipeline: bool = Field(default=False, examples=["true"])
    data_parallel: bool = Field(default=False, examples=["true"])
    parameter_gather: bool = Field(default=False, examples=["true"])
    prefetch: Count = Field(default=1, examples=[2])
    gradient_buckets: _BucketRule = Field(default="layer", examples=["megatron or 40000000"])
    align_gradient_reduction: bool = Field(default=False, examples=["true"])
    align_parameter_gather: bool = Field(default=False, examples=["true"])
    shared_expert: bool = Field(default=False, examples=["true"])

    other_names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "tp_comm_overlap": "userbuffers",
            "enable_async_tensor_parallel": "userbuffers",
            "overlap_grad_reduce": "data_parallel",
            "overlap_param_gather": "parameter_gather",
        }
    )
