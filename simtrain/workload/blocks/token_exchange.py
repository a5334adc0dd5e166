"""Exchanges that send a token once to each node and rank of its experts, as nodes of a tape.

Sources: DeepEP's normal kernels (deepseek-ai/DeepEP) in Megatron-LM's `_DeepepManager` and
`_HybridEPManager` (core/transformer/moe/token_dispatcher.py, fused_a2a.py). A dispatch sends
tokens with the indices and probabilities of their experts; a combination adds up outputs on their
way back. The backward pass of each is the other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from simtrain.base.mesh import Group
from simtrain.workload.blocks.expert_mlp import ExpertMlp
from simtrain.workload.blocks.router import INDEX_BYTES, Routing
from simtrain.workload.fp8 import Fp8Recipe, recipe_of
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import ExpertGroups, Microbatch, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, KernelFamily, TokenExchange

_BOOL_BYTES = 1


@dataclass(frozen=True, slots=True)
class TokenPath:
    """The way of a rank's tokens to their experts.

    Args:
        dispatcher: name of the dispatcher.
        group: all ranks of experts.
        rows: tokens that the simulated rank receives, each once.
        sent_rows: tokens that it sends to nodes, its own included, each once for each node.
        top_k: experts of a token.
        fp8: the recipe of tokens that travel in fp8; None for the compute type.
    """

    dispatcher: str
    group: Group
    rows: int
    sent_rows: int
    top_k: int
    fp8: Fp8Recipe | None

    @classmethod
    def of(cls, batch: Microbatch, mlp: ExpertMlp, groups: ExpertGroups, x: Tensor) -> Self:
        """Return the way of the tokens `x`.

        All ranks that share an expert receive its tokens. The simulated rank receives and forwards
        `imbalance` times the mean.
        """
        group = groups.parallel if groups.tensor.num_ranks == 1 else groups.both
        shares, tokens = groups.tensor.num_ranks, mlp.imbalance * x.rows
        # An expert that several nodes share is one place, which all of these nodes reach.
        nodes_of_expert = max(1, min(group.num_nodes, shares // group.ranks_per_node))
        nodes = mlp.reached(group.num_nodes // nodes_of_expert) * nodes_of_expert
        return cls(
            mlp.dispatch,
            group,
            round(tokens * mlp.reached(groups.parallel.num_ranks) * shares),
            round(tokens * nodes),
            mlp.top_k,
            recipe_of(batch) if mlp.fp8_dispatch else None,
        )

    def choose(self, tape: Tape, routing: Routing, *, informs_host: bool) -> Tensor:
        """Record the choice of the ranks of each token, and the exchange of their counts.

        Returns:
            The probabilities of each token's experts.
        """
        dense, rows = routing.probabilities, routing.probabilities.rows
        chosen = tape.tensor("dispatched choice", rows, self.top_k, FP32_BYTES)
        indices = tape.tensor("dispatched experts", rows, self.top_k, INDEX_BYTES)
        ranks_bytes, counts_bytes = _BOOL_BYTES * rows * self.group.num_ranks, 4 * dense.width
        written = chosen.num_bytes + indices.num_bytes
        counts = CollectiveKind.ALL_TO_ALL, counts_bytes, self.group
        forward = (
            elementwise("dispatch choice", dense.num_bytes, written, saves=(indices,)),
            elementwise("dispatch layout", indices.num_bytes, ranks_bytes),
            collective("dispatch notify", *counts).replace(informs_host=informs_host),
        )
        reads = (indices, *routing.saved)
        backward = gradient("dispatch choice", chosen.num_bytes, dense.num_bytes, reads=reads)
        tape.record("dispatch choice", (dense,), (chosen,), forward, (backward,))
        return chosen

    def gather_map(
        self, tape: Tape, routing: Routing, experts: int, *, informs_host: bool
    ) -> tuple[Tensor, ...]:
        """Record the gather of the map of all tokens to experts, and the kernel that reads it.

        Returns:
            The map of the received tokens to the rank's `experts`, which is saved.
        """
        size = routing.token_map.num_bytes * self.group.num_ranks
        received = tape.tensor("received map", self.rows, experts, _BOOL_BYTES)
        scan = elementwise("dispatch scan", size, received.num_bytes, saves=(received,))
        forward = (
            collective("routing map gather", CollectiveKind.ALL_GATHER, size, self.group),
            scan.replace(informs_host=informs_host),
        )
        tape.record("routing map", (), (), forward)
        return (received,)

    def cast(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the cast of the tokens to fp8, if they travel in it."""
        if self.fp8 is None:
            return x
        y = tape.tensor("cast tokens", x.rows, x.width)
        size, family = self.fp8.copy_bytes(x.elements), KernelFamily.CAST
        forward = elementwise("dispatch to fp8", x.num_bytes, size, family=family)
        tape.record(forward.name, (x,), (y,), (forward,))
        return y

    def send(
        self,
        tape: Tape,
        x: Tensor,
        probabilities: Tensor,
        reads: tuple[Tensor, ...],
        *,
        needs_host: bool,
    ) -> tuple[Tensor, Tensor]:
        """Record the dispatch; return the received tokens and the probabilities of their experts.

        Args:
            tape: the tape.
            x: the rank's tokens.
            probabilities: of their experts.
            reads: saved tensors that the gradient of the probabilities reads.
            needs_host: as in `Op`.
        """
        y = tape.tensor("dispatched tokens", self.rows, x.width)
        received = tape.tensor("dispatched probabilities", self.rows, self.top_k, FP32_BYTES)
        held_bytes, of_choice = x.num_bytes + y.num_bytes, FP32_BYTES * self.top_k
        out_bytes = self._travelling_bytes(x) + of_choice + INDEX_BYTES * self.top_k
        forward = self._exchange("dispatch", out_bytes, held_bytes)
        phase, back_bytes = Phase.INPUT_GRADIENT, x.width * x.element_bytes + of_choice
        backward = self._exchange("dispatch gradient", back_bytes, held_bytes, phase)
        tape.record(
            "dispatch",
            (x, probabilities),
            (y, received),
            (forward.replace(needs_host=needs_host),),
            (backward.replace(reads=reads),),
        )
        return y, received

    def map_received(
        self, tape: Tape, probabilities: Tensor, experts: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Record the map of received tokens to the rank's `experts`, from their indices.

        Returns:
            Probabilities of the experts, and the map, which is saved.
        """
        dense = tape.tensor("received probabilities", self.rows, experts, FP32_BYTES)
        received = tape.tensor("received map", self.rows, experts, _BOOL_BYTES)
        read = probabilities.num_bytes + INDEX_BYTES * self.rows * self.top_k
        written, name = dense.num_bytes + received.num_bytes, "received map"
        forward = elementwise(name, read, written, saves=(received,))
        backward = gradient(name, dense.num_bytes, probabilities.num_bytes, reads=(received,))
        tape.record(name, (probabilities,), (dense,), (forward,), (backward,))
        return dense, (received,)

    def send_back(self, tape: Tape, x: Tensor, rows: int) -> Tensor:
        """Record the combination of the outputs `x` to the sums of the rank's `rows` tokens."""
        y = tape.tensor("combination output", rows, x.width)
        held_bytes, phase = x.num_bytes + y.num_bytes, Phase.INPUT_GRADIENT
        forward = self._exchange("combination", x.width * x.element_bytes, held_bytes)
        out_bytes, name = self._travelling_bytes(x), "combination gradient"
        backward = [self._exchange(name, out_bytes, held_bytes, phase)]
        if self.fp8:
            size = y.num_bytes, self.fp8.copy_bytes(y.elements)
            cast = elementwise(f"{name} to fp8", *size, phase, family=KernelFamily.CAST)
            backward.insert(0, cast)
        tape.record("combination", (x,), (y,), (forward,), backward)
        return y

    def _travelling_bytes(self, x: Tensor) -> int:
        return self.fp8.copy_bytes(x.width) if self.fp8 else x.width * x.element_bytes

    def _exchange(
        self, name: str, row_bytes: int, held_bytes: int, phase: Phase = Phase.FORWARD
    ) -> Op:
        received_bytes, sent_bytes = self.rows * row_bytes, self.sent_rows * row_bytes
        work = TokenExchange(
            CollectiveKind.ALL_TO_ALL,
            *(received_bytes, self.group, self.dispatcher, received_bytes, sent_bytes),
            self.rows,
        )
        return Op(name, work, phase, holds_bytes=held_bytes)
