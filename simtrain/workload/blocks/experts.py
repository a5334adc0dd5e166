"""Mixture of experts instead of an MLP: router, dispatch, grouped products, combination.

Source: Megatron-LM's `MoELayer` with `TopKRouter`, `TEGroupedMLP`, `SharedExpertMLP` and its token
dispatchers (core/transformer/moe), named in `scenario.dispatchers`. Tokens are dispatched with
their probabilities, and the activation multiplies by the probability.

Experts have another mesh (`Microbatch.experts`). The simulated rank is the one with the most
tokens: `imbalance` times the average, spread evenly over its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simtrain.base.values import replace
from simtrain.scenario.dispatchers import DISPATCHERS
from simtrain.scenario.model import CANONICAL_PARTS
from simtrain.workload.blocks.adapter import adapted_column, adapted_row, add_adapters
from simtrain.workload.blocks.elementwise import activation
from simtrain.workload.blocks.grouped import (
    ExpertLoad,
    fused_mlp,
    grouped_linear,
    pad_rows,
    weighted_activation,
)
from simtrain.workload.blocks.linear import all_gather, all_to_all, reduce_scatter
from simtrain.workload.blocks.router import INDEX_BYTES, ExpertMlp, Routing, TokenPath, route
from simtrain.workload.fp8 import (
    NarrowCopy,
    columns,
    fp8_tensors,
    narrow_copy,
    recasts,
    recipe_or_none,
)
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Ops, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import ExpertGroups, Node, Parameter, Tape
from simtrain.workload.work import CollectiveKind

# The steps of a layer's experts that a dispatcher puts in order, as nodes of a tape.

MOE_ACT = "moe_act"
"""Name of a region: the activation of routed experts."""
Routed = tuple[Tensor, Tensor]
"""Tokens, and the probabilities of their experts."""
Beside = Callable[..., tuple[Tensor, ...]]
"""Records kernels that overlap an exchange, from what the previous one returned."""


class ExpertLayer:
    """Records the steps of a mixture of experts on the tape.

    Args:
        tape, mlp, groups: of the layer.
        x, routing: the rank's tokens, and the experts of each.
        beside: kernels that overlap the first exchange, and the second.
    """

    def __init__(
        self,
        tape: Tape,
        mlp: ExpertMlp,
        groups: ExpertGroups,
        x: Tensor,
        routing: Routing,
        beside: tuple[Beside, ...] = (),
    ) -> None:
        self.tape, self.mlp, self.groups, self.x, self.routing = tape, mlp, groups, x, routing
        self.has_sizes = mlp.section.capacity_factor is not None
        self.load = mlp.load(x.rows, groups)
        self.outputs_beside: tuple[Tensor, ...] = ()
        self._path = TokenPath.of(tape.microbatch, mlp, groups, x)
        fp8 = recipe_or_none(tape.microbatch)
        # Kernels that permute fp8 rows write each expert's rows where its product reads them.
        self._arrives_padded = fp8 and (self._path.fp8 or DISPATCHERS[mlp.dispatch].pads_rows)
        if fp8 and self._arrives_padded:
            self.load = self.load.padded(fp8.row_multiple, has_capacity=self.has_sizes)
        self._beside, self._chances = [*beside], routing.probabilities
        self._saved: tuple[Tensor, ...] = routing.saved
        """Saved tensors that the next gradient of probabilities reads."""
        self._map: tuple[Tensor, ...] = ()
        self._permuted: tuple[Tensor, int] | None = None
        """The order of the rows that were permuted last, and the number of their tokens."""

    def record(self) -> Tensor:
        """Record the way of tokens to their experts and back; return the output for each token.

        The host waits for the counts of tokens, unless a capacity fixes them: of all-to-alls
        before it launches the first one ("before_ep_alltoall"), of gathered tokens before it
        permutes them, of DeepEP and HybridEP before it launches the dispatch, whose backward pass
        knows them (Megatron-LM's `_DeepepManager`, `_HybridEPManager`).
        """
        tape, path, sent = self.tape, self._path, (self.x, self.routing.probabilities)
        informs, experts = not self.has_sizes, self.load.experts
        match self.mlp.dispatch:
            case "all_to_all":
                copies = self._permute(sent, self.mlp.sent(self.x.rows), self._token_counts())
                y = self.experts(self.all_to_all(copies))
                return self.unpermute(self.all_to_all_back(y))
            case "all_gather":
                both = self.groups.both
                everything = all_gather(tape, sent[0], both, "token gather")
                routed = everything, all_gather(tape, sent[1], both, "probability gather")
                y = self.experts(self.permute(routed, counts_rows=True))
                return self.reduce(self.unpermute(y))
            case "deepep":
                with tape.capturing("moe_preprocess"):
                    self._chances = path.choose(tape, self.routing, informs_host=informs)
                self._saved = ()
                tokens, chances = self.send_once()
                chances, self._saved = path.map_received(tape, chances, experts)
            case "hybridep":
                with tape.capturing("moe_preprocess"):
                    self._map = path.gather_map(tape, self.routing, experts, informs_host=informs)
                tokens, chances = self.send_once()
        return self.return_once(self.unpermute(self.experts(self.permute((tokens, chances)))))

    def _token_counts(self) -> Ops:
        """Return the ops that count tokens for the host, unless a capacity fixes the numbers."""
        if self.has_sizes:
            return ()
        token_map, ranks = self.routing.token_map, self.groups.both
        counts_bytes = INDEX_BYTES * token_map.width * ranks.num_ranks
        if ranks.num_ranks == 1:
            return (_informing(elementwise("token counts", token_map.num_bytes, counts_bytes)),)
        gather = collective("token counts", CollectiveKind.ALL_GATHER, counts_bytes, ranks)
        return (_informing(gather),)

    def all_to_all(self, routed: Routed) -> Routed:
        tape, tensor, group = self.tape, self.groups.tensor, self.groups.parallel
        rows, waits = self.load.rows // tensor.num_ranks, not self.has_sizes

        def exchange() -> Routed:
            """Record both exchanges."""
            tokens, chances = routed
            return (
                all_to_all(tape, tokens, group, "dispatch", rows, needs_host=waits),
                all_to_all(tape, chances, group, "probability dispatch", rows),
            )

        tokens, chances = self._exchange(exchange, "dispatch")
        if tensor.num_ranks > 1:
            tokens = all_gather(tape, tokens, tensor, "expert gather")
            chances = all_gather(tape, chances, tensor, "expert probability gather")
        if self.load.experts > 1:
            # Without an exchange, the host waits here ("before_finish").
            alone = waits and group.num_ranks == 1
            tokens, chances = sort_chunks(
                tape, (tokens, chances), "sort by expert", needs_host=alone
            )
        return tokens, chances

    def all_to_all_back(self, y: Tensor) -> Tensor:
        tape, tensor, group = self.tape, self.groups.tensor, self.groups.parallel
        if self.load.experts > 1:
            (y,) = sort_chunks(tape, (y,), "sort by rank")
        if tensor.num_ranks > 1:
            size = y.element_bytes
            y = cast(tape, y, self.routing.probabilities.element_bytes)
            y = cast(tape, reduce_scatter(tape, y, tensor, "expert reduce-scatter"), size)
        rows = self.mlp.sent(self.x.rows)
        (y,) = self._exchange(
            lambda: (all_to_all(tape, y, group, "combination", rows),), "combination"
        )
        return y

    def reduce(self, y: Tensor) -> Tensor:
        tape, both, size = self.tape, self.groups.both, y.element_bytes
        if both.num_ranks == 1:
            return y
        y = cast(tape, y, self.routing.probabilities.element_bytes)
        return cast(tape, reduce_scatter(tape, y, both, "token reduce-scatter"), size)

    def send_once(self) -> Routed:
        tape, path, waits = self.tape, self._path, not self.has_sizes
        x, chances = path.cast(tape, self.x), self._chances
        reads, self._saved = self._saved, self._map
        tokens, received = self._exchange(
            lambda: path.send(tape, x, chances, reads, needs_host=waits), "dispatch"
        )
        return tokens, received

    def return_once(self, y: Tensor) -> Tensor:
        tape, rows = self.tape, self.x.rows
        (y,) = self._exchange(lambda: (self._path.send_back(tape, y, rows),), "combination")
        return y

    def permute(self, received: Routed, *, counts_rows: bool = False) -> Routed:
        before: Ops = ()
        if counts_rows:
            size = received[0].rows * self.load.experts
            counts = elementwise("token counts", size, INDEX_BYTES * self.load.experts)
            before = (_informing(counts),)
        return self._permute(received, self.load.rows, before, needs_host=counts_rows)

    def unpermute(self, y: Tensor) -> Tensor:
        assert self._permuted is not None, "rows are permuted before they are added up"
        return unpermute(self.tape, y, *self._permuted, gradient_bytes=self._row_bytes)

    def experts(self, routed: Routed) -> Tensor:
        tape, mlp, load, rows = self.tape, self.mlp, self.load, self.load.rows
        if (fp8 := recipe_or_none(tape.microbatch)) and not self._arrives_padded:
            load = load.padded(fp8.row_multiple, has_capacity=self.has_sizes)
        tokens, chances = routed
        tokens = pad_rows(tape, tokens, load.rows, "experts padding")
        chances = pad_rows(tape, chances, load.rows, "experts probability padding")
        if self._path.fp8:
            _second_copy(tape, tokens)
        width = (1 + mlp.gated) * mlp.section.ffn_hidden_size // self.groups.tensor.num_ranks
        if _fuses_mlp(tape) and not mlp.has_adapters:
            names = "experts up", f"experts {mlp.kernel}", "experts down"
            y = fused_mlp(tape, tokens, chances, width, load, names, gated=mlp.gated)
            return pad_rows(tape, y, rows, "experts padding dropped")
        halves = dict.fromkeys(FC1_PARTS[: 1 + mlp.gated], width // (1 + mlp.gated))
        y = self._linear(tokens, halves, load, "experts up", "linear_fc1")
        narrow, name = _narrow_input(tape, y), f"experts {mlp.kernel}"
        with tape.region(MOE_ACT) as region:
            y = weighted_activation(tape, y, chances, name, gated=mlp.gated, narrow=narrow)
        of_down = {"linear_fc2": tokens.width}, load, "experts down", "linear_fc2"
        y = region.discarded_after = self._linear(y, *of_down)
        return pad_rows(tape, y, rows, "experts padding dropped")

    def _linear(
        self, x: Tensor, parts: dict[str, int], load: ExpertLoad, name: str, module: str
    ) -> Tensor:
        """Record a product of the experts, with the adapter that they share."""
        tape, lora, shared = self.tape, self.mlp.lora, replace(load, experts=1)
        arrives_cast = self._path.fp8 is not None and module == "linear_fc2"
        outputs = sum(parts.values())
        y = grouped_linear(tape, x, outputs, load, name, has_cast_gradient=arrives_cast)
        if lora is None or not lora.adapts(module):
            return y

        def product(x: Tensor, outputs: int, title: str) -> Tensor:
            return grouped_linear(tape, x, outputs, shared, title, in_fp8=False)

        return add_adapters(tape, x, y, parts, name, lora, module, product, product)

    @property
    def _row_bytes(self) -> int | None:
        fp8 = self._path.fp8
        return fp8.copy_bytes(self.x.width) if fp8 else None

    def _permute(
        self, routed: Routed, rows: int, before: Ops, *, needs_host: bool = False
    ) -> Routed:
        tokens, chances = routed
        result, order = permute(
            self.tape,
            *(tokens, chances, self._saved, rows, before),
            row_bytes=self._row_bytes,
            needs_host=needs_host,
        )
        self._permuted = order, tokens.rows
        return result

    def _exchange(self, record: Record, name: str) -> tuple[Tensor, ...]:
        """Record an exchange, with the next kernels that overlap it, if there are any."""
        if not self._beside:
            return record()
        compute, before = self._beside.pop(0), self.outputs_beside
        label = f"{name} and shared expert"
        *exchanged, beside = overlap_exchange(self.tape, record, lambda: compute(*before), label)
        self.outputs_beside = (beside,)
        return tuple(exchanged)


def _fuses_mlp(tape: Tape) -> bool:
    """Whether the products of experts run what is between them (`fused_mlp`).

    Its kernels multiply mxfp8, and save the input of the activation in bf16.
    """
    batch = tape.microbatch
    recomputes = MOE_ACT in batch.saved_in_16_bits
    is_possible = batch.fp8_recipe == "mxfp8" and not (recomputes or batch.fp8_activation_inputs)
    return is_possible and batch.kernels.fused_grouped_mlp


def _narrow_input(tape: Tape, x: Tensor) -> NarrowCopy | None:
    """Record an fp8 copy of the activation's input, if recompute starts from one (DeepSeek-V3).

    Megatron-LM's recompute starts from the input itself. Without recompute the activation makes
    the copy.
    """
    batch = tape.microbatch
    starts_narrow = recasts(batch) and MOE_ACT in batch.saved_in_16_bits
    if not batch.fp8_activation_inputs or not starts_narrow:
        return None
    copy = narrow_copy(tape, x, 8)
    tape.record(copy.cast.name, (x,), copy.tensors, (copy.cast,))
    return copy


def _informing(op: Op) -> Op:
    return op.replace(informs_host=True)


def _second_copy(tape: Tape, tokens: Tensor) -> None:
    """Record the copy by columns of tokens that arrived in fp8, by rows, unless made later."""
    name, batch = "dispatched tokens", tape.microbatch
    tape.fp8_copies[tokens] = fp8_tensors(tape, f"{name} in fp8", tokens.rows, tokens.width)
    if not recasts(batch):
        op = columns(batch, name, tokens.elements, Phase.FORWARD)
        tape.record(op.name, (), (), (op,))


# Collectives that overlap independent kernels, forward and backward.


Record = Callable[[], tuple[Tensor, ...]]


def overlap_exchange(
    tape: Tape, exchange: Record, compute: Record, name: str
) -> tuple[Tensor, ...]:
    """Record an exchange and kernels that do not depend on it, as one node; return both outputs.

    In each direction, the collectives are launched, the kernels run, and the next op waits for the
    collectives. They overlap if the overlap policy makes the collectives asynchronous. `exchange`
    records only collectives, with one input each, and `compute` a chain of nodes.
    """
    with tape.new_nodes() as exchanges:
        exchanged = exchange()
    with tape.new_nodes() as chain:
        computed = compute()

    def run(order: IssueOrder, passes: tuple[Iterable[Node], Iterable[Node]], half: str) -> None:
        """Issue half a pass: launch the exchange, compute, then wait for it."""
        with order.deferring_waits() as handles:
            for node in passes[0]:
                getattr(node, half)(order)
        for node in passes[1]:
            getattr(node, half)(order)
        for handle in handles:
            order.wait(handle)

    tape.record(
        name,
        tuple(tensor for node in (*exchanges, chain[0]) for tensor in node.inputs),
        (*exchanged, *computed),
        lambda order: run(order, (exchanges, chain), "forward"),
        lambda order: run(order, (exchanges[::-1], chain[::-1]), "backward"),
        deferred_gradient_bytes=sum(node.deferred_gradient_bytes for node in chain),
    )
    return *exchanged, *computed


# Local steps of the dispatch of tokens to experts and back: permute, sort, cast.
#
# Source: Megatron-LM's `permute`, `unpermute` and `sort_chunks_by_idxs` (core/transformer/moe/
# moe_utils.py), each as one fused kernel.


def permute(
    tape: Tape,
    x: Tensor,
    probabilities: Tensor,
    saved: tuple[Tensor, ...],
    rows: int,
    before: Ops = (),
    *,
    row_bytes: int | None = None,
    needs_host: bool = False,
) -> tuple[Routed, Tensor]:
    """Copy each token once for each of its experts, sorted by expert; return copies and order.

    Args:
        saved: what the gradient of the permuted probabilities reads (`masked_select` of the
            probabilities by the token map).
        rows: number of copies.
        before: ops that find the number of copies.
        row_bytes: bytes of a row, if it is not in the type of `x` (fp8).
        needs_host: the host needs this number before it launches the kernels.
    """
    y = tape.tensor("permuted tokens", rows, x.width)
    weights = tape.tensor("permuted probabilities", rows, 1, probabilities.element_bytes)
    order_of = tape.tensor("token order", rows, 1, INDEX_BYTES)

    num_bytes, name = probabilities.num_bytes, "permute probabilities"
    moved_bytes = y.num_bytes if row_bytes is None else rows * row_bytes
    copies = elementwise("permute", moved_bytes, moved_bytes, saves=(order_of,))
    forward: Ops = (
        *before,
        copies.replace(needs_host=needs_host),
        elementwise(name, num_bytes, weights.num_bytes),
    )
    backward = (
        gradient(name, weights.num_bytes, num_bytes, reads=saved),
        gradient("permute", y.num_bytes, x.num_bytes, reads=(order_of,)),
    )
    tape.record("permute", (x, probabilities), (y, weights), forward, backward)
    return (y, weights), order_of


def unpermute(
    tape: Tape, x: Tensor, order_of: Tensor, rows: int, *, gradient_bytes: int | None = None
) -> Tensor:
    """Record the sum, for each token, of its experts' outputs, already weighted.

    `gradient_bytes` are the bytes of a row of the gradient, if they are not those of `x` (fp8).
    """
    y = tape.tensor("combined tokens", rows, x.width)
    forward = elementwise("unpermute", x.num_bytes, y.num_bytes, saves=(order_of,))
    moved_bytes = x.num_bytes if gradient_bytes is None else x.rows * gradient_bytes
    backward = gradient("unpermute", moved_bytes, moved_bytes, reads=(order_of,))
    return tape.record("unpermute", (x,), y, (forward,), (backward,))


def sort_chunks(
    tape: Tape, tensors: tuple[Tensor, ...], name: str, *, needs_host: bool = False
) -> tuple[Tensor, ...]:
    """Record a kernel that reorders rows by rank or by expert; return the reordered tensors.

    `needs_host` is as in `Op`, for the forward pass.
    """
    outputs = tuple(
        tape.tensor(f"{tensor.name} sorted", tensor.rows, tensor.width, tensor.element_bytes)
        for tensor in tensors
    )
    size = sum(tensor.num_bytes for tensor in tensors)
    forward = elementwise(name, size, size).replace(needs_host=needs_host)
    return tape.record(name, tensors, outputs, (forward,), (gradient(name, size, size),))


def cast(tape: Tape, x: Tensor, element_bytes: int) -> Tensor:
    """Record a cast to another type, unless `x` has this type."""
    if x.element_bytes == element_bytes:
        return x
    y = tape.tensor(f"{x.name} cast", x.rows, x.width, element_bytes)
    forward = elementwise(y.name, x.num_bytes, y.num_bytes)
    backward = gradient(y.name, y.num_bytes, x.num_bytes)
    return tape.record(y.name, (x,), y, (forward,), (backward,))


FC1_PARTS: tuple[str, ...] = CANONICAL_PARTS["linear_fc1"]
SHARED_EXPERTS = "shared_experts"
"""Name of a region: the shared expert."""


def experts(tape: Tape, x: Tensor, mlp: ExpertMlp) -> Tensor:
    """Record a mixture of experts, with the shared expert if there is one.

    Raises:
        ValueError: the microbatch has no expert groups.
    """
    groups = tape.microbatch.experts
    if groups is None:
        raise ValueError("experts need a scenario with model.experts")
    with tape.capturing("moe_router"):
        routing = route(tape, x, mlp.section)
    if not mlp.overlaps_shared:
        y = ExpertLayer(tape, mlp, groups, x, routing).record()
        return _add_shared(tape, mlp, x, y) if mlp.section.shared_ffn_hidden_size else y
    tensor = tape.microbatch.tensor
    whole = all_gather(tape, x, tensor, "shared expert gather")
    beside = _halves_of_shared(tape, mlp, whole)
    layer = ExpertLayer(tape, mlp, groups, x, routing, beside)
    y = layer.record()
    (shared,) = layer.outputs_beside
    shared = reduce_scatter(tape, shared, tensor, "shared expert reduce-scatter")
    return _sum(tape, _gate(tape, mlp, x, shared), y)


def _halves_of_shared(tape: Tape, mlp: ExpertMlp, whole: Tensor) -> tuple[Beside, ...]:
    """Return the two halves of the shared expert, which overlap the exchanges.

    Its collectives are exposed.
    """
    load = ExpertLoad(1, whole.rows, whole.rows, whole.rows)
    width = (1 + mlp.gated) * mlp.section.shared_ffn_hidden_size
    width //= tape.microbatch.tensor.num_ranks

    def begin() -> tuple[Tensor, ...]:
        y = grouped_linear(tape, whole, width, load, "shared expert up", is_expert=False)
        return (activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated),)

    def end(hidden: Tensor) -> tuple[Tensor, ...]:
        down = "shared expert down"
        return (grouped_linear(tape, hidden, whole.width, load, down, is_expert=False),)

    return begin, end


def _add_shared(tape: Tape, mlp: ExpertMlp, x: Tensor, routed: Tensor) -> Tensor:
    label, width = "shared expert", mlp.section.shared_ffn_hidden_size
    parts = dict.fromkeys(FC1_PARTS[: 1 + mlp.gated], width)
    of_up, of_down = (mlp.lora, "linear_fc1"), (mlp.lora, "linear_fc2")
    with tape.region(SHARED_EXPERTS), tape.capturing("moe_router"):
        y = adapted_column(tape, x, parts, "shared expert up", label, *of_up, bias=False)
        y = activation(tape, y, f"shared {mlp.kernel}", gated=mlp.gated)
        y = adapted_row(tape, y, "shared expert down", label, *of_down, bias=False)
        y = _gate(tape, mlp, x, y)
    return _sum(tape, y, routed)


def _gate(tape: Tape, mlp: ExpertMlp, x: Tensor, y: Tensor) -> Tensor:
    """Multiply `y` by a sigmoid of each token, if there is a gate."""
    if not mlp.section.shared_gate:
        return y
    input_bytes, size = x.num_bytes, y.num_bytes
    z = tape.tensor("gated shared expert", y.rows, y.width)
    gate = tape.tensor("shared gate", x.rows, 1)
    forward = (
        elementwise("shared gate", input_bytes, gate.num_bytes, saves=(x, gate)),
        elementwise("shared gate product", size, z.num_bytes, saves=(y,)),
    )
    name, sizes = "shared gate weight gradient", (input_bytes, x.width * x.element_bytes)
    backward = (
        gradient("shared gate product", input_bytes + size, size, reads=(y, gate)),
        gradient("shared gate", gate.num_bytes, input_bytes, reads=(gate,)),
        elementwise(name, *sizes, Phase.WEIGHT_GRADIENT, reads=(x,)),
    )
    weight = Parameter(x.width, is_whole=True)
    return tape.record("shared gate", (x, y), z, forward, backward, parameters=(weight,))


def _sum(tape: Tape, shared: Tensor, routed: Tensor) -> Tensor:
    y = tape.tensor("experts output", routed.rows, routed.width)
    op = elementwise("shared expert sum", 2 * y.num_bytes, y.num_bytes)
    return tape.record(op.name, (shared, routed), y, (op,))
