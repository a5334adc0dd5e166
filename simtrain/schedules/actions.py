"""One action of a pipeline rank, written as in PyTorch's schedule CSV: `2F0`."""

import re
from typing import Literal, NamedTuple, Self, cast, get_args

from simtrain.errors import InputError, Problem

Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_PASSES: dict[Kind, str] = {
    "F": "forward pass",
    "B": "backward pass",
    "I": "backward pass for input gradients",
    "W": "backward pass for weight gradients",
}
_GRAMMAR = re.compile(r"(0|[1-9][0-9]*)([FBIW])(0|[1-9][0-9]*)", re.ASCII)


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

    @property
    def in_words(self) -> str:
        """Description for readers who do not know the short form."""
        on = f"of microbatch {self.microbatch} on virtual stage {self.virtual_stage}"
        return f"{_PASSES[self.kind]} {on}"

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


def _not_an_action(text: str) -> Problem:
    return Problem(
        code="E401",
        message=f"{text!r} is not an action",
        reason="an action is virtual stage, kind (F, B, I or W), microbatch, without spaces",
        fix='write for example "2F0": virtual stage 2, forward, microbatch 0',
    )
