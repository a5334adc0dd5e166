"""The tape: records the forward pass of a block, from which the backward pass is derived.

A block calls the functions of `simtrain.workload.blocks` like a PyTorch module calls torch
functions. Each function records a node: its forward ops, its backward ops, its parameters, and the
tensors between which gradients flow. Everything else is derived from the nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from simtrain.base.mesh import Group, Mesh
from simtrain.base.values import dataclass, field, replace
from simtrain.scenario import Parallelism
from simtrain.scenario.parallelism import ContextCommunication
from simtrain.scenario.section import Fp8Weights
from simtrain.scenario.software import PAPER_KERNELS, GraphModule, Kernels
from simtrain.workload.hashing import hashed_once
from simtrain.workload.issue import Emit, IssueOrder, OverlapPolicy
from simtrain.workload.ops import Op, Phase, Tensor
from simtrain.workload.work import ProductType

# The part of a node's backward pass that remains if parameters are frozen (autograd's rules).
#
# A frozen parameter has no weight gradient. A tensor before the first trained parameter has no
# gradient, so its node computes no input gradient. The forward pass saves only what the rest of the
# backward pass reads: a frozen linear layer does not save its input. Sources: PyTorch's autograd
# (`requires_grad`); Transformer Engine's Linear and LayerNormLinear, which save the input only if
# `weight.requires_grad`; Megatron-LM's `LinearWithFrozenWeight`.
#
# The tape asks this for each node, so blocks do not know which of their parameters are frozen, and
# no layer has a frozen variant. An adapter only says that its own parameters are trained.


@dataclass(frozen=True, slots=True)
class PartialBackward:
    """The ops of a backward pass that remain, and the tensors that they read.

    Args:
        phases: phases of its ops.
        read: tensors.
    """

    phases: frozenset[Phase]
    read: Collection[Tensor]

    @classmethod
    def of(cls, backward: Emit, *, passes_on: bool, trains: bool) -> PartialBackward:
        """Return the part of a backward pass of a node that passes gradients on, or trains."""
        part = {Phase.INPUT_GRADIENT: passes_on, Phase.WEIGHT_GRADIENT: trains}
        phases = frozenset(phase for phase, remains in part.items() if remains)
        order = IssueOrder(OverlapPolicy(frozenset()), lambda op: op.phase in phases)
        backward(order)
        return cls(phases, {tensor for op in order.segment().ops for tensor in op.reads})

    def forward(self, emit: Emit) -> Emit:
        """Return a forward pass that saves only what the backward pass reads."""

        def emit_saving(order: IssueOrder) -> None:
            with order.changing(self._saving):
                emit(order)

        return emit_saving

    def backward(self, emit: Emit) -> Emit:
        def emit_part(order: IssueOrder) -> None:
            with order.selecting(lambda op: op.phase in self.phases):
                emit(order)

        return emit_part

    def _saving(self, op: Op) -> Op:
        """Return an op without the saved tensors that nothing reads; they exist while it runs."""
        saves = tuple(tensor for tensor in op.saves if tensor in self.read)
        if len(saves) == len(op.saves):
            return op
        unsaved = sum(tensor.num_bytes for tensor in op.saves if tensor not in self.read)
        holds_bytes = op.holds_bytes if op.counts_saved else op.holds_bytes + unsaved
        return op.replace(saves=saves, holds_bytes=holds_bytes)


Steps = Emit | Sequence[Op]
Outputs = TypeVar("Outputs", Tensor, tuple[Tensor, ...])


@dataclass(frozen=True, slots=True)
class Context:
    """Context-parallel ranks, which divide every sequence, and the groups of their attention.

    Each sequence is cut into twice as many slices as ranks. The first rank has the first and the
    last slice, the second rank the second and the last but one, and so on, so that all ranks
    compute equally many scores under a causal mask.

    Args:
        group: all ranks.
        heads: ranks that exchange tokens for heads with all-to-alls.
        keys: ranks that exchange keys and values.
        communication: how they do.
    """

    group: Group
    heads: Group
    keys: Group
    communication: ContextCommunication

    @classmethod
    def of(cls, split: Parallelism, mesh: Mesh) -> Context | None:
        """Return the context-parallel ranks of a scenario, or None without context parallelism."""
        if mesh.cp == 1:
            return None
        groups = mesh.split_group("cp", split.ranks_of_heads)
        return cls(mesh.group("cp"), *groups, split.context_communication)


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Groups of ranks that hold the experts of a layer.

    Args:
        parallel: expert-parallel ranks, which hold different experts.
        tensor: tensor-parallel ranks, which divide each expert.
        both: ranks along both axes, which together hold all experts once.
    """

    parallel: Group
    tensor: Group
    both: Group

    @classmethod
    def of(cls, mesh: Mesh | None) -> ExpertGroups | None:
        if mesh is None:
            return None
        return cls(mesh.group("ep"), mesh.group("tp"), mesh.group("tp", "ep"))


@hashed_once
@dataclass(frozen=True)
class Microbatch:
    """The hidden states of a microbatch on one rank: `sequences` × `seq_length` × `hidden`.

    Args:
        seq_length: tokens of each sequence on this rank (its slices under context parallelism).
        sequences: sequences of the microbatch.
        hidden: hidden size.
        tensor: the tensor-parallel group.
        sequence_parallel: as the scenario's parallelism.sequence_parallel.
        element_bytes: of activations and parameters.
        gradient_bytes: of the gradient buffer, which sums gradients over microbatches.
        context: context-parallel ranks; None without context parallelism.
        kernels: kernels that the software stack fuses.
        dtype: data type of matrix products.
        fp8_recipe: name of a recipe in `workload.fp8`, with which linear layers multiply in fp8;
            "" without fp8.
        fp8_weights: when fp8 copies of weights are made.
        experts: groups of the experts; None for a dense model.
        adds_gradients: weight gradients are added to the gradient buffer. Otherwise each
            microbatch's gradients are reduced in the type in which the products write them.
        userbuffers: as in the scenario's overlap.userbuffers.
        is_frozen: parameters are frozen, except those of adapters (`Tape.training`).
        saved_in_16_bits: names of regions whose outputs fp8 products save in 16 bits, because
            recompute discards them (Transformer Engine's `save_original_input`).
        fp8_activation_inputs, attention_output_bits: as in the scenario's precision.
        graph_modules: parts of a layer that a CUDA graph captures (`Tape.capturing`).
        documents: lengths of the documents that each sequence packs, with their numbers; empty if
            attention spans whole sequences.
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
    userbuffers: bool = False
    is_frozen: bool = False
    documents: tuple[tuple[int, int], ...] = ()
    saved_in_16_bits: frozenset[str] = frozenset()
    fp8_activation_inputs: bool = False
    attention_output_bits: int = 16
    graph_modules: frozenset[GraphModule] = frozenset()

    @functools.cached_property
    def alike(self) -> Microbatch:
        return replace(self, seq_length=0)

    @property
    def whole_length(self) -> int:
        """Tokens of a sequence on all context-parallel ranks."""
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
        return self.element_bytes * self.local_tokens * self.hidden


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter tensor on one rank.

    Args:
        elements: number of elements.
        is_whole: every tensor-parallel rank holds all of it. Under sequence parallelism its
            gradient is then a partial sum, which is reduced over the group.
        tied: name of a parameter that several blocks share; "" if it is not shared.
        is_expert: it belongs to an expert. With expert parallelism it has fewer replicas than
            other parameters.
        in_fp8: products read fp8 copies of it.
        is_frozen: it is not trained: it has no gradient and no optimizer states.
    """

    elements: int
    is_whole: bool = False
    tied: str = ""
    is_expert: bool = False
    in_fp8: bool = False
    is_frozen: bool = False


class Block(Protocol):
    """A hashable part of a model, described by its forward pass alone.

    Its parameters are an FSDP unit and a gradient bucket of their own if `is_unit`. Parameters of
    other blocks belong to the root unit.

    If the parameters of a microbatch's model are frozen, a block may have an attribute
    `input_has_gradient`. If it is false, no earlier parameter is trained, and the backward pass
    ends inside the block.
    """

    def __hash__(self) -> int:
        """Equal blocks share one recording."""

    @property
    def is_unit(self) -> bool:
        """Whether its parameters are sharded, gathered and reduced as a unit."""

    def forward(self, tape: Tape, x: Tensor) -> Tensor | None:
        """Record the forward pass: from the output of the previous block to its own output."""


@dataclass(slots=True, eq=False)
class Region:
    """Nodes of a tape that a recompute policy can name.

    Args:
        name: name in recompute policies; several regions of a block may share it.
        discarded_after: a later tensor. If given, the outputs of a recomputed region are freed as
            soon as this tensor is computed, and recomputed as soon as its gradient is
            (Megatron-LM's `CheckpointWithoutOutput`). Otherwise later nodes may save the outputs,
            and the region is recomputed just before its own backward pass.
    """

    name: str
    discarded_after: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A differentiable function on a tape.

    Args:
        name: name of the function.
        inputs: tensors that receive a gradient from its backward pass, if they need one.
        outputs: tensors whose gradients its backward pass reads.
        forward, backward: issue its ops.
        again: issues its ops when its region is recomputed.
        regions: regions that contain it, the outermost first.
        deferred_gradient_bytes: bytes of its output's gradient that its weight gradient reads, and
            that a split backward pass saves.
        has_backward: a trained parameter of its own or before it needs its backward pass.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    forward: Emit
    backward: Emit
    again: Emit
    regions: tuple[Region, ...]
    deferred_gradient_bytes: int
    has_backward: bool = True


@dataclass
class Tape:
    """Records the nodes of one block."""

    microbatch: Microbatch
    nodes: list[Node] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    fp8_copies: dict[Tensor, tuple[Tensor, ...]] = field(default_factory=dict)
    """The fp8 copies of tensors, which products read and save."""
    with_gradient: set[Tensor] = field(default_factory=set)
    """Tensors that need a gradient, if parameters are frozen; otherwise all do."""
    _trains: bool = False
    originals: set[Tensor] = field(default_factory=set)
    """Tensors that fp8 products save in 16 bits, and cast again."""
    _num_tensors: int = 0
    _regions: tuple[Region, ...] = ()
    _graph: object = None
    """The CUDA graph that captures nodes; None without one."""
    _layer_graph: object = field(default_factory=object)

    def tensor(
        self,
        name: str,
        rows: int,
        width: int,
        element_bytes: int | None = None,
        storage: int | None = None,
    ) -> Tensor:
        """Create a tensor, by default in the compute type, or a view of an existing storage."""
        number = self._num_tensors
        self._num_tensors += 1
        size = self.microbatch.element_bytes if element_bytes is None else element_bytes
        return Tensor(name, rows, width, size, number, number if storage is None else storage)

    # Blocks write nodes as one call, with the fields of a node that they need.
    def record(
        self,
        name: str,
        inputs: tuple[Tensor, ...],
        result: Outputs,
        forward: Steps,
        backward: Steps = (),
        *,
        again: Steps | None = None,
        parameters: tuple[Parameter, ...] = (),
        deferred_gradient_bytes: int = 0,
    ) -> Outputs:
        """Append a node, and return its outputs; the other arguments are the fields of `Node`.

        Args:
            result: its only output, or all of them.
            forward, backward: ops in issue order, each collective awaited at once; or a function
                that issues them.
            again: as forward, when its region is recomputed; None for `forward`.
        """
        again, graph = forward if again is None else again, self._graph
        outputs = (result,) if isinstance(result, Tensor) else result
        emits = _emit(forward, graph), _emit(backward, graph), _emit(again, graph)
        regions = self._regions
        if any(region.name in self.microbatch.saved_in_16_bits for region in regions):
            self.originals.update(outputs)
        node = Node(name, inputs, outputs, *emits, regions, deferred_gradient_bytes)
        if self.microbatch.is_frozen:
            trains = self._trains and bool(parameters)
            node = self._with_needed_backward(node, trains=trains)
            parameters = tuple(replace(x, is_frozen=not trains) for x in parameters)
        self.nodes.append(node)
        self.parameters.extend(parameters)
        return result

    def _with_needed_backward(self, node: Node, *, trains: bool) -> Node:
        passes_on = not self.with_gradient.isdisjoint(node.inputs)
        part = PartialBackward.of(node.backward, passes_on=passes_on, trains=trains)
        if passes_on or trains:
            self.with_gradient.update(node.outputs)
        return replace(
            node,
            forward=part.forward(node.forward),
            backward=part.backward(node.backward),
            again=part.forward(node.again),
            deferred_gradient_bytes=node.deferred_gradient_bytes if trains else 0,
            has_backward=passes_on or trains,
        )

    @contextmanager
    def training(self) -> Iterator[None]:
        """Train the parameters of the `with` block, even if the model's other ones are frozen."""
        outer, self._trains = self._trains, True
        yield
        self._trains = outer

    @contextmanager
    def capturing(self, module: GraphModule) -> Iterator[None]:
        """Capture the nodes of the `with` block in the layer's CUDA graph, if it has the module."""
        outer = self._graph
        if module in self.microbatch.graph_modules:
            self._graph = self._layer_graph
        yield
        self._graph = outer

    @contextmanager
    def new_nodes(self) -> Iterator[list[Node]]:
        """Append nodes to a separate list inside the `with` block, and yield the list."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    @contextmanager
    def region(self, name: str) -> Iterator[Region]:
        """Put the nodes of the `with` block into a region that a recompute policy can name."""
        outer, region = self._regions, Region(name)
        self._regions = (*outer, region)
        yield region
        self._regions = outer


def _emit(steps: Steps, graph: object) -> Emit:
    """Return what issues the steps of a node, which is a call of the framework."""

    def emit(order: IssueOrder) -> None:
        """Begin a call, and issue its ops."""
        order.begin_call(graph)
        if callable(steps):
            steps(order)
        else:
            order.issue(steps)

    return emit


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The recorded forward pass of a block.

    Args:
        nodes, parameters: in order.
        block_input: its input.
        block_output: its output; None after a loss.
        num_tensors: number of its tensors.
        without_gradient: tensors that need no gradient, because no parameter before them is
            trained.
    """

    nodes: tuple[Node, ...]
    parameters: tuple[Parameter, ...]
    block_input: Tensor
    block_output: Tensor | None
    num_tensors: int
    without_gradient: frozenset[Tensor] = frozenset()


@functools.lru_cache(maxsize=4096)
def record(block: Block, microbatch: Microbatch) -> Recording:
    """Record a block's forward pass."""
    tape = Tape(microbatch)
    block_input = tape.tensor("block input", microbatch.local_tokens, microbatch.hidden)
    if getattr(block, "input_has_gradient", True):
        tape.with_gradient.add(block_input)
    result = block.forward(tape, block_input)
    nodes, without_gradient = tuple(tape.nodes), frozenset[Tensor]()
    if microbatch.is_frozen:
        tensors = {block_input, *(x for node in nodes for x in (*node.inputs, *node.outputs))}
        without_gradient = frozenset(tensors - tape.with_gradient)
    # Functions of nodes refer to the tape. Without this cycle, Python frees a recording at once.
    tape.nodes.clear()
    return Recording(
        nodes, tuple(tape.parameters), block_input, result, tape._num_tensors, without_gradient
    )
