"""Actions of a pipeline rank, written as in PyTorch's schedule CSV.

`2F0` is one pass. `(2F1;3B0)OVERLAP_F_B` is a merged pass: a forward and a backward pass of two
microbatches, whose kernels and collectives a rank runs side by side.
"""

import re
from typing import Literal, NamedTuple, Self, TypeAlias, cast, get_args

from simtrain.errors import InputError, Problem

Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_PASSES: dict[Kind, str] = {
    "F": "forward pass",
    "B": "backward pass",
    "I": "backward pass for input gradients",
    "W": "backward pass for weight gradients",
}
_SHORT_PASSES: dict[Kind, str] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradients",
    "W": "weight gradients",
}
_GRAMMAR = re.compile(r"(0|[1-9][0-9]{0,8})([FBIW])(0|[1-9][0-9]{0,8})", re.ASCII)
"""Orders are arrays of 64-bit integers that combine both numbers, so they have nine digits."""
_MERGED = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")


class Action(NamedTuple):
    """One pass of a rank: one microbatch through one of its chunks.

    Args:
        virtual_stage: the chunk's position in the whole pipeline; the schedule's placement has
            its rank.
        kind: F (forward), B (full backward), I (input gradient only) or W (weight gradient only).
        microbatch: counted from 0.

    A tuple is cheap to create and to look up; a schedule has hundreds of thousands of actions.
    """

    virtual_stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.virtual_stage}{self.kind}{self.microbatch}"

    def in_short(self) -> str:
        """Description for a column of a table: "backward of microbatch 0"."""
        return f"{_SHORT_PASSES[self.kind]} of microbatch {self.microbatch}"

    def words_on(self, stage: int) -> str:
        """Description on a stage, for readers who do not know the short form.

        The virtual stage is named if its number is not that of the stage.
        """
        where = "" if self.virtual_stage == stage else f" on virtual stage {self.virtual_stage}"
        return f"{_PASSES[self.kind]} of microbatch {self.microbatch}{where}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `2F0`: virtual stage 2, forward, microbatch 0.

        Raises:
            InputError: the text is not an action (E401).
        """
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise InputError([_not_an_action(text)])
        virtual_stage, kind, microbatch = match.groups()
        return cls(int(virtual_stage), cast(Kind, kind), int(microbatch))


class MergedActions(NamedTuple):
    """A forward pass and a backward pass (B or I) of another microbatch, run side by side."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"

    def in_short(self) -> str:
        """Description for a column of a table: "forward of microbatch 1, backward of 0"."""
        return f"{self.forward.in_short()}, backward of {self.backward.microbatch}"

    def words_on(self, stage: int) -> str:
        backward = self.backward.words_on(stage)
        return f"{self.forward.words_on(stage)}, merged with the {backward}"


Cell: TypeAlias = Action | MergedActions
"""What a rank runs at a time: a cell of its line in a schedule's CSV."""


def actions_of(cell: Cell) -> tuple[Action, ...]:
    """Return the action of a cell, or both that are merged."""
    return tuple(cell) if isinstance(cell, MergedActions) else (cell,)


def parse_cell(text: str) -> Cell:
    """Parse `2F0`, or `(2F1;3B0)OVERLAP_F_B`.

    Raises:
        InputError: the text is neither (E401), or its actions cannot be merged (E409).
    """
    match = _MERGED.fullmatch(text)
    if match is None:
        return Action.parse(text)
    merged = MergedActions(*map(Action.parse, match.groups()))
    if problem := merging_problem(*merged):
        raise InputError([problem])
    return merged


def merging_problem(first: Action, second: Action) -> Problem | None:
    """Return why two actions cannot run side by side; None if they can."""
    kinds, cannot = first.kind + second.kind, f"{first} and {second} cannot be merged"
    if kinds not in ("FB", "FI"):
        reason = "only a forward pass (F) and then a backward pass (B or I) run side by side"
        return Problem("E409", cannot, reason=reason, fix="write them in separate cells")
    if first.microbatch == second.microbatch:
        reason = "a backward pass waits for all forward passes of its own microbatch"
        return Problem("E409", cannot, reason=reason, fix="merge passes of two microbatches")
    return None


def _not_an_action(text: str) -> Problem:
    return Problem(
        code="E401",
        message=f"{text!r} is not an action",
        reason="an action is virtual stage, kind (F, B, I or W), microbatch, without spaces; both "
        "numbers have at most nine digits",
        fix='write for example "2F0": virtual stage 2, forward, microbatch 0',
    )
