"""The section `overlap` of a scenario: which communication overlaps with compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from simtrain.scenario.other_names import names_within
from simtrain.scenario.section import MAX_COUNT, Count, CountOrZero, Section

# A number of parameters, or a rule by name.
_BucketRule = Annotated[
    Annotated[int, Field(ge=1, le=MAX_COUNT), Tag("count")]
    | Annotated[Literal["layer", "megatron"], Tag("rule")],
    Discriminator(lambda value: "rule" if isinstance(value, str) else "count"),
]


class Overlap(Section):
    """Which communication overlaps with compute; the defaults are those of the paper's runs.

    tensor_parallel: true overlaps the tensor-parallel collectives of the backward pass with the
        gradient products. The software stack sets the default.
    userbuffers: true pipelines the all-gathers and reduce-scatters of QKV, projection and MLP with
        their products, chunk by chunk, in the forward and the backward pass; false by default.
        This is Megatron-LM's --tp-comm-overlap with Transformer Engine's defaults, or PyTorch's
        asynchronous tensor parallelism.
    pipeline: true sends between stages asynchronously; false blocks. By default a schedule from a
        file is asynchronous, 1f1b and gpipe block, and the software stack decides for interleaved
        (Megatron-Core is asynchronous; --no-overlap-p2p-communication). With false, orders that
        Megatron-LM does not have send each pass's output and receive the next one's input in one
        blocking call between both.
    shared_expert: true runs the shared expert during the all-to-alls of the routed experts
        (--moe-shared-expert-overlap); false (default) runs it after them.
    merged_passes: true runs the forward pass of a microbatch beside the backward pass of another
        one, so that kernels of one hide the expert all-to-alls of the other; false runs passes one
        after another. The software stack sets the default of layouts that can merge them, which
        is false for most. For interleaved stages and without a pipeline, it is Megatron-LM's
        --overlap-moe-expert-parallel-comm. Schedules in files say themselves which passes they
        merge; dualpipe and dualpipev always merge.
    delayed_weight_gradients: true runs the weight gradients of merged passes after the all-to-all
        that follows them, which then starts earlier (--delay-wgrad-compute). The software stack
        sets the default of passes that it merges, which is false for most.
    data_parallel: true overlaps the gradient reduction with the backward pass; false reduces after
        it. The software stack sets the default (nemo overlaps).
    parameter_gather: with the distributed optimizer (memory.zero_stage 1), true overlaps the gather
        of new parameters with the first forward passes of the next iteration
        (--overlap-param-gather); false gathers after the optimizer. A simulated iteration runs from
        one optimizer step to the next, so it begins with these gathers. The software stack sets the
        default (nemo overlaps).
    prefetch: with memory.zero_stage 3 and data_parallel, number of layers whose parameters are
        gathered ahead of the running layer; 1 by default. PyTorch's FSDPModule sets it with
        set_modules_to_forward_prefetch and set_modules_to_backward_prefetch.
    gradient_buckets: which gradients are reduced together, and which parameters are gathered
        together. layer (default): one bucket per layer. megatron: buckets of at least max(40M, 1M x
        data) parameters on the first chunk of the first stage, and one bucket for every other
        chunk. A number: as megatron, with buckets of at least this number of parameters
        (--ddp-bucket-size).
    align_gradient_reduction: true makes all stages start to reduce the gradients of a chunk at
        about the same time; false makes each stage start on its own. The software stack sets the
        default of stages that overlap the reduction (Megatron-Core aligns them;
        --no-align-grad-reduce), for its own schedules. Other orders align them as Megatron-LM does:
        with one chunk all stages but the first reduce after their last pass, with several that loop
        over the stages, stage s reduces a chunk after s further backward passes.
    align_parameter_gather: true makes all stages start to gather the parameters of a chunk at about
        the same time, ahead of its first forward pass; false makes each stage start on its own. The
        software stack sets the default of interleaved stages that overlap the gather
        (Megatron-Core aligns them; --no-align-param-gather).
    deferred_output_gradients: number of microbatches whose weight gradients of the output layer the
        last stage computes after its last backward pass, while other stages still run theirs
        (--defer-embedding-wgrad-compute with --wgrad-deferral-limit). Until then it holds the
        layer's input and the gradient of the logits of each; 0 by default.
    optimizer_post_validation: true lets each stage run its optimizer before the gradient norm of
        all stages exists; a partial norm travels along the pipeline, and the whole one validates
        the steps during the next iteration, whose first passes start meanwhile. Zero Bubble's
        runtime has it (--enable-optimizer-post-validation). false (default) waits for the norm.
    """

    other_names: ClassVar[Mapping[str, str]] = names_within("overlap")

    tensor_parallel: bool | None = Field(default=None, examples=["true"])
    userbuffers: bool = Field(default=False, examples=["true"])
    pipeline: bool | None = Field(default=None, examples=["true"])
    merged_passes: bool | None = Field(default=None, examples=["true"])
    delayed_weight_gradients: bool | None = Field(default=None, examples=["true"])
    data_parallel: bool | None = Field(default=None, examples=["true"])
    parameter_gather: bool | None = Field(default=None, examples=["true"])
    prefetch: Count = Field(default=1, examples=[2])
    gradient_buckets: _BucketRule = Field(default="layer", examples=["megatron or 40000000"])
    align_gradient_reduction: bool | None = Field(default=None, examples=["true"])
    align_parameter_gather: bool | None = Field(default=None, examples=["true"])
    shared_expert: bool = Field(default=False, examples=["true"])
    deferred_output_gradients: CountOrZero = Field(default=0, examples=[22])
    optimizer_post_validation: bool = Field(default=False, examples=["true"])
