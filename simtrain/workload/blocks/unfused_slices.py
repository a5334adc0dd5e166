"""Unfused causal attention of a slice of each sequence, whose queries attend to all earlier keys.

A slice of l tokens that ends at token n has scores of l rows and n columns, of which the kernels
compute all. Its scores are saved; over all slices they are fewer than those of whole sequences,
the sum of l n in place of s^2. Keys and values stay on the rank, and their gradients are sums, as
in `sequence_slices`.

Source: TeraPipe (Li et al. 2021, arXiv 2102.07988, Section 3.2; zhuohan123/terapipe,
transformer_models.py: MultiheadLMAttentionWithCache), which joins new keys and values with those of
earlier slices by a copy, and masks and normalizes the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.workload.blocks.attention_core import AttentionCore
from simtrain.workload.blocks.dropout import MASK_BYTES, dropout
from simtrain.workload.blocks.eager import softmax_kernels
from simtrain.workload.ops import Op, Ops, Phase, Tensor, elementwise, gradient
from simtrain.workload.tape import SequenceSlice
from simtrain.workload.work import KernelFamily


def unfused_attention_of_slice(
    core: AttentionCore, query_key: tuple[Tensor, ...], value: Tensor, *, drops_out: bool
) -> Tensor:
    """Record separate kernels on the microbatch's slice, which save its scores."""
    part = core.tape.microbatch.part
    assert part, "the microbatch has whole sequences"
    keys = _KeptOperand.of(core, part, "key", core.head_size)
    values = _KeptOperand.of(core, part, "value", core.value_size)
    scores = _query_key_product(core, keys, query_key)
    probabilities = _softmax(core, keys, scores)
    if drops_out:
        family = KernelFamily.DROPOUT
        probabilities = dropout(core.tape, probabilities, "softmax dropout", family)
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
        """Create the tensors of a slice."""
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
        """Tokens of a sequence up to the end of the slice."""
        return self.part.earlier_tokens + self.core.seq_length

    @property
    def num_bytes(self) -> int:
        """Bytes of all slices so far."""
        return sum(tensor.num_bytes for tensor in self.tensors[: self.part.number + 1])

    @property
    def computed(self) -> Tensor:
        """What the slice computes."""
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
    scores, phase = _scores(core, keys, "scores"), Phase.INPUT_GRADIENT
    query = tape.tensor("query", tape.microbatch.sequences * s, core.heads * d)
    product = core.product("QKᵀ", (s, n, d), Phase.FORWARD, saves=(query,))
    forward = [*keys.joins(), keys.multiplied(product.replace(buffer_bytes=scores.num_bytes))]
    of_query = core.product("QKᵀ query gradient", (s, d, n), phase)
    of_keys = core.product("QKᵀ key gradient", (n, d, s), phase, reads=(query,))
    backward = [keys.multiplied(of_query, is_last_use=True), *keys.gradient_sums(of_keys)]
    tape.record("QKᵀ", query_key, (scores,), forward, backward)
    return scores


def _scores(core: AttentionCore, keys: _KeptOperand, name: str) -> Tensor:
    rows = core.tape.microbatch.sequences * core.heads * core.seq_length
    return core.tape.tensor(name, rows, keys.num_tokens)


def _softmax(core: AttentionCore, keys: _KeptOperand, scores: Tensor) -> Tensor:
    """Record the causal softmax, whose fused kernel reads scores of keys up to the query alone."""
    tape, y, size = core.tape, _scores(core, keys, "softmax output"), scores.num_bytes
    if tape.microbatch.kernels.fused_softmax:
        s, n = core.seq_length, keys.num_tokens
        held_bytes, family = 2 * size, KernelFamily.SOFTMAX
        softmax = elementwise(
            "softmax",
            size * (2 * n - s) // (2 * n),
            size,
            saves=(y,),
            holds_bytes=held_bytes,
            family=family,
        )
        forward: Ops = (softmax,)
        backward: Ops = (
            gradient("softmax", size, size, reads=(y,), holds_bytes=held_bytes, family=family),
        )
    else:
        mask_bytes = scores.rows // core.heads * scores.width * MASK_BYTES
        separate = tape.microbatch.kernels.separate_masking
        forward, backward = softmax_kernels(scores, y, mask_bytes, separate_masking=separate)
    tape.record("softmax", (scores,), (y,), forward, backward)
    return y


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
