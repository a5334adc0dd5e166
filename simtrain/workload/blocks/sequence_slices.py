"""Causal attention of a slice of each sequence: its queries attend to all keys up to its end.

The keys and values of each slice stay on the rank from its forward pass to its backward pass,
whatever is recomputed. The backward passes of slices run last to first. Each computes gradients of
all earlier keys and values too, which stay as a sum until the backward passes of these slices.

Source: the authors' `Seq1F1BAttn` (Sun et al. 2024), which joins the new keys and values with those
of earlier slices by a copy, and adds gradients after the kernel. Its copy of the output is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.workload.blocks.attention_core import AttentionCore
from simtrain.workload.ops import Op, Phase, Tensor, elementwise
from simtrain.workload.tape import SequenceSlice


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
        """Bytes of the keys and of the values of this slice and all earlier ones."""
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
