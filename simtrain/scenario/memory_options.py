"""The section `memory` of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from simtrain.scenario.section import MAX_COUNT, Count, Section

# On, off, or a number.
_FlagOrCount = Annotated[
    Annotated[int, Field(ge=1, le=MAX_COUNT), Tag("count")] | Annotated[bool, Tag("flag")],
    Discriminator(lambda value: "flag" if isinstance(value, bool) else "count"),
]


class MemoryOptions(Section):
    """Options that trade time for memory, besides recompute.

    zero_stage: states that are sharded over the replicas: none (0, default), optimizer states (1,
        Megatron-LM's distributed optimizer), also gradients (2), also parameters (3).
    shard_over: number of replicas over which each state is sharded; by default (null) all of them.
        With fewer, each group of neighbouring replicas holds a copy, and gradients are summed over
        the groups after their reduce-scatter: PyTorch's HSDP, or Megatron-LM with several instances
        of the distributed optimizer. With 8, a group can fit on one node.
    reshard_after_forward: with zero_stage 3, what happens to the parameters of a layer after its
        forward pass (PyTorch's fully_shard). true (default): they are freed and gathered again for
        the backward pass. false: they are kept. A number: they are resharded over this number of
        ranks, which gather them for the backward pass.
    reduce_every_microbatch: with zero_stage 2 and 3, true (default) reduces the gradients of every
        microbatch; false accumulates unsharded gradients and reduces them after the last microbatch
        (set_requires_gradient_sync of PyTorch's FSDPModule).
    gathered_chunks: with PyTorch's fully_shard in a pipeline, number of chunks whose parameters a
        stage holds at a time. It gathers whole chunks ahead of their passes, and reduces the
        gradients of a chunk during the passes after its last one (UNSHARD, RESHARD and REDUCE_GRAD
        of torch.distributed.pipelining, which holds 3). By default (null), the first pass of a
        chunk gathers it layer by layer, and everything is reduced after all passes.
    offload_optimizer: true keeps optimizer states on the host, where the CPUs run Adam; false by
        default.
    deallocate_outputs: true (default) frees the output of a stage after it is sent (paper, Appendix
        B).
    in_place_cross_entropy: true if the loss subtracts the maximum of the fp32 logits in place, as
        Megatron-LM did until 2022 and does since June 2024; false if it allocates a copy. The
        software stack sets the default.
    """

    zero_stage: int = Field(default=0, ge=0, le=3, examples=[1])
    shard_over: Count | None = Field(default=None, examples=[8])
    reshard_after_forward: _FlagOrCount = Field(default=True, examples=["false or 8"])
    reduce_every_microbatch: bool = Field(default=True, examples=["false"])
    gathered_chunks: Count | None = Field(default=None, examples=["2"])
    offload_optimizer: bool = Field(default=False, examples=["true"])
    deallocate_outputs: bool = Field(default=True, examples=["false"])
    in_place_cross_entropy: bool | None = Field(default=None, examples=["false"])
