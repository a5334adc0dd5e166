"""Which ops of a recorded program have made the bytes that a rank holds, and until when.

Each op says which of its bytes outlive its pass and after which op they are freed
(`ProgramOp.keeps_until`), and whose bytes are freed after it (`ProgramOp.frees_of`). So what a rank
holds is a sum over the ops so far; for runs that repeat, it is a product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from simtrain.recording.program import BEFORE_STEP, EARLIER_GRADIENTS, Program, ProgramOp
from simtrain.workload.recorded_step import GRADIENTS, SAVED, TEMPORARY, Holder

PARAMETERS, OPTIMIZER_STATES, OTHER = "parameters", "optimizer states", "batch and buffers"
UNNAMED = "unnamed"
_STATES = PARAMETERS, GRADIENTS, OPTIMIZER_STATES, OTHER
_KINDS = *_STATES, SAVED, TEMPORARY, UNNAMED
_Key = tuple[str, str, str]
"""Kind, pass and name of the op that has made bytes."""


@dataclass(slots=True)
class _Sums:
    """Bytes by holder, and until when each op keeps them."""

    held: defaultdict[_Key, int] = field(default_factory=lambda: defaultdict(int))
    until: dict[_Key, tuple[int, str]] = field(default_factory=dict)

    def add(self, op: ProgramOp, phase: str, times: int) -> None:
        """Add what an op makes."""
        kept = sum(op.keeps_until.values())
        gradients = min(op.gradient_bytes, kept) if op.keeps_until else op.gradient_bytes
        saved = kept - gradients
        parts = {
            (GRADIENTS, "", op.name): gradients,
            (SAVED, phase, op.name): saved,
            (TEMPORARY, phase, op.name): op.makes_bytes - gradients - saved,
        }
        for key, num_bytes in parts.items():
            self.held[key] += times * num_bytes
        for name, num_bytes in op.keeps_until.items():
            key = (SAVED, phase, op.name) if saved else (GRADIENTS, "", op.name)
            self.until[key] = max(self.until.get(key, (0, "")), (num_bytes, name))

    def subtract(self, op: ProgramOp, phase: str, times: int) -> None:
        of_others = sum(op.frees_of.values())
        self.held[TEMPORARY, phase, op.name] -= times * (op.frees_bytes - of_others)
        for name, num_bytes in op.frees_of.items():
            self.held[_key_of(name, phase)] -= times * num_bytes


def _key_of(name: str, phase: str) -> _Key:
    """Return the holder of bytes that are freed in a pass."""
    if name in (BEFORE_STEP, EARLIER_GRADIENTS):
        return (OTHER if name == BEFORE_STEP else GRADIENTS), "", ""
    first, _, op = name.partition(" ")
    if first == GRADIENTS:
        return GRADIENTS, "", op
    return (TEMPORARY if first == phase else SAVED), first, op


def holders_at(program: Program, phase: str, place: int) -> tuple[Holder, ...]:
    """Return who holds the memory of a rank while an op runs, the most bytes of each kind first.

    Args:
        program: the recording.
        phase: pass of the op.
        place: its number in the pass.
    """
    sums, states = _Sums(), program.states
    before = states.parameters_bytes, states.gradients_bytes, states.optimizer_bytes
    for kind, num_bytes in zip(_STATES, (*before, states.other_bytes), strict=True):
        sums.held[kind, "", ""] = num_bytes
    for op, of_pass, times, is_last in _ops_until(program, phase, place):
        sums.add(op, of_pass, times)
        sums.subtract(op, of_pass, times - is_last)
    unnamed = sum(number for number in sums.held.values() if number < 0)
    holders = [
        Holder(key[0], key[2], key[1], sums.until.get(key, (0, ""))[1], number)
        for key, number in sums.held.items()
        if number > 0
    ]
    holders += [Holder(UNNAMED, "", "", "", unnamed)] * bool(unnamed)
    return tuple(sorted(holders, key=lambda each: (_KINDS.index(each.kind), -each.num_bytes)))


def _ops_until(
    program: Program, phase: str, place: int
) -> Iterator[tuple[ProgramOp, str, int, bool]]:
    """Yield the ops up to one, with their pass, how often they run, and whether it is that one."""
    for of_pass, runs in program.passes.items():
        first, is_its_pass = 0, of_pass == phase
        for run in runs:
            length = len(run.ops)
            rest = place - first if is_its_pass else run.count * length
            full, part = divmod(min(rest, run.count * length), length)
            for number, op in enumerate(run.ops):
                is_last = is_its_pass and full < run.count and number == part
                if times := full + (number < part) + is_last:
                    yield op, of_pass, times, is_last
            if is_its_pass and full < run.count:
                return
            first += run.count * length
