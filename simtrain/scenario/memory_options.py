"""The section `memory` of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from simtrain.scenario.section import MAX_COUNT, Count, Section

# On, off, or a number.
_FlagOrCount = Annotated[
    Annotated[int, Field(ge=1, le=MAX_COUNT), Tag("count")] | Annotated[bool, Tag("flag")],
    Discriminator(lambda value: "flag" if isinstance(value, bool) else "count"),
]

StatesOnNvme = Literal["none", "optimizer", "parameters", "all"]
"""Offloaded states that are on NVMe."""
ParameterOwners = Literal["all", "one"]
"""Replicas that each offloaded parameter belongs to."""


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
    offload_gradients: true copies the gradients of each layer to the host as soon as they are
        reduced, beside the backward pass, so that the GPU never holds all of them (ZeRO-Offload,
        Section 4.1). Later microbatches bring the sum back and add to it, as DeepSpeed does. It
        needs offload_optimizer.
    offload_parameters: true keeps parameters on the host too (ZeRO-Infinity). Before a layer needs
        its parameters, each rank copies its shard to its GPU, and the ranks gather them.
        overlap.prefetch is the number of layers that are gathered ahead; copies run one layer
        farther ahead, and reads from NVMe two. It needs offload_optimizer.
    parameter_owners: who copies an offloaded parameter. all (default): each rank has a shard of it
        and copies this over its own link (ZeRO-Infinity's bandwidth-centric partitioning). one: one
        rank has all of it, copies it over one link and broadcasts it.
    delayed_update: true lets the host's Adam run beside the passes of the next iteration, which
        still use the parameters of the iteration before (ZeRO-Offload's one-step delayed parameter
        update). It needs offload_optimizer.
    nvme: which offloaded states are on NVMe instead of in the host's memory: none (default);
        optimizer, with the gradients if these are offloaded; parameters; or all.
    sub_group_size: with nvme or a delayed update, number of parameters that Adam updates at once
        (DeepSpeed's sub_group_size). NVMe reads the states of the next ones and writes those of the
        last ones meanwhile.
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
    offload_gradients: bool = Field(default=False, examples=["true"])
    offload_parameters: bool = Field(default=False, examples=["true"])
    parameter_owners: ParameterOwners = Field(default="all", examples=["one"])
    delayed_update: bool = Field(default=False, examples=["true"])
    nvme: StatesOnNvme = Field(default="none", examples=["optimizer"])
    sub_group_size: Count = Field(default=1_000_000_000, examples=[100_000_000])
    deallocate_outputs: bool = Field(default=True, examples=["false"])
    in_place_cross_entropy: bool | None = Field(default=None, examples=["false"])

    @property
    def optimizer_on_nvme(self) -> bool:
        """Whether optimizer states, and offloaded gradients, are on NVMe."""
        return self.nvme in ("optimizer", "all")

    @property
    def parameters_on_nvme(self) -> bool:
        """Whether parameters are on NVMe."""
        return self.nvme in ("parameters", "all")

    @property
    def updates_beside(self) -> bool:
        """Whether the update of parameters has streams of its own: of the host, and of NVMe."""
        return self.delayed_update or self.nvme != "none"

    @property
    def copies_in_passes(self) -> bool:
        """Whether passes copy gradients or parameters between the GPU and its host."""
        return self.offload_gradients or self.offload_parameters
