"""Attention heads on a rank, and attention under context parallelism: ranks divide sequences.

The ranks exchange tokens for heads (Ulysses; Jacobs et al. 2023), keys and values around a ring
(Liu et al. 2023), or gather all keys and values (Dubey et al.
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

from collections.abc import Callable, Iterable, Iterator, Mapping

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError
from simtrain.workload.issue import Handle, IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import Context, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, FusedAttention, Gemm

_BACK = Phase.INPUT_GRADIENT


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """Attention heads on this rank, and the ops on them.

    Args:
        tape: the tape of the block.
        heads: query heads.
        groups: key heads and value heads.
        head_size: channels of a query head or key head.
        value_size: channels of a value head.
        window: tokens that a query attends to, itself included; None for all.
        ranks_of_heads: ranks that exchange tokens for heads before the core.
    """

    tape: Tape
    heads: int
    groups: int
    head_size: int
    value_size: int
    window: int | None = None
    ranks_of_heads: int = 1

    @property
    def seq_length(self) -> int:
        return self.tape.microbatch.seq_length * self.ranks_of_heads

    @property
    def query_bytes(self) -> int:
        return self._bytes(self.heads * self.head_size)

    @property
    def output_bytes(self) -> int:
        return self._bytes(self.heads * self.value_size)

    @property
    def key_bytes(self) -> int:
        return self._bytes(self.groups * self.head_size)

    @property
    def value_bytes(self) -> int:
        return self._bytes(self.groups * self.value_size)

    @property
    def row_bytes(self) -> int:
        return FP32_BYTES * self.tape.microbatch.sequences * self.heads * self.seq_length

    def _bytes(self, channels: int) -> int:
        batch = self.tape.microbatch
        return batch.sequences * self.seq_length * channels * batch.element_bytes

    def log_sum_exp(self) -> Tensor:
        rows = self.row_bytes // FP32_BYTES
        return self.tape.tensor("softmax log-sum-exp", rows, 1, FP32_BYTES)

    def kernel(
        self, queries: int, keys: int, *, is_backward: bool, is_causal: bool = True
    ) -> FusedAttention:
        batch = self.tape.microbatch
        return FusedAttention(
            batch.sequences * self.heads,
            queries,
            self.head_size,
            is_backward,
            batch.element_bytes,
            None if self.groups == self.heads else batch.sequences * self.groups,
            None if self.value_size == self.head_size else self.value_size,
            self.window,
            None if keys == queries else keys,
            is_causal,
            batch.kernels.attention_kernel,
            batch.kernels.attention_speed,
            tuple(
                (length * queries // batch.whole_length, number)
                for length, number in batch.documents
            ),
        )

    def output(self) -> Tensor:
        rows = self.tape.microbatch.sequences * self.seq_length
        return self.tape.tensor("attention output", rows, self.heads * self.value_size)

    def repeated(self, name: str, size: int) -> Tensor | None:
        """Create a tensor of keys or values repeated for each query head; None without groups.

        A head has `size` channels. Megatron-LM's DotProductAttention repeats with
        repeat_interleave.
        """
        if self.groups == self.heads:
            return None
        batch = self.tape.microbatch
        return self.tape.tensor(f"repeated {name}", batch.tokens, self.heads * size)

    def repeat(self, y: Tensor, saves: tuple[Tensor, ...] = ()) -> Op:
        return elementwise(y.name, self._group_bytes(y), y.num_bytes, saves=saves)

    def repeat_gradient(self, y: Tensor, reads: tuple[Tensor, ...] = ()) -> Op:
        """Return the kernel that sums the gradient of `y` over the heads of each group."""
        return gradient(y.name, y.num_bytes, self._group_bytes(y), reads=reads)

    def _group_bytes(self, y: Tensor) -> int:
        return y.num_bytes * self.groups // self.heads

    def product(
        self,
        name: str,
        sizes: tuple[int, int, int],
        phase: Phase,
        *,
        saves: tuple[Tensor, ...] = (),
        reads: tuple[Tensor, ...] = (),
        buffer_bytes: int = 0,
    ) -> Op:
        """Return a product of sizes (m, n, k) for each head; its operands and result exist."""
        batch, (m, n, k) = self.tape.microbatch, sizes
        size, number = batch.element_bytes, batch.sequences * self.heads
        work = Gemm(m, n, k, number, size, size, dtype=batch.dtype)
        held_bytes = size * number * (m * k + k * n + m * n)
        return Op(name, work, phase, saves, reads, held_bytes, buffer_bytes=buffer_bytes)


def ring_attention(
    core: AttentionCore,
    group: Group,
    inputs: tuple[Tensor, ...],
    *,
    saves_output: bool = True,
    gathers: bool = False,
) -> Tensor:
    """Record ring attention: blocks of keys and values are sent around a ring of ranks.

    Forward, the first kernel attends to the rank's own keys with a causal mask. Each later kernel
    attends to half of the block received last, while the next block is in flight. At the end, the
    outputs of all steps are summed, weighted by their log-sum-exp. Backward, blocks are sent in the
    other direction with their gradients, to which every rank adds. The rank's own keys come last.

    `inputs` are queries and keys, and values. Unless it `saves_output`, the backward pass receives
    the output with its gradient. PyTorch's ring may gather all blocks at once (`_TorchRing`).
    """
    output, log_sum_exp = core.output(), core.log_sum_exp()
    saved = (*inputs, log_sum_exp, output) if saves_output else (*inputs, log_sum_exp)
    fields, kind = (core, group, inputs, saved, saves_output), core.tape.microbatch.kernels.ring
    ring = _Ring(*fields)
    if kind != "transformer_engine":
        ring = _TorchRing(*fields, gathers, kind == "torch_compiled")
    return core.tape.record("ring attention", inputs, output, ring.forward, ring.backward)


@dataclass(frozen=True, slots=True)
class _Ring:
    """The passes of ring attention; fields as in `ring_attention`."""

    core: AttentionCore
    group: Group
    inputs: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    saves_output: bool

    @property
    def block(self) -> int:
        return self.core.key_bytes + self.core.value_bytes

    def forward(self, order: IssueOrder) -> None:
        """Send blocks of keys and values one step ahead of the kernels that read them."""
        core, inputs, num_ranks, block = self.core, self.inputs, self.group.num_ranks, self.block
        size, rows = core.output_bytes, core.row_bytes
        send = _send("keys and values to next", block, self.group)
        held_bytes = core.query_bytes + 2 * block
        join = elementwise(
            "keys and values joined", block, block, saves=inputs, holds_bytes=held_bytes
        )
        order.compute(join)
        sends = [order.launch(send)]
        for step in range(num_ranks):
            if step + 2 < num_ranks:
                # Sends are one step ahead of the kernels.
                sends.append(order.launch(send))
            if step:
                order.wait(sends[step - 1])
            held_bytes += size + rows + (block if step + 1 < num_ranks else 0)
            work = self._kernel(is_own=step == 0, is_backward=False)
            order.compute(
                Op("fused attention", work, Phase.FORWARD, inputs, holds_bytes=held_bytes)
            )
            name = "log-sum-exp correction" if step else "log-sum-exp copy"
            read = 2 * rows if step else rows
            order.compute(
                elementwise(name, read, rows, saves=inputs, holds_bytes=held_bytes + rows)
            )
        held_bytes += rows + size
        for step in range(num_ranks):
            read = 2 * rows + (2 * size if step else size)
            saves = self.saved if step + 1 == num_ranks else inputs
            order.compute(
                elementwise("output correction", read, size, saves=saves, holds_bytes=held_bytes)
            )

    def backward(self, order: IssueOrder) -> None:
        """Send blocks the other way, followed by the gradients of their keys and values."""
        core, num_ranks, block = self.core, self.group.num_ranks, self.block
        query, size = core.query_bytes, core.output_bytes
        # Gradients of queries and output, and send and receive buffers of a block with gradient.
        held_bytes = query + size + 4 * block + (0 if self.saves_output else size)
        order.compute(
            elementwise("keys and values copied", block, block, _BACK, holds_bytes=held_bytes)
        )
        for step in range(num_ranks):
            is_first, is_own = step == 0, step + 1 == num_ranks
            name = "keys and values to previous" if is_first else "with gradients to previous"
            name = "their gradients to previous" if is_own else name
            sent = block if is_first or is_own else 2 * block
            send = order.launch(_send(name, sent, self.group, _BACK))
            work = self._kernel(is_own=is_own, is_backward=True)
            parts = _key_parts(core, work)
            made = held_bytes + query + sum(parts.values())
            order.compute(_kernel_gradient(work, self.saved if is_own else (), made))
            order.compute(_sum("query", query, made, is_first=is_first))
            order.wait(send)
            order.issue(_sum(name, size, made, is_first=is_first) for name, size in parts.items())

    def _kernel(self, *, is_own: bool, is_backward: bool) -> FusedAttention:
        queries = self.core.seq_length
        keys = queries if is_own else queries // 2
        return self.core.kernel(queries, keys, is_causal=is_own, is_backward=is_backward)


# More than 60 lines: the forward pass and its inner backward pass share its tensors.
def gathered_attention(core: AttentionCore, group: Group, inputs: tuple[Tensor, ...]) -> Tensor:
    """Record attention to keys and values that are all-gathered first, with exposed collectives.

    Each of the rank's two slices has a kernel, which attends to the keys up to the slice's end.
    Backward, keys and values are gathered again, and their gradients are reduce-scattered.
    Arguments are those of `ring_attention`.
    """
    output = core.output()
    slices = core.tape.tensor("output by slice", output.rows, output.width)
    saved = (*inputs, slices, core.log_sum_exp())
    query, size, half = core.query_bytes, core.output_bytes, core.seq_length // 2
    whole = {"key": group.num_ranks * core.key_bytes, "value": group.num_ranks * core.value_bytes}
    gathered = sum(whole.values())
    ends = group.num_ranks * half, (group.num_ranks + 1) * half

    def gather(held_bytes: int, phase: Phase, saves: tuple[Tensor, ...]) -> Iterator[Op]:
        """Gather keys and values, and put their tokens in order."""
        held_bytes += gathered
        for name, num_bytes in whole.items():
            work = CollectiveKind.ALL_GATHER, num_bytes, group
            yield collective(f"{name}s gather", *work, phase, saves=saves, holds_bytes=held_bytes)
        for name, num_bytes in whole.items():
            sizes, held_too = (num_bytes, num_bytes), held_bytes + num_bytes
            yield elementwise(f"{name}s in order", *sizes, phase, saves=saves, holds_bytes=held_too)

    def forward() -> Iterator[Op]:
        """Gather, and run a kernel and a copy of its output for each half of the queries."""
        local_bytes = query + core.key_bytes + core.value_bytes
        yield from gather(local_bytes, Phase.FORWARD, inputs)
        held_bytes = local_bytes + gathered + 2 * size + core.row_bytes
        for end, saves in zip(ends, (inputs, saved), strict=True):
            work = core.kernel(half, end, is_backward=False)
            yield Op("fused attention", work, Phase.FORWARD, saves, holds_bytes=held_bytes)
            yield elementwise(
                "output copy", size // 2, size // 2, saves=saves, holds_bytes=held_bytes
            )

    def backward() -> Iterator[Op]:
        """Gather again, and reduce-scatter the gradients of keys and values."""
        held_bytes = query + size + gathered
        yield elementwise(
            "key and value gradients zero", 0, gathered, _BACK, holds_bytes=held_bytes
        )
        yield from gather(held_bytes, _BACK, ())
        for end, reads in zip(ends, ((), saved), strict=True):
            work = core.kernel(half, end, is_backward=True)
            parts = _key_parts(core, work)
            made = held_bytes + gathered + query // 2 + sum(parts.values())
            yield _kernel_gradient(work, reads, made)
            yield _sum("query", query // 2, made, is_first=True)
            for name, num_bytes in parts.items():
                yield _sum(name, num_bytes, made)
        for name, num_bytes in whole.items():
            sizes, held_too = (num_bytes, num_bytes), held_bytes + num_bytes
            yield elementwise(f"{name} gradients in order", *sizes, _BACK, holds_bytes=held_too)
        for name, num_bytes in whole.items():
            scatter = CollectiveKind.REDUCE_SCATTER, num_bytes, group
            yield collective(f"{name} gradients scatter", *scatter, _BACK, holds_bytes=held_bytes)

    name = "attention to gathered keys"
    return core.tape.record(name, inputs, output, [*forward()], [*backward()])


def tokens_for_heads(
    core: AttentionCore, group: Group, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Exchange tokens for heads: from own tokens of all heads to all tokens of some heads.

    `inputs` are queries and keys, and values; `core` has the rank's heads before the exchange.
    """
    parts = {"query": core.query_bytes, "key": core.key_bytes, "value": core.value_bytes}
    gradients = {f"{name} gradient": size for name, size in parts.items()}
    num_ranks = group.num_ranks
    taken = tuple(
        core.tape.tensor(f"{x.name} of heads", x.rows * num_ranks, x.width // num_ranks)
        for x in inputs
    )
    return core.tape.record(
        "tokens for heads",
        inputs,
        taken,
        lambda order: _all_to_all(order, parts, group, reads=inputs),
        lambda order: _all_to_all(order, gradients, group, _BACK),
    )


def heads_for_tokens(core: AttentionCore, x: Tensor, group: Group, *, back_again: bool) -> Tensor:
    """Exchange heads for tokens: from all tokens of some heads to own tokens of all heads.

    With `back_again`, the backward pass sends the output with its gradient to the ring, which has
    not saved it.
    """
    output = core.output()
    kept = (output,) if back_again else ()
    part = {"output": output.num_bytes}
    gradients = (part if back_again else {}) | {"output gradient": output.num_bytes}
    return core.tape.record(
        "heads for tokens",
        (x,),
        output,
        lambda order: _all_to_all(order, part, group, saves=kept),
        lambda order: _all_to_all(order, gradients, group, _BACK, reads=kept),
    )


def _all_to_all(
    order: IssueOrder,
    parts: Mapping[str, int],
    group: Group,
    phase: Phase = Phase.FORWARD,
    *,
    reads: tuple[Tensor, ...] = (),
    saves: tuple[Tensor, ...] = (),
) -> None:
    """Exchange tensors one after another (flash_attn_a2a_communicate); `parts` are their bytes.

    A kernel packs each tensor by receiver before its exchange, and one reorders it afterwards,
    while other tensors are in flight.
    """
    # Input, packed and received tensors.
    held_bytes, sizes = 3 * sum(parts.values()), [*parts.items()]
    sends: list[Handle | None] = []
    for place in range(len(sizes) + 2):
        if 0 < place <= len(sizes):
            name, size = sizes[place - 1]
            work = CollectiveKind.ALL_TO_ALL, size, group
            send = collective(f"{name} all-to-all", *work, phase, holds_bytes=0)
            sends.append(order.launch(send))
        if place > 1:
            name, size = sizes[place - 2]
            order.wait(sends[place - 2])
            op = elementwise(f"{name} in order", size, size, phase, holds_bytes=held_bytes + size)
            order.compute(op.replace(saves=saves))
        if place < len(sizes):
            name, size = sizes[place]
            op = elementwise(f"{name} packed", size, size, phase, holds_bytes=held_bytes)
            order.compute(op.replace(reads=reads))


def _key_parts(core: AttentionCore, work: FusedAttention) -> dict[str, int]:
    sizes = {"key": core.key_bytes, "value": core.value_bytes}
    return {name: size * work.num_keys // core.seq_length for name, size in sizes.items()}


def _kernel_gradient(work: FusedAttention, reads: tuple[Tensor, ...], held_bytes: int) -> Op:
    all_held_bytes = held_bytes + work.workspace_bytes + sum(tensor.num_bytes for tensor in reads)
    return Op("fused attention gradient", work, _BACK, reads=reads, holds_bytes=all_held_bytes)


def _sum(of: str, num_bytes: int, held_bytes: int, *, is_first: bool = False) -> Op:
    name = f"{of} gradient {'copy' if is_first else 'sum'}"
    read = num_bytes if is_first else 2 * num_bytes
    return elementwise(name, read, num_bytes, _BACK, holds_bytes=held_bytes)


def _send(name: str, num_bytes: int, group: Group, phase: Phase = Phase.FORWARD) -> Op:
    return collective(name, CollectiveKind.SEND, num_bytes, group, phase, holds_bytes=0)


@dataclass(frozen=True, slots=True)
class _TorchRing(_Ring):
    """The passes of PyTorch's ring attention (torch/distributed/tensor/experimental/_attention.py).

    `_templated_ring_attention` sends keys and values as one array to the next rank before each
    step, or gathers those of all ranks once. It begins with the rank's own keys in both passes.
    `_SDPAMerger` merges outputs in fp32, and gradients are summed and sent in fp32. Each operator
    is a kernel. If the layer is compiled, Inductor fuses them, and each collective is awaited at
    once, because `_maybe_wrap_tensor` calls `wait_tensor` while torch traces.
    """

    gathers: bool
    is_compiled: bool

    def forward(self, order: IssueOrder) -> None:
        """Merge the output of each step into the sum of the earlier ones."""
        size, rows, phase = self.core.output_bytes, self.core.row_bytes, Phase.FORWARD
        wide, (sums, sigmoid) = self._wide(size), ((2 * rows, rows), (rows, rows))
        outputs = (2 * wide, wide), (wide + rows, wide), (2 * wide, wide)
        merge = sums, sigmoid, *outputs, sums, sigmoid, sums
        for step, is_last in self._steps(order, phase):
            work = self._kernel(is_own=step == 0, is_backward=False)
            order.compute(Op("fused attention", work, phase, holds_bytes=self._held_bytes))
            sizes = (size, wide), *(merge if step else ()), *[(wide, size)] * is_last
            if self.is_compiled:
                before, after = size if step == 1 else wide, size if is_last else wide
                sizes = ((before + size + 2 * rows, after), sums) if step else ()
            merged = self._ops("output merge", sizes, phase)
            order.issue(op.replace(saves=self.saved) if is_last else op for op in merged)

    def backward(self, order: IssueOrder) -> None:
        """Send the sums of gradients of keys and values after each step."""
        block, query, sent = self.block, self.core.query_bytes, None
        wide, wide_query = self._wide(block), self._wide(query)
        if not self.is_compiled:
            order.issue(self._ops("gradients zero", [(0, wide + wide_query)]))
        for step, is_last in self._steps(order, _BACK):
            work = self._kernel(is_own=step == 0, is_backward=True)
            part, reads = sum(_key_parts(self.core, work).values()), self.saved if is_last else ()
            order.compute(_kernel_gradient(work, reads, self._held_bytes + query + part))
            order.wait(sent)
            # The gradients of half of the keys are added to theirs, and then joined with the rest.
            added, joined = self._wide(part), [(wide, wide)] * (2 if step else 1)
            sums = [(added + part, added), *joined]
            if self.is_compiled:
                sums = [(part + (wide if step else 0), wide)]
            order.issue(self._ops("key and value gradients sum", sums))
            sent = order.launch(_send("their gradients to next", wide, self.group, _BACK))
            order.wait(sent if self.is_compiled else None)
            order.issue(self._ops("query gradient sum", [(wide_query + query, wide_query)]))
        order.wait(sent)
        order.issue(self._ops("gradients from fp32", [(wide + wide_query, block + query)]))

    def _steps(self, order: IssueOrder, phase: Phase) -> Iterator[tuple[int, bool]]:
        """Yield each step, and whether it is the last, when the next block is on its way."""
        num_ranks, copy, sent = self.group.num_ranks, (self.block, self.block), None
        kind = CollectiveKind.ALL_GATHER if self.gathers else CollectiveKind.SEND
        size = self.block * (num_ranks if self.gathers else 1)
        exchange = collective("keys and values exchange", kind, size, self.group, phase)
        # Eagerly, keys and values are made contiguous first, and joined even if nobody sends them.
        order.issue(self._ops("keys and values joined", [copy] * (not self.is_compiled), phase))
        for step in range(num_ranks):
            order.wait(sent)
            is_last = step + 1 == num_ranks
            is_sent = not is_last and not (self.gathers and step)
            is_joined = is_sent or not (is_last or self.is_compiled)
            order.issue(self._ops("keys and values joined", [copy] * is_joined, phase))
            if is_sent:
                sent = order.launch(exchange)
                order.wait(sent if self.is_compiled else None)
            yield step, is_last

    def _ops(self, name: str, sizes: Iterable[tuple[int, int]], phase: Phase = _BACK) -> list[Op]:
        return [elementwise(name, *size, phase, holds_bytes=self._held_bytes) for size in sizes]

    @property
    def _held_bytes(self) -> int:
        """Inputs and their copies, blocks in flight, and three arrays in fp32 of a kernel."""
        blocks = 2 + (self.group.num_ranks if self.gathers else 2)
        return self.core.query_bytes + blocks * self.block + 4 * self._wide(self.core.output_bytes)

    def _wide(self, num_bytes: int) -> int:
        return num_bytes * FP32_BYTES // self.core.tape.microbatch.element_bytes


Attend = Callable[[AttentionCore, tuple[Tensor, ...], Tensor], Tensor]
"""Records a fused kernel, from queries and keys, and values."""


def context_attention(
    core: AttentionCore, context: Context, inputs: tuple[Tensor, ...], attend: Attend
) -> Tensor:
    """Record attention of queries and keys, and values, under context parallelism.

    `core` has the rank's heads before ranks exchange tokens for heads.

    Raises:
        InputError: attention has a window, and ranks exchange keys (E508).
    """
    ranks = context.heads.num_ranks
    is_transformer_engines = core.tape.microbatch.kernels.ring == "transformer_engine"
    if ranks > 1:
        inputs = tokens_for_heads(core, context.heads, inputs)
    part = replace(
        core, heads=core.heads // ranks, groups=core.groups // ranks, ranks_of_heads=ranks
    )
    if context.communication == "a2a":
        y = attend(part, inputs[:-1], inputs[-1])
    elif core.window is not None:
        message = "attention with a window cannot exchange keys and values between ranks"
        fix = "set parallelism.context_communication to a2a"
        raise InputError.of("E508", message, fix=fix)
    elif (gathers := context.communication == "all_gather") and is_transformer_engines:
        y = gathered_attention(part, context.keys, inputs)
    else:
        y = ring_attention(part, context.keys, inputs, saves_output=ranks == 1, gathers=gathers)
    if ranks == 1:
        return y
    # A ring has not saved its output.
    return heads_for_tokens(core, y, context.heads, back_again=context.keys.num_ranks > 1)
