"""Rings of keys and values on the engine: hidden and exposed time."""

from dataclasses import dataclass

import pytest

from simtrain.base.mesh import Group
from simtrain.engine import Engine
from simtrain.iteration.programs.pass_tasks import PassMachine, simulate_pass
from simtrain.scenario import RecomputePolicy
from simtrain.workload.blocks import attention
from simtrain.workload.chunk import Chunk
from simtrain.workload.issue import OverlapPolicy
from simtrain.workload.ops import Tensor
from simtrain.workload.passes import Pass, PassKind, PassOptions, record_pass
from simtrain.workload.tape import Context, Microbatch, Tape
from simtrain.workload.work import Collective, CollectiveKind, FusedAttention, Work


@dataclass(frozen=True, slots=True)
class AttentionOnly:
    """Block with attention only."""

    fused: bool = True
    is_unit: bool = True
    head_size: int = 8
    groups: int | None = None

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Compute attention from concatenated queries, keys and values."""
        return attention(tape, x, self.head_size, self.groups, fused=self.fused, drops_out=False)


def attention_s(
    num_ranks: int, kernel_s: float, send_s: float, kind: PassKind, engine: Engine = "auto"
) -> float:
    """Return the time of a ring with kernels of `kernel_s` and sends of `send_s` per block."""
    group = Group(("cp",), num_ranks, num_ranks)
    context = Context(group, Group(("cp",), 1, 1), group, "p2p")
    batch = Microbatch(16, 1, 48, Group(("tp",), 1, 1), context=context)
    block_bytes = 2 * (16 * 16 * 2)

    def seconds(work: Work) -> float:
        match work:
            case FusedAttention():
                return kernel_s
            case Collective(CollectiveKind.SEND, num_bytes, _):
                return send_s * num_bytes / block_bytes
        return 0.0

    options = PassOptions(batch, OverlapPolicy())
    one = Pass(Chunk(((AttentionOnly(), 1),)), kind, RecomputePolicy(), options)
    machine = PassMachine(seconds, 0.0, lambda work: 0.0 if isinstance(work, Collective) else 1.0)
    return simulate_pass(record_pass(one), machine, engine).duration_s


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("send_s", [0.0, 0.75, 1.0, 1.5, 4.0])
def test_a_ring_exposes_the_excess_of_sends_over_kernels(num_ranks: int, send_s: float) -> None:
    """Each forward step except the last hides the send of a block. In the backward pass the first
    step hides a block, the last step gradients, and the others both.
    """
    rest = num_ranks - 1
    forward_s = num_ranks + rest * max(0.0, send_s - 1)
    assert attention_s(num_ranks, 1.0, send_s, "F") == pytest.approx(forward_s)
    ends_s, between_s = 2 * max(0.0, send_s - 1), (rest - 1) * max(0.0, 2 * send_s - 1)
    backward_s = num_ranks + ends_s + between_s
    assert attention_s(num_ranks, 1.0, send_s, "B") == pytest.approx(backward_s)
