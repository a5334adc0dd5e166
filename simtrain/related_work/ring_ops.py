"""Ring self-attention as published: unfused, with the scores of all pairs saved.

Li et al. 2021, "Sequence Parallelism: Long Sequence Training from System Perspective" (arXiv
2105.13120), Section 3.1. Each of N ranks has L/N consecutive tokens of every sequence. Keys
circulate around a ring, until the rank has the scores of its queries with all L keys; after the
softmax, values circulate. Ops and their order are those of Colossal-AI's RingQK and RingAV
(nn/layer/parallel_sequence) in TransformerSelfAttentionRing. In the backward pass, the gradients of
all keys, and of all values, are all-reduced, and each rank uses its own part; keys and values
circulate again for the other two products.

`ring_forward` synchronizes the host with the GPU after each step, so nothing overlaps. All ranks
compute and save scores that a causal mask hides, so one slice per rank gives them equal work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from simtrain.base.mesh import Group
from simtrain.errors import InputError
from simtrain.workload.blocks.attention_core import AttentionCore, softmax_of_scores
from simtrain.workload.blocks.context import ContextSteps
from simtrain.workload.blocks.elementwise import MASK_BYTES
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.work import CollectiveKind

_BACK = Phase.INPUT_GRADIENT


def score_around_ring(steps: object) -> Tensor:
    """Record ring self-attention on the tape of a layer.

    Raises:
        InputError: queries share keys (E508).
    """
    assert isinstance(steps, ContextSteps), "steps of a layer's attention"
    core, keys, (*query_key, value) = steps.core, steps.context.keys, steps.inputs
    if core.groups != core.heads:
        message = "ring self-attention needs as many key heads as query heads"
        fix = "set parallelism.context_communication to p2p"
        raise InputError.of("E508", message, fix=fix)
    return ring_self_attention(core, keys, tuple(query_key), value, drops_out=steps.drops_out)


def ring_self_attention(
    core: AttentionCore,
    group: Group,
    query_key: tuple[Tensor, ...],
    value: Tensor,
    *,
    drops_out: bool,
) -> Tensor:
    """Record ring self-attention.

    Args:
        core: the rank's heads, with as many key heads as query heads.
        group: the ranks of the ring.
        query_key, value: queries and keys in one tensor or in two, and values.
        drops_out: dropout on the softmax.

    Returns:
        The output of the rank's tokens.
    """
    tape, ring = core.tape, _Ring(core, group)
    sizes = {"query": core.heads * core.head_size, "key": core.groups * core.head_size}
    query, key = (tape.tensor(f"{name} by head", value.rows, size) for name, size in sizes.items())
    copies = [ring.copy_by_head(x) for x in (query, key)]
    tape.record("queries and keys by head", query_key, (query, key), copies)

    scores = ring.scores("scores")
    forward, backward = [*ring.score(query, key)], [*ring.score_gradients(query, key)]
    tape.record("ring QKᵀ", (query, key), (scores,), forward, backward)

    # `ScaledMaskedSoftmax` of Megatron-LM: the causal kernel needs as many queries as keys.
    size, mask_bytes = scores.num_bytes, scores.rows // core.heads * scores.width * MASK_BYTES
    read_bytes = size + mask_bytes
    probabilities = softmax_of_scores(core, scores, read_bytes, 2 * size, drops_out=drops_out)

    values = tape.tensor("value by head", value.rows, core.groups * core.value_size)
    tape.record("values by head", (value,), (values,), [ring.copy_by_head(values)])
    output = core.output()
    forward = [*ring.weigh(probabilities, values)]
    backward = [*ring.weigh_gradients(probabilities, values)]
    tape.record("ring attention over V", (probabilities, values), (output,), forward, backward)
    return output


@dataclass(frozen=True, slots=True)
class _Ring:
    """The two functions that circulate blocks, each with its backward pass.

    Args:
        core, group: as in `ring_self_attention`.
    """

    core: AttentionCore
    group: Group

    @property
    def length(self) -> int:
        return self.core.seq_length

    @property
    def whole_length(self) -> int:
        return self.length * self.group.num_ranks

    @property
    def part_bytes(self) -> int:
        return self.scores_bytes // self.group.num_ranks

    @property
    def scores_bytes(self) -> int:
        batch = self.core.tape.microbatch
        rows = batch.sequences * self.core.heads * self.length
        return rows * self.whole_length * batch.element_bytes

    @property
    def inputs_bytes(self) -> int:
        """Bytes of the output of the QKV product, of which queries, keys and values are views.

        They exist until the forward pass of attention ends.
        """
        return self.core.query_bytes + self.core.key_bytes + self.core.value_bytes

    def scores(self, name: str) -> Tensor:
        """Create a tensor of scores: this rank's queries, all keys."""
        batch = self.core.tape.microbatch
        rows = batch.sequences * self.core.heads * self.length
        return self.core.tape.tensor(name, rows, self.whole_length)

    def copy_by_head(self, y: Tensor) -> Op:
        """Return the kernel that copies one of the views head by head; its gradient is a view."""
        held_bytes = self.inputs_bytes + y.num_bytes
        return elementwise(y.name, y.num_bytes, y.num_bytes, saves=(y,), holds_bytes=held_bytes)

    def score(self, query: Tensor, key: Tensor) -> Iterator[Op]:
        """Multiply queries and a block of keys, and copy the product into the scores; pass on."""
        part, size, saves = self.part_bytes, self.scores_bytes, (query, key)
        blocks = 2 * key.num_bytes
        held_bytes = self.inputs_bytes + query.num_bytes + key.num_bytes + blocks + size + part
        sizes = self.length, self.length, self.core.head_size

        def step() -> Iterator[Op]:
            """Return the kernels of one block."""
            yield self.core.product("QKᵀ", sizes, Phase.FORWARD)
            yield elementwise("scores of a block", part, part)

        for op in self._around("keys", key.num_bytes, step, Phase.FORWARD):
            yield op.replace(saves=saves, holds_bytes=held_bytes)
        held_bytes -= blocks + part
        yield elementwise("scores scaling", size, size, saves=saves, holds_bytes=held_bytes)

    def score_gradients(self, query: Tensor, key: Tensor) -> Iterator[Op]:
        """Compute the gradients of all keys, whose sum is this rank's, and of the queries."""
        size, all_keys = self.scores_bytes, self.group.num_ranks * key.num_bytes
        all_values = self.group.num_ranks * self.core.value_bytes
        sizes = self.length, self.core.head_size, self.length

        def step() -> Iterator[Op]:
            """Return the kernels of one block."""
            yield self.core.product("QKᵀ query gradient", sizes, _BACK)
            yield self._add("query gradient", query.num_bytes)

        def every_op() -> Iterator[Op]:
            """Return all kernels after the scaling."""
            yield from self._whole_gradient("key", self.core.head_size, key.num_bytes)
            yield elementwise("query gradient zero", 0, query.num_bytes, _BACK)
            yield from self._around("keys", key.num_bytes, step, _BACK)
            yield elementwise("query gradient mean", query.num_bytes, query.num_bytes, _BACK)

        scaling = size, size, _BACK
        # Gradients of all values exist until those of queries, keys and values are joined.
        yield elementwise("scores scaling gradient", *scaling, holds_bytes=2 * size + all_values)
        held_bytes = size + all_values + all_keys + 2 * query.num_bytes + 2 * key.num_bytes
        yield from _reading(every_op(), (query, key), held_bytes)

    def weigh(self, probabilities: Tensor, values: Tensor) -> Iterator[Op]:
        """Add up the products of probabilities and each block of values; merge the heads."""
        output, block = self.core.output_bytes, values.num_bytes
        saves = probabilities, values
        # The scores exist until the forward pass of attention ends, as does the sum.
        held_bytes = self.inputs_bytes + self.scores_bytes + 2 * block + 2 * output
        held_bytes += probabilities.num_bytes + values.num_bytes
        sizes = self.length, self.core.value_size, self.length

        def step() -> Iterator[Op]:
            """Return the kernels of one block."""
            yield self.core.product("attention over V", sizes, Phase.FORWARD)
            yield elementwise("output sum", 2 * output, output)

        yield elementwise("output zero", 0, output, saves=saves, holds_bytes=held_bytes)
        for op in self._around("values", block, step, Phase.FORWARD):
            yield op.replace(saves=saves, holds_bytes=held_bytes)
        yield elementwise("merge heads", output, output, saves=saves, holds_bytes=held_bytes)

    def weigh_gradients(self, probabilities: Tensor, values: Tensor) -> Iterator[Op]:
        """Compute the gradients of all values, whose sum is this rank's, and of the scores."""
        part, size = self.part_bytes, self.scores_bytes
        sizes = self.length, self.length, self.core.value_size

        def step() -> Iterator[Op]:
            """Return the kernels of one block."""
            yield self.core.product("attention over V scores gradient", sizes, _BACK)
            yield self._add("scores gradient", part)

        def every_op() -> Iterator[Op]:
            """Return all kernels."""
            yield from self._whole_gradient("value", self.core.value_size, values.num_bytes)
            yield elementwise("scores gradient zero", 0, size, _BACK)
            yield from self._around("values", values.num_bytes, step, _BACK)

        held_bytes = self.core.output_bytes + self.group.num_ranks * values.num_bytes + size + part
        yield from _reading(every_op(), (probabilities, values), held_bytes + 2 * values.num_bytes)

    def _around(
        self, name: str, block: int, step: Callable[[], Iterable[Op]], phase: Phase
    ) -> Iterator[Op]:
        """Yield the kernels of each block; between them, blocks move on, and the host waits."""
        send = collective(f"{name} to next", CollectiveKind.SEND, block, self.group, phase)
        yield from step()
        for _ in range(self.group.num_ranks - 1):
            yield send.replace(informs_host=True)
            first, *others = step()
            yield first.replace(needs_host=True)
            yield from others

    def _whole_gradient(self, name: str, channels: int, block: int) -> Iterator[Op]:
        """Compute the gradients of all blocks, all-reduce them, and divide this rank's by N."""
        sizes = self.whole_length, channels, self.length
        yield self.core.product(f"{name} gradient", sizes, _BACK)
        whole = CollectiveKind.ALL_REDUCE, self.group.num_ranks * block, self.group
        yield collective(f"{name} gradients sum", *whole, _BACK)
        yield elementwise(f"{name} gradient mean", block, block, _BACK)

    @staticmethod
    def _add(name: str, num_bytes: int) -> Op:
        return elementwise(f"{name} sum", 2 * num_bytes, num_bytes, _BACK)


def _reading(ops: Iterable[Op], saved: tuple[Tensor, ...], held_bytes: int) -> Iterator[Op]:
    """Yield backward ops that hold these bytes; autograd frees saved tensors after the last one."""
    *before, last = ops
    for op in before:
        yield op.replace(holds_bytes=held_bytes)
    saved_bytes = sum(tensor.num_bytes for tensor in saved)
    yield last.replace(reads=saved, holds_bytes=held_bytes + saved_bytes)
