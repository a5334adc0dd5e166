"""The section `memory` of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from simtrain.scenario.model import MAX_COUNT, Count
from simtrain.scenario.section import Section

# On, off, or a number, such as of ranks.
_FlagOrCount = Annotated[
    Annotated[int, Field(ge=1, le=MAX_COUNT), Tag("count")] | Annotated[bool, Tag("flag")],
    Discriminator(lambda value: "flag" if isinstance(value, bool) else "count"),
]


class MemoryOptions(Section):
    """What else trades time for memory.

    zero_stage: states that are divided over the replicas: none (0), optimizer states (1,
        Megatron-LM's distributed optimizer), gradients too (2), parameters too (3).
    shard_over: replicas over which each state is divided; all by default. Other replicas hold it
        too, and gradients are summed over them once they are divided: PyTorch's HSDP, or several
        instances of Megatron-LM's distributed optimizer. Neighbouring replicas divide states, so
        that 8 of them may share a node.
    reshard_after_forward: with stage 3, what happens to the parameters of a layer after its forward
        pass (PyTorch's fully_shard). true: they are freed, and gathered again for the backward
        pass. false: they stay. A number: they are divided over this many ranks, which gather them
        for the backward pass.
    reduce_every_microbatch: with stages 2 and 3, each backward pass reduces its gradients. Without
        it gradients are added whole, and only the last microbatch's backward pass reduces them
        (set_requires_gradient_sync of PyTorch's FSDPModule).
    offload_optimizer: optimizer states live on the host, whose processors run Adam.
    deallocate_outputs: a stage frees its output once it is sent (paper, Appendix B).
    in_place_cross_entropy: the loss subtracts the maximum within the fp32 logits, as Megatron-LM
        did until 2022 and does since June 2024, and not into a copy, as it did in between. By
        default as the software stack does.
    """

    zero_stage: int = Field(default=0, ge=0, le=3, examples=[1])
    shard_over: Count | None = Field(default=None, examples=[8])
    reshard_after_forward: _FlagOrCount = Field(default=True, examples=["false or 8"])
    reduce_every_microbatch: bool = Field(default=True, examples=["false"])
    offload_optimizer: bool = Field(default=False, examples=["true"])
    deallocate_outputs: bool = Field(default=True, examples=["false"])
    in_place_cross_entropy: bool | None = Field(default=None, examples=["false"])
