"""Collectives and transfers as blocks of a layer: their backward ops, bytes and times."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from simtrain.base.mesh import Group
from simtrain.durations.collectives import wire_bytes
from simtrain.iteration.plan import Plan
from simtrain.workload import blocks
from simtrain.workload.chunk import chunk_of
from simtrain.workload.ops import Op, Tensor
from simtrain.workload.passes import Pass, record_pass
from simtrain.workload.tape import Tape
from simtrain.workload.work import Collective, CollectiveKind
from tests.helpers.toys import plan_of, small

Exchange = Callable[[Tape, Tensor, Group, str], Tensor]
GROUP = Group(("cp",), 4, 4)
ROWS, WIDTH = 2048, 4096


@dataclass(frozen=True)
class Exchanged:
    """Layer of a norm, an exchange over context-parallel ranks, and another norm."""

    exchange: Exchange
    group: Group = GROUP
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        y = blocks.norm(tape, x, "before")
        return blocks.norm(tape, self.exchange(tape, y, self.group, "exchange"), "after")


def one_pass(plan: Plan, kind: Any, block: Exchanged) -> list[Op]:
    ops = record_pass(Pass(chunk_of([block]), kind, plan.scenario.recompute, plan.options)).ops
    return [op for op in ops if isinstance(op.work, Collective)]


@pytest.mark.parametrize(
    ("exchange", "there", "back", "rows"),
    [
        (blocks.all_gather, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, 4 * ROWS),
        (blocks.reduce_scatter, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER, ROWS),
        (blocks.all_to_all, CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL, ROWS),
        (blocks.send, CollectiveKind.SEND, CollectiveKind.SEND, ROWS),
    ],
)
def test_the_backward_exchange_sends_the_same_bytes(
    exchange: Exchange, there: CollectiveKind, back: CollectiveKind, rows: int
) -> None:
    plan, block = plan_of(small()), Exchanged(exchange)
    (forward,), (backward,) = (one_pass(plan, kind, block) for kind in ("F", "B"))
    expected = 2 * rows * WIDTH
    for op, kind in ((forward, there), (backward, back)):
        assert op.work == Collective(kind, expected, GROUP)
    assert isinstance(forward.work, Collective) and isinstance(backward.work, Collective)
    assert wire_bytes(forward.work) == wire_bytes(backward.work)
