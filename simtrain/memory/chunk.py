"""What the passes of a chunk hold, and what they leave for one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simtrain.memory.working import PassMemory, pass_memory
from simtrain.plan import Plan
from simtrain.schedules import Kind
from simtrain.workload.chunk import Chunk

Load = tuple[int, bool]
"""A chunk by its number among the different ones, and whether its passes keep everything."""


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """Bytes of the passes of a chunk.

    Args:
        outstanding_bytes: what a forward pass leaves for the backward pass.
        deferred_bytes: what input gradients leave for the weight gradients.
        passes: memory of each kind of pass.
    """

    outstanding_bytes: int
    deferred_bytes: int
    passes: Mapping[Kind, PassMemory]

    @property
    def change_bytes(self) -> dict[Kind, int]:
        """By how much each kind of pass changes what its stage holds."""
        outstanding, deferred = self.outstanding_bytes, self.deferred_bytes
        return {"F": outstanding, "B": -outstanding, "I": deferred - outstanding, "W": -deferred}

    @property
    def beyond_bytes(self) -> int:
        """The most that a pass holds beyond what is kept."""
        return max(memory.beyond_bytes for memory in self.passes.values())

    @property
    def buffer_bytes(self) -> int:
        """What the passes need of the framework's global buffer."""
        return max(memory.buffer_bytes for memory in self.passes.values())


def _chunk_memory(plan: Plan, chunk: Chunk, keeps: bool) -> ChunkMemory:
    passes = {kind: pass_memory(plan.chunk_pass(chunk, kind, keeps)) for kind in plan.order.kinds}
    deferred = passes["I"].left_bytes if "I" in passes else 0
    outstanding = passes["F"].left_bytes + _output_bytes(plan, chunk)
    return ChunkMemory(outstanding, deferred, passes)


def chunk_memories(plan: Plan) -> dict[Load, ChunkMemory]:
    """Memory of the different chunks that the plan runs."""
    keeps_any = any(plan.order.num_kept)
    return {
        (number, keeps): _chunk_memory(plan, chunk, keeps)
        for number, chunk in enumerate(plan.slices.different)
        for keeps in ((False, True) if keeps_any else (False,))
    }


def _output_bytes(plan: Plan, chunk: Chunk) -> int:
    """Bytes of the output that a chunk sends on, where it is held: 2sbh, or this rank's part.

    Without `deallocate_outputs` it waits for the backward pass, as the input of the next stage
    that it is does there (paper, Appendix B).
    """
    is_last = chunk == plan.slices.different[plan.slices.numbers[-1]]
    if plan.scenario.memory.deallocate_outputs or plan.mesh.pp == 1 or is_last:
        return 0
    return plan.microbatch.local_bytes
