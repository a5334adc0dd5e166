"""What the forward pass of a block does, as functions that bring their own backward.

A block calls the functions of `simtrain.workload.blocks` as a module of PyTorch calls torch's. Each
records a node: the ops that it issues forward, those that it issues backward, its parameters, and
the tensors between which gradients flow. All else follows from the nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from simtrain.mesh import Group, Mesh
from simtrain.scenario import Parallelism
from simtrain.scenario.precision import Fp8Weights
from simtrain.software import PAPER_KERNELS, Kernels
from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.work import ProductType

Emit = Callable[[IssueOrder], None]


@dataclass(frozen=True, slots=True)
class Context:
    """Ranks that divide every sequence, and what their attention exchanges.

    Each sequence is cut into twice as many slices as ranks. The first rank has the first and the
    last slice, the second rank the second and the last but one: all have as many scores to compute.

    Args:
        group: all ranks.
        heads: those that exchange tokens for heads, by all-to-alls.
        keys: those that exchange keys and values.
        gathers: keys and values are all-gathered, and do not travel around a ring.
    """

    group: Group
    heads: Group
    keys: Group
    gathers: bool = False

    @classmethod
    def of(cls, split: Parallelism, mesh: Mesh) -> Context | None:
        """The ranks that divide the sequences of a scenario, if there are several."""
        if mesh.cp == 1:
            return None
        how = split.context_communication
        neighbours = {"a2a": mesh.cp, "a2a+p2p": split.context_a2a or 1}.get(how, 1)
        groups = mesh.split_group("cp", neighbours)
        return cls(mesh.group("cp"), *groups, gathers=how == "all_gather")


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Ranks that hold experts together.

    Args:
        parallel: those that hold different experts.
        tensor: those that share each expert.
        both: those that hold all experts once.
    """

    parallel: Group
    tensor: Group
    both: Group

    @classmethod
    def of(cls, mesh: Mesh | None) -> ExpertGroups | None:
        """The groups of a mesh of experts (`Mesh.of_experts`), if there is one."""
        if mesh is None:
            return None
        return cls(mesh.group("ep"), mesh.group("tp"), mesh.group("tp", "ep"))


@hashed_once
@dataclass(frozen=True)
class Microbatch:
    """What flows from block to block, as one rank sees it: `sequences` × `seq_length` × `hidden`.

    `tensor` is the tensor-parallel group, `context` the ranks that divide sequences, if there are
    several. Gradients are summed over microbatches in elements of `gradient_bytes`. Products
    multiply `dtype`, and those of linear layers fp8 if there is an `fp8_recipe` (the name of one in
    `workload.fp8`), whose weights are where `fp8_weights` says. `kernels` says which kernels the
    software stack fuses. `experts` are the groups of a model that has experts. Unless
    `adds_gradients`, each microbatch's gradients
    of linear layers are reduced as their products leave them.
    """

    seq_length: int
    sequences: int
    hidden: int
    tensor: Group
    sequence_parallel: bool = False
    element_bytes: int = 2
    gradient_bytes: int = 4
    context: Context | None = None
    kernels: Kernels = PAPER_KERNELS
    dtype: ProductType = "bf16"
    fp8_recipe: str = ""
    fp8_weights: Fp8Weights = "cached"
    experts: ExpertGroups | None = None
    adds_gradients: bool = True

    @property
    def whole_length(self) -> int:
        """Tokens of a sequence on all ranks that divide it."""
        return self.seq_length * (self.context.group.num_ranks if self.context else 1)

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch: s · b."""
        return self.seq_length * self.sequences

    @property
    def local_tokens(self) -> int:
        """Tokens that norms and dropouts see on this rank: s · b, or s · b / t."""
        return self.tokens // self.tensor.num_ranks if self.sequence_parallel else self.tokens

    @property
    def activation_bytes(self) -> int:
        """Bytes of all tokens: s · b · h elements."""
        return self.element_bytes * self.tokens * self.hidden

    @property
    def local_bytes(self) -> int:
        """Bytes of this rank's tokens."""
        return self.element_bytes * self.local_tokens * self.hidden


@dataclass(frozen=True, slots=True)
class Parameter:
    """Trained numbers on one rank.

    Args:
        elements: how many.
        is_whole: every tensor-parallel rank holds all of it. Under sequence parallelism its
            gradient is then a partial sum, to be reduced over the group.
        tied: the name under which other blocks hold the same parameter.
        is_expert: it belongs to an expert, whose replicas are fewer than those of other parameters
            if experts are divided over ranks.
        in_fp8: products read copies of it in fp8.
    """

    elements: int
    is_whole: bool = False
    tied: str = ""
    is_expert: bool = False
    in_fp8: bool = False


class Block(Protocol):
    """A part of a model: hashable, and described by its forward pass alone.

    `is_unit` says that its parameters are sharded, gathered and reduced by themselves (an FSDP
    unit, a gradient bucket); those of other blocks belong to the root unit.
    """

    def __hash__(self) -> int:
        """Equal blocks record the same, once."""

    @property
    def is_unit(self) -> bool:
        """Whether its parameters are a unit of their own."""

    def forward(self, tape: Tape, x: Tensor) -> Tensor | None:
        """Record the forward pass from the output of the block before to its own."""


@dataclass(slots=True, eq=False)
class Region:
    """Nodes of a tape that a recompute policy can name.

    Args:
        name: what policies call it; several regions of a block may have the same name.
        discarded_after: a later tensor. If given, recompute drops the region's outputs too, as soon
            as this tensor is computed, and runs the region again as soon as its gradient is
            (Megatron-LM's `CheckpointWithoutOutput`). Otherwise what follows keeps the outputs that
            it saves, and the region runs again just before its own backward pass.
    """

    name: str
    discarded_after: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A function on a tape.

    Args:
        inputs: tensors that get a gradient from its backward.
        outputs: tensors whose gradients its backward starts from.
        forward, backward: issue its ops.
        regions: regions around it that may be recomputed, the outermost first.
        deferred_gradient_bytes: what its weight gradient reads of its output's gradient.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    forward: Emit
    backward: Emit | None
    regions: tuple[Region, ...]
    deferred_gradient_bytes: int


@dataclass
class Tape:
    """Records the nodes of one block."""

    microbatch: Microbatch
    nodes: list[Node] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    fp8_copies: dict[Tensor, tuple[Tensor, ...]] = field(default_factory=dict)
    """What tensors are cast to, by the tensors; products read and save the copies."""
    _num_tensors: int = 0
    _regions: tuple[Region, ...] = ()

    def tensor(
        self,
        name: str,
        rows: int,
        width: int,
        element_bytes: int | None = None,
        storage: int | None = None,
    ) -> Tensor:
        """A new tensor, in the compute type unless `element_bytes` says otherwise.

        `storage` makes it a view of a storage that other tensors share.
        """
        number = self._num_tensors
        self._num_tensors += 1
        size = self.microbatch.element_bytes if element_bytes is None else element_bytes
        return Tensor(name, rows, width, size, number, number if storage is None else storage)

    def record(
        self,
        name: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        forward: Emit,
        backward: Emit | None,
        *,
        parameters: tuple[Parameter, ...] = (),
        deferred_gradient_bytes: int = 0,
    ) -> None:
        """Append a node."""
        regions, deferred = self._regions, deferred_gradient_bytes
        node = Node(name, inputs, outputs, forward, backward, regions, deferred)
        self.nodes.append(node)
        self.parameters.extend(parameters)

    def kernel(
        self,
        x: Tensor,
        y: Tensor,
        forward: Op,
        backward: Op,
        parameters: tuple[Parameter, ...] = (),
    ) -> Tensor:
        """Append a node of one kernel each way; returns its output."""
        return self.kernels(forward.name, x, y, (forward,), (backward,), parameters)

    def kernels(
        self,
        name: str,
        x: Tensor,
        y: Tensor,
        forward: tuple[Op, ...],
        backward: tuple[Op, ...],
        parameters: tuple[Parameter, ...] = (),
        deferred_gradient_bytes: int = 0,
    ) -> Tensor:
        """Append a node of several kernels each way; returns its output."""
        self.record(
            name,
            (x,),
            (y,),
            lambda order: order.compute_all(forward),
            lambda order: order.compute_all(backward),
            parameters=parameters,
            deferred_gradient_bytes=deferred_gradient_bytes,
        )
        return y

    @contextmanager
    def new_nodes(self) -> Iterator[list[Node]]:
        """Within, nodes are appended to a list of their own."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    @contextmanager
    def region(self, name: str) -> Iterator[Region]:
        """Within, nodes belong to a region that a recompute policy can name."""
        outer, region = self._regions, Region(name)
        self._regions = (*outer, region)
        yield region
        self._regions = outer


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A block's nodes, its input and its output (None after a loss)."""

    nodes: tuple[Node, ...]
    parameters: tuple[Parameter, ...]
    block_input: Tensor
    block_output: Tensor | None
    num_tensors: int


@functools.lru_cache(maxsize=4096)
def record(block: Block, microbatch: Microbatch) -> Recording:
    """Run a block's forward pass on a tape."""
    tape = Tape(microbatch)
    given = tape.tensor("block input", microbatch.local_tokens, microbatch.hidden)
    result = block.forward(tape, given)
    return Recording(tuple(tape.nodes), tuple(tape.parameters), given, result, tape._num_tensors)
