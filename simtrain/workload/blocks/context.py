"""Attention under context parallelism: several ranks divide each sequence.

The ranks exchange tokens for heads (Ulysses; Jacobs et al. 2023), keys and values around a ring
(ring self-attention; Li et al. 2021, Liu et al. 2023), or gather all keys and values (Dubey et al.
2024, Section 3.3.2). Order and ops are those of Transformer Engine (context_parallel.py of
dot_product_attention, version 2.10: AttnFuncWithCPAndKVP2P, AttnFuncWithCPAndKVAllGather,
AttnFuncWithCPAndQKVOA2A) for [s, b, h] tensors, as Megatron-LM calls it. It alternates steps
between two streams, to use multiprocessors that the end of a kernel leaves idle; here the steps run
one after another. For a ring of 8 A100s with 32 heads of 65,536 tokens, published times are 26.2 ms
forward and 94.3 ms forward and backward (zhuzilin/ring-flash-attention at commit 8996282, zigzag);
simulated times are 27.8 ms and 103.7 ms, with nothing fitted on them.

Recorded is the last rank of a group. In a ring, it attends to its own keys, and then with all its
queries to the first half of each block of keys. Other ranks attend to some blocks with half of
their queries and all keys, which is the same amount of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.mesh import Group
from simtrain.workload.issue import Handle, IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Tape
from simtrain.workload.work import FP32_BYTES, Collective, CollectiveKind, FusedAttention

_BACK = Phase.INPUT_GRADIENT
Parts = Sequence[tuple[str, int]]
"""Names and bytes of exchanged tensors."""


@dataclass(frozen=True, slots=True)
class AttentionShard:
    """A rank's shard of attention: its heads, and its tokens of each sequence.

    Args:
        heads: query heads of all sequences of a microbatch.
        groups: key heads and value heads of all sequences of a microbatch.
        head_size: channels of a query head or key head.
        value_size: channels of a value head or output head.
        seq_length: tokens of each sequence.
        element_bytes: of all tensors.
        speed: as in `FusedAttention`.
    """

    heads: int
    groups: int
    head_size: int
    value_size: int
    seq_length: int
    element_bytes: int
    speed: float = 1.0

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries."""
        return self.heads * self.seq_length * self.head_size * self.element_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.heads * self.seq_length * self.value_size * self.element_bytes

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys."""
        return self.groups * self.seq_length * self.head_size * self.element_bytes

    @property
    def value_bytes(self) -> int:
        """Bytes of the values."""
        return self.groups * self.seq_length * self.value_size * self.element_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of the log-sum-exp of each row of scores."""
        return FP32_BYTES * self.heads * self.seq_length

    def kernel(
        self, queries: int, keys: int, *, is_causal: bool, is_backward: bool
    ) -> FusedAttention:
        """Return the kernel for `queries` queries and `keys` keys of each head."""
        return FusedAttention(
            self.heads,
            queries,
            self.head_size,
            is_backward,
            self.element_bytes,
            None if self.groups == self.heads else self.groups,
            None if self.value_size == self.head_size else self.value_size,
            kv_length=None if keys == queries else keys,
            is_causal=is_causal,
            speed=self.speed,
        )


def ring_attention(
    tape: Tape,
    shard: AttentionShard,
    group: Group,
    given: tuple[Tensor, ...],
    output: Tensor,
    *,
    saves_output: bool = True,
) -> None:
    """Record ring attention: blocks of keys and values are sent around a ring of ranks.

    Forward, the first kernel attends to the rank's own keys with a causal mask. Each later kernel
    attends to half of the block received last, while the next block is in flight. At the end, the
    outputs of all steps are summed, weighted by their log-sum-exp. Backward, blocks are sent in the
    other direction with their gradients, to which every rank adds. The rank's own keys come last.

    Args:
        tape: the tape of the block.
        shard: the rank's shard of attention.
        group: the ranks of the ring.
        given: queries and keys, and values.
        output: the output of the node.
        saves_output: the backward pass reads the saved output; otherwise it receives the output
            with its gradient.
    """
    num_ranks, block = group.num_ranks, shard.key_bytes + shard.value_bytes
    query, size, rows = shard.query_bytes, shard.output_bytes, shard.row_bytes
    log_sum_exp = tape.tensor("softmax log-sum-exp", rows // FP32_BYTES, 1, FP32_BYTES)
    saved = (*given, log_sum_exp, output) if saves_output else (*given, log_sum_exp)

    def kernel(*, is_own: bool, is_backward: bool) -> FusedAttention:
        keys = shard.seq_length // (1 if is_own else 2)
        return shard.kernel(shard.seq_length, keys, is_causal=is_own, is_backward=is_backward)

    def forward(order: IssueOrder) -> None:
        """Send blocks of keys and values one step ahead of the kernels that read them."""
        send = _collective(CollectiveKind.SEND, "keys and values to next", block, group)
        held = query + 2 * block
        join = elementwise("keys and values joined", block, block, saves=given, holds_bytes=held)
        order.compute(join)
        sends = [order.launch(send)]
        for step in range(num_ranks):
            if step + 2 < num_ranks:
                # Sends are one step ahead of the kernels.
                sends.append(order.launch(send))
            if step:
                order.wait(sends[step - 1])
            held += size + rows + (block if step + 1 < num_ranks else 0)
            work = kernel(is_own=step == 0, is_backward=False)
            order.compute(Op("fused attention", work, Phase.FORWARD, given, holds_bytes=held))
            name = "log-sum-exp correction" if step else "log-sum-exp copy"
            read = 2 * rows if step else rows
            order.compute(elementwise(name, read, rows, saves=given, holds_bytes=held + rows))
        held += rows + size
        for step in range(num_ranks):
            read = 2 * rows + (2 * size if step else size)
            saves = saved if step + 1 == num_ranks else given
            order.compute(
                elementwise("output correction", read, size, saves=saves, holds_bytes=held)
            )

    def backward(order: IssueOrder) -> None:
        """Send blocks the other way, followed by the gradients of their keys and values."""
        # Gradients of queries and output, and send and receive buffers of a block with gradient.
        held = query + size + 4 * block + (0 if saves_output else size)
        order.compute(elementwise("keys and values copied", block, block, _BACK, holds_bytes=held))
        for step in range(num_ranks):
            is_first, is_own = step == 0, step + 1 == num_ranks
            name = "keys and values to previous" if is_first else "with gradients to previous"
            name = "their gradients to previous" if is_own else name
            sent = block if is_first or is_own else 2 * block
            send = order.launch(_collective(CollectiveKind.SEND, name, sent, group, _BACK))
            work = kernel(is_own=is_own, is_backward=True)
            parts = _key_parts(shard, work)
            made = held + query + sum(parts.values())
            _gradient(order, work, saved if is_own else (), made)
            _add(order, "query", query, made, is_first=is_first)
            order.wait(send)
            for name, num_bytes in parts.items():
                _add(order, name, num_bytes, made, is_first=is_first)

    tape.record("ring attention", given, (output,), forward, backward)


def gathered_attention(
    tape: Tape, shard: AttentionShard, group: Group, given: tuple[Tensor, ...], output: Tensor
) -> None:
    """Record attention to keys and values that are all-gathered first, with exposed collectives.

    Each of the rank's two slices has a kernel, which attends to the keys up to the slice's end.
    Backward, keys and values are gathered again, and their gradients are reduce-scattered.
    Arguments are those of `ring_attention`.
    """
    num_ranks, query, rows = group.num_ranks, shard.query_bytes, shard.row_bytes
    size = shard.output_bytes
    whole = {
        "key": num_ranks * shard.key_bytes,
        "value": num_ranks * shard.value_bytes,
    }
    gathered, own = sum(whole.values()), query + shard.key_bytes + shard.value_bytes
    slices = tape.tensor("output by slice", output.rows, output.width)
    log_sum_exp = tape.tensor("softmax log-sum-exp", rows // FP32_BYTES, 1, FP32_BYTES)
    saved = (*given, slices, log_sum_exp)

    def kernels(*, is_backward: bool) -> list[FusedAttention]:
        half = shard.seq_length // 2
        ends = num_ranks * half, (num_ranks + 1) * half
        return [shard.kernel(half, end, is_causal=True, is_backward=is_backward) for end in ends]

    def gather(order: IssueOrder, held: int, phase: Phase, saves: tuple[Tensor, ...]) -> None:
        """Gather keys and values, and put their tokens in order."""
        kind = CollectiveKind.ALL_GATHER
        for name, num_bytes in whole.items():
            op = _collective(kind, f"{name}s gather", num_bytes, group, phase)
            order.block(op.replace(saves=saves, holds_bytes=held + gathered))
        for name, num_bytes in whole.items():
            op = elementwise(f"{name}s in order", num_bytes, num_bytes, phase, saves=saves)
            order.compute(op.replace(holds_bytes=held + gathered + num_bytes))

    def forward(order: IssueOrder) -> None:
        """Issue the gathers, and a kernel and a copy of its output for each half of the queries."""
        gather(order, own, Phase.FORWARD, given)
        held = own + gathered + 2 * size + rows
        for place, work in enumerate(kernels(is_backward=False)):
            saves = saved if place else given
            order.compute(Op("fused attention", work, Phase.FORWARD, saves, holds_bytes=held))
            copy = elementwise("output copy", size // 2, size // 2, saves=saves, holds_bytes=held)
            order.compute(copy)

    def backward(order: IssueOrder) -> None:
        """Gather again, and reduce-scatter the gradients of keys and values."""
        held = query + size + gathered
        zero = elementwise("key and value gradients zero", 0, gathered, _BACK, holds_bytes=held)
        order.compute(zero)
        gather(order, held, _BACK, ())
        for place, work in enumerate(kernels(is_backward=True)):
            parts = _key_parts(shard, work)
            made = held + gathered + query // 2 + sum(parts.values())
            _gradient(order, work, saved if place else (), made)
            _add(order, "query", query // 2, made, is_first=True)
            for name, num_bytes in parts.items():
                _add(order, name, num_bytes, made)
        for name, num_bytes in whole.items():
            op = elementwise(f"{name} gradients in order", num_bytes, num_bytes, _BACK)
            order.compute(op.replace(holds_bytes=held + num_bytes))
        for name, num_bytes in whole.items():
            kind = CollectiveKind.REDUCE_SCATTER
            op = _collective(kind, f"{name} gradients scatter", num_bytes, group, _BACK)
            order.block(op.replace(holds_bytes=held))

    tape.record("attention to gathered keys", given, (output,), forward, backward)


def tokens_for_heads(
    tape: Tape, shard: AttentionShard, group: Group, given: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Exchange tokens for heads: from own tokens of all heads to all tokens of some heads.

    `given` are queries and keys, and values; `shard` is the rank's shard before the exchange.
    """
    parts = ("query", shard.query_bytes), ("key", shard.key_bytes), ("value", shard.value_bytes)
    num_ranks = group.num_ranks
    taken = tuple(
        tape.tensor(f"{x.name} of heads", x.rows * num_ranks, x.width // num_ranks) for x in given
    )

    def forward(order: IssueOrder) -> None:
        _all_to_all(order, parts, group, reads=given)

    def backward(order: IssueOrder) -> None:
        gradients = [(f"{name} gradient", size) for name, size in parts]
        _all_to_all(order, gradients, group, _BACK)

    tape.record("tokens for heads", given, taken, forward, backward)
    return taken


def heads_for_tokens(
    tape: Tape, x: Tensor, group: Group, output: Tensor, *, back_again: bool
) -> None:
    """Exchange heads for tokens: from all tokens of some heads to own tokens of all heads.

    With `back_again`, the backward pass sends the output with its gradient to the ring, which has
    not saved it.
    """
    kept = (output,) if back_again else ()

    def forward(order: IssueOrder) -> None:
        _all_to_all(order, [("output", output.num_bytes)], group, saves=kept)

    def backward(order: IssueOrder) -> None:
        gradient = ("output gradient", output.num_bytes)
        parts = [("output", output.num_bytes), gradient] if back_again else [gradient]
        _all_to_all(order, parts, group, _BACK, reads=kept)

    tape.record("heads for tokens", (x,), (output,), forward, backward)


def _all_to_all(
    order: IssueOrder,
    parts: Parts,
    group: Group,
    phase: Phase = Phase.FORWARD,
    *,
    reads: tuple[Tensor, ...] = (),
    saves: tuple[Tensor, ...] = (),
) -> None:
    """Exchange tensors one after another (flash_attn_a2a_communicate).

    A kernel packs each tensor by receiver before its exchange, and one reorders it afterwards,
    while other tensors are in flight.
    """
    # Input, packed and received tensors.
    held = 3 * sum(size for _, size in parts)
    sends: list[Handle | None] = []
    for place in range(len(parts) + 2):
        if 0 < place <= len(parts):
            name, size = parts[place - 1]
            op = _collective(CollectiveKind.ALL_TO_ALL, f"{name} all-to-all", size, group, phase)
            sends.append(order.launch(op))
        if place > 1:
            name, size = parts[place - 2]
            order.wait(sends[place - 2])
            op = elementwise(f"{name} in order", size, size, phase, holds_bytes=held + size)
            order.compute(op.replace(saves=saves))
        if place < len(parts):
            name, size = parts[place]
            op = elementwise(f"{name} packed", size, size, phase, holds_bytes=held)
            order.compute(op.replace(reads=reads))


def _key_parts(shard: AttentionShard, work: FusedAttention) -> dict[str, int]:
    """Bytes of the gradients of the keys and of the values that a kernel computes."""
    sizes = {"key": shard.key_bytes, "value": shard.value_bytes}
    return {name: size * work.num_keys // shard.seq_length for name, size in sizes.items()}


def _gradient(
    order: IssueOrder, work: FusedAttention, reads: tuple[Tensor, ...], held_bytes: int
) -> None:
    """Issue a backward kernel; the last one `reads` the saved tensors."""
    held = held_bytes + work.workspace_bytes + sum(tensor.num_bytes for tensor in reads)
    order.compute(Op("fused attention gradient", work, _BACK, reads=reads, holds_bytes=held))


def _add(
    order: IssueOrder, of: str, num_bytes: int, held_bytes: int, *, is_first: bool = False
) -> None:
    """Issue the kernel that adds a gradient to the sum of gradients, or copies the first one."""
    name = f"{of} gradient {'copy' if is_first else 'sum'}"
    read = num_bytes if is_first else 2 * num_bytes
    order.compute(elementwise(name, read, num_bytes, _BACK, holds_bytes=held_bytes))


def _collective(
    kind: CollectiveKind, name: str, num_bytes: int, group: Group, phase: Phase = Phase.FORWARD
) -> Op:
    """Return a collective; concurrent kernels count its buffers."""
    return collective(name, Collective(kind, num_bytes, group), phase, holds_activation=False)
