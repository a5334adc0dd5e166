"""What an action holds beyond what forward passes keep: its ops replayed one after another.

Tensors appear with the op that saves them (the dropped ones with the op that computes them again)
and go after the op that releases them; beside them stand the activations and gradients that the op
reads and writes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from simtrain.scenario import RecomputePolicy
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import IssueOrder, Node
from simtrain.workload.ops import Phase
from simtrain.workload.recompute import repeated_units
from simtrain.workload.shape import LayerShape

Tensors = dict[tuple[int, str], int]
"""Bytes of each tensor, by layer of the chunk and name."""


@dataclass(frozen=True, slots=True)
class ActionMemory:
    """Bytes of a forward or backward pass of one microbatch on one chunk.

    `kept_bytes` stay from the forward to the backward pass. At its fullest moment, in `op`, the
    action holds `beyond_bytes` more than them, `recomputed_bytes` of which it computed again.
    """

    kept_bytes: int
    beyond_bytes: int
    recomputed_bytes: int
    op: str


def pass_memory(
    chunk: Chunk, policy: RecomputePolicy, shape: LayerShape, hide: bool
) -> tuple[ActionMemory, ActionMemory]:
    """The forward and the backward pass of a microbatch on a chunk.

    Layers (or the units that are run again together) between the first and the last add to what is
    kept, each as much as the next, and not to what a pass holds beyond it: two are replayed and the
    others counted. What ZeRO gathers and reduces within a pass are no activations: `memory.buffers`
    has it.
    """
    unit, num_left_out = repeated_units(policy, chunk.num_layers)
    few = replace(chunk, num_layers=chunk.num_layers - num_left_out * unit)
    forward, backward, of_unit = _replayed(few, policy, shape, hide, unit)
    left_out_bytes = num_left_out * of_unit
    return forward.with_more(left_out_bytes), backward.with_more(left_out_bytes)


@dataclass(frozen=True, slots=True)
class _Replay:
    """The fullest moments of a pass: `first`, and after the units that may be left out, `then`.

    `with_them` says at which of both these units' tensors are there, besides all that is kept.
    """

    first: ActionMemory
    then: ActionMemory
    with_them: bool

    def with_more(self, more_bytes: int) -> ActionMemory:
        """The pass if so many bytes more were kept: where they are not there, less is beyond."""
        first = _against(self.first, more_bytes, there=self.with_them)
        then = _against(self.then, more_bytes, there=not self.with_them)
        return then if then.beyond_bytes > first.beyond_bytes else first


def _against(memory: ActionMemory, more_bytes: int, *, there: bool) -> ActionMemory:
    beyond = memory.beyond_bytes if there else max(0, memory.beyond_bytes - more_bytes)
    return ActionMemory(
        memory.kept_bytes + more_bytes,
        beyond,
        min(beyond, memory.recomputed_bytes),
        memory.op if beyond else "",
    )


@functools.lru_cache(maxsize=4096)
def _replayed(
    chunk: Chunk, policy: RecomputePolicy, shape: LayerShape, hide: bool, unit: int
) -> tuple[_Replay, _Replay, int]:
    """Both passes op by op, and what the first `unit` layers keep.

    The backward pass releases all that the forward pass kept.
    """
    live: Tensors = {}
    order = chunk.forward(shape, policy, hide=hide)
    forward = _replay(order, live, order.saved_bytes(), unit)
    of_unit = sum(size for (layer, _), size in live.items() if 0 <= layer < unit)
    order = chunk.backward(shape, policy, hide=hide)
    backward = _replay(order, live, sum(live.values()), unit)
    assert not live, f"nothing releases {sorted(live)}"
    return forward, backward, of_unit


def forward_memory(order: IssueOrder) -> tuple[ActionMemory, Tensors]:
    """A forward pass, and the tensors that it leaves for the backward pass."""
    live: Tensors = {}
    memory = _replay(order, live, order.saved_bytes()).with_more(0)
    return memory, live


def backward_memory(order: IssueOrder, kept: Tensors) -> tuple[ActionMemory, Tensors]:
    """A backward pass that starts with the kept tensors, and what is left of them (nothing)."""
    live = dict(kept)
    memory = _replay(order, live, sum(kept.values())).with_more(0)
    return memory, live


def _replay(order: IssueOrder, live: Tensors, kept_bytes: int, unit: int = 0) -> _Replay:
    """Run through the ops, changing `live`; the fullest moments against `kept_bytes`.

    Units that are left out stand after the first `unit` layers: their tensors are there while later
    layers run, and whatever follows them forward or comes before them backward.
    """
    with_them = starts_with_them = bool(live)
    again: Tensors = {}
    nothing = ActionMemory(kept_bytes, 0, 0, "")
    fullest = {True: nothing, False: nothing}
    live_bytes = sum(live.values())
    for node in order.nodes:
        if node.layer >= 0:
            with_them = node.layer >= unit
        saved = _saved(node)
        new = {key: size for key, size in saved.items() if key not in live}
        live |= new
        live_bytes += sum(new.values())
        if node.op.phase is Phase.RECOMPUTE:
            again |= new
        released = [(node.layer, name) for name in node.op.releases]
        own_bytes = sum(saved.values()) + sum(live[key] for key in released if key not in saved)
        working_bytes = node.op.working_bytes(own_bytes) + node.waiting_bytes
        beyond = live_bytes + working_bytes - kept_bytes
        if beyond > fullest[with_them].beyond_bytes:
            recomputed = min(beyond, sum(again.values()))
            fullest[with_them] = ActionMemory(kept_bytes, beyond, recomputed, node.op.name)
        for key in released:
            live_bytes -= live.pop(key)
            again.pop(key, None)
    return _Replay(fullest[starts_with_them], fullest[not starts_with_them], starts_with_them)


def _saved(node: Node) -> Tensors:
    return {(node.layer, tensor.name): tensor.num_bytes for tensor in node.op.saved}
