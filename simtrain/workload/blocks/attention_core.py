"""The heads of attention on one rank, the ops on them, and slices of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.workload.blocks.elementwise import MASK_BYTES, dropout, softmax_kernels
from simtrain.workload.ops import Op, Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import SequenceSlice, Tape
from simtrain.workload.work import FP32_BYTES, FusedAttention, Gemm, KernelFamily


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


def softmax_of_scores(
    core: AttentionCore, scores: Tensor, read_bytes: int, backward_bytes: int, *, drops_out: bool
) -> Tensor:
    """Record the softmax of all scores, and its dropout.

    A software stack without a fused kernel masks the scores first, with a mask of one byte per
    score of a sequence.

    Args:
        core: the rank's heads.
        scores: queries times keys.
        read_bytes, backward_bytes: what the fused kernel reads, forward and backward.
        drops_out: dropout on the probabilities.
    """
    tape, size = core.tape, scores.num_bytes
    y = tape.tensor("softmax output", scores.rows, scores.width)
    if tape.microbatch.kernels.fused_softmax:
        family, held_bytes = KernelFamily.SOFTMAX, 2 * size
        sizes, back = (read_bytes, size), (backward_bytes, size)
        forward: Ops = (
            elementwise("softmax", *sizes, saves=(y,), holds_bytes=held_bytes, family=family),
        )
        backward: Ops = (
            gradient("softmax", *back, reads=(y,), holds_bytes=held_bytes, family=family),
        )
    else:
        mask_bytes = scores.rows // core.heads * scores.width * MASK_BYTES
        separate = tape.microbatch.kernels.separate_masking
        forward, backward = softmax_kernels(scores, y, mask_bytes, separate_masking=separate)
    tape.record("softmax", (scores,), (y,), forward, backward)
    return dropout(tape, y, "softmax dropout", KernelFamily.DROPOUT) if drops_out else y


# Causal attention of a slice of each sequence: its queries attend to all keys up to its end.
#
# The keys and values of each slice stay on the rank from its forward pass to its backward pass,
# whatever is recomputed. The backward passes of slices run last to first. Each computes gradients
# of all earlier keys and values too, which stay as a sum until the backward passes of these slices.
#
# Source: the authors' `Seq1F1BAttn` (Sun et al. 2024), which joins the new keys and values with
# those of earlier slices by a copy, and adds gradients after the kernel. Its copy of the output is
# left out.


def attention_of_slice(core: AttentionCore, inputs: tuple[Tensor, ...]) -> Tensor:
    """Record fused attention of the microbatch's slice; `inputs` are queries, keys and values."""
    part, tape, output = core.tape.microbatch.part, core.tape, core.output()
    assert part, "the microbatch has whole sequences"
    width = core.groups * (core.head_size + core.value_size)
    query = tape.tensor("query", output.rows, core.heads * core.head_size)
    attention = _SliceAttention(
        core,
        part,
        (query, output, core.log_sum_exp()),
        tape.kept_tensors("keys and values", width),
        tape.kept_tensors("sum of key and value gradients", width),
    )
    name = "fused attention"
    tape.record(name, inputs, (output,), [*attention.forward()], [*attention.backward()])
    return output


@dataclass(frozen=True, slots=True)
class _SliceAttention:
    """The passes of a slice's attention.

    Args:
        core: the rank's heads.
        part: the slice.
        saved: tensors that the backward pass reads besides keys and values.
        keys_values, sums: [slices], keys and values of each slice, and the sums of their gradients.
    """

    core: AttentionCore
    part: SequenceSlice
    saved: tuple[Tensor, ...]
    keys_values: tuple[Tensor, ...]
    sums: tuple[Tensor, ...]

    @property
    def sizes(self) -> dict[str, int]:
        core, num_keys = self.core, self._num_keys
        sizes = {"key": core.key_bytes, "value": core.value_bytes}
        return {name: size * num_keys // core.seq_length for name, size in sizes.items()}

    @property
    def _num_keys(self) -> int:
        return self.part.earlier_tokens + self.core.seq_length

    @property
    def _earlier_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.keys_values[: self.part.number])

    def forward(self) -> Iterator[Op]:
        """Join keys and values with those of earlier slices, and run the kernel."""
        part, query_bytes = self.part, self.core.query_bytes
        keeps, held_bytes = (self.keys_values[part.number],), query_bytes
        held_bytes += keeps[0].num_bytes
        for name, size in self.sizes.items() if part.number else ():
            join = elementwise(f"{name}s joined", size, size, holds_bytes=held_bytes + size)
            yield join.replace(keeps=keeps)
        work = self.core.kernel(self.core.seq_length, self._num_keys, is_backward=False)
        held_bytes = work.tensors_bytes - self._earlier_bytes + work.log_sum_exp_bytes
        op = Op("fused attention", work, Phase.FORWARD, self.saved, holds_bytes=held_bytes)
        yield op.replace(keeps=keeps)

    def backward(self) -> Iterator[Op]:
        """Run the kernel, and add its gradients of keys and values to those of later slices."""
        part, phase = self.part, Phase.INPUT_GRADIENT
        number, earlier_bytes = part.number, self._earlier_bytes
        work = self.core.kernel(self.core.seq_length, self._num_keys, is_backward=True)
        held_bytes = 2 * work.tensors_bytes + work.workspace_bytes + work.log_sum_exp_bytes
        op = Op(
            "fused attention gradient",
            work,
            phase,
            reads=self.saved,
            holds_bytes=held_bytes - earlier_bytes,
            releases=(self.keys_values[number],),
        )
        if part.is_last:
            yield op.replace(keeps=self.sums[:number])
            return
        yield op
        made_bytes = self.core.query_bytes + 2 * sum(self.sizes.values())
        *_, last = self.sizes
        for name, size in self.sizes.items():
            add = elementwise(f"{name} gradient sum", 2 * size, size, phase, holds_bytes=made_bytes)
            releases = (self.sums[number],) if name == last else ()
            yield add.replace(keeps=self.sums[: number + 1], releases=releases)


# Unfused causal attention of a slice of each sequence, whose queries attend to all earlier keys.
#
# A slice of l tokens that ends at token n has scores of l rows and n columns, of which the kernels
# compute all. Its scores are saved; over all slices they are fewer than those of whole sequences,
# the sum of l n in place of s^2. Keys and values stay on the rank, and their gradients are sums, as
# in fused slices.
#
# Source: TeraPipe (Li et al. 2021, arXiv 2102.07988, Section 3.2; zhuohan123/terapipe,
# transformer_models.py: MultiheadLMAttentionWithCache), which joins new keys and values with those
# of earlier slices by a copy, and masks and normalizes the scores.


def unfused_attention_of_slice(
    core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor, *, drops_out: bool
) -> Tensor:
    """Record separate kernels on the microbatch's slice, which save its scores."""
    part = core.tape.microbatch.part
    assert part, "the microbatch has whole sequences"
    keys = _KeptOperand.of(core, part, "key", core.head_size)
    values = _KeptOperand.of(core, part, "value", core.value_size)
    scores = _query_key_product(core, keys, query_key)
    # The fused kernel reads scores of keys up to the query alone.
    (s, n), size = (core.seq_length, keys.num_tokens), scores.num_bytes
    read_bytes = size * (2 * n - s) // (2 * n)
    probabilities = softmax_of_scores(core, scores, read_bytes, size, drops_out=drops_out)
    return _over_value(core, values, probabilities, value)


@dataclass(frozen=True, slots=True)
class _KeptOperand:
    """The keys or the values of all slices so far, and the gradients that later slices give them.

    Args:
        core: the rank's heads.
        part: the slice.
        name: key or value.
        width: channels of a head.
        tensors, sums: [slices], what each slice computes, and the sum of its gradients.
        repeated: keys or values of all slices so far, for each query head; None without groups.
    """

    core: AttentionCore
    part: SequenceSlice
    name: str
    width: int
    tensors: tuple[Tensor, ...]
    sums: tuple[Tensor, ...]
    repeated: Tensor | None

    @classmethod
    def of(cls, core: AttentionCore, part: SequenceSlice, name: str, width: int) -> _KeptOperand:
        tape, channels = core.tape, core.groups * width
        tensors = tape.kept_tensors(f"{name}s", channels)
        sums = tape.kept_tensors(f"sum of {name} gradients", channels)
        rows = tape.microbatch.sequences * (part.earlier_tokens + core.seq_length)
        repeated = None
        if core.groups != core.heads:
            repeated = tape.tensor(f"repeated {name}s", rows, core.heads * width)
        return cls(core, part, name, width, tensors, sums, repeated)

    @property
    def num_tokens(self) -> int:
        return self.part.earlier_tokens + self.core.seq_length

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors[: self.part.number + 1])

    @property
    def computed(self) -> Tensor:
        return self.tensors[self.part.number]

    def joins(self) -> Iterator[Op]:
        """Join the slice's keys or values with those of earlier slices, and repeat them."""
        size, computed = self.num_bytes, self.computed
        if self.part.number:
            held_bytes = computed.num_bytes + size
            join = elementwise(f"{self.name}s joined", size, size, holds_bytes=held_bytes)
            yield join.replace(keeps=(computed,))
        if self.repeated:
            repeat = elementwise(self.repeated.name, size, self.repeated.num_bytes)
            yield repeat.replace(saves=(self.repeated,))

    def multiplied(self, op: Op, *, is_last_use: bool = False) -> Op:
        """Return a product that reads the keys or values, with what it keeps or releases.

        Those of earlier slices are counted by their own passes.
        """
        computed = self.computed
        held_bytes = op.holds_bytes - (self.num_bytes - computed.num_bytes)
        if self.repeated:  # the product's operand, in addition to the kept tensor
            held_bytes = op.holds_bytes + computed.num_bytes
            op = op.replace(reads=(*op.reads, self.repeated))
        if is_last_use:
            return op.replace(holds_bytes=held_bytes, releases=(computed,))
        return op.replace(holds_bytes=held_bytes, keeps=(computed,))

    def gradient_sums(self, product: Op) -> Iterator[Op]:
        """Run the product that computes gradients, and add them to those of later slices."""
        number, size, repeated = self.part.number, self.num_bytes, self.repeated
        ops = [product]
        if repeated:
            ops.append(gradient(repeated.name, repeated.num_bytes, size))
        if self.part.is_last:
            *before, last = ops
            yield from before
            yield last.replace(keeps=self.sums[:number])
            return
        yield from ops
        name, phase = f"{self.name} gradient sum", Phase.INPUT_GRADIENT
        add = elementwise(name, 2 * size, size, phase, holds_bytes=2 * size)
        yield add.replace(keeps=self.sums[: number + 1], releases=(self.sums[number],))


def _query_key_product(
    core: AttentionCore, keys: _KeptOperand, query_key: tuple[Tensor, ...]
) -> Tensor:
    """Record QKᵀ. `baddbmm` requires an addend as large as the scores, and ignores it."""
    tape, (s, n, d) = core.tape, (core.seq_length, keys.num_tokens, core.head_size)
    rows, phase = tape.microbatch.sequences * core.heads * s, Phase.INPUT_GRADIENT
    scores = tape.tensor("scores", rows, n)
    query = tape.tensor("query", tape.microbatch.sequences * s, core.heads * d)
    product = core.product("QKᵀ", (s, n, d), Phase.FORWARD, saves=(query,))
    forward = [*keys.joins(), keys.multiplied(product.replace(buffer_bytes=scores.num_bytes))]
    of_query = core.product("QKᵀ query gradient", (s, d, n), phase)
    of_keys = core.product("QKᵀ key gradient", (n, d, s), phase, reads=(query,))
    backward = [keys.multiplied(of_query, is_last_use=True), *keys.gradient_sums(of_keys)]
    tape.record("QKᵀ", query_key, (scores,), forward, backward)
    return scores


def _over_value(
    core: AttentionCore, values: _KeptOperand, probabilities: Tensor, value: Tensor
) -> Tensor:
    """Record attention over V and the merge of heads."""
    output, name, phase = core.output(), "attention over V", Phase.INPUT_GRADIENT
    s, n, d = core.seq_length, values.num_tokens, core.value_size
    product = core.product(name, (s, d, n), Phase.FORWARD, saves=(probabilities,))
    forward = [
        *values.joins(),
        values.multiplied(product),
        elementwise("merge heads", output.num_bytes, output.num_bytes),
    ]
    of_scores = core.product(f"{name} scores gradient", (s, n, d), phase)
    of_values = core.product(f"{name} value gradient", (n, d, s), phase, reads=(probabilities,))
    backward = [values.multiplied(of_scores, is_last_use=True), *values.gradient_sums(of_values)]
    core.tape.record(name, (probabilities, value), (output,), forward, backward)
    return output
