"""What a pipeline schedule answers: its actions, its messages, and what is legal.

A family has a schedule for each number of stages, chunks and microbatches. Everything that others
ask of a schedule by name is asked here, so that a new one is a class in a file of its own and a
line of `registry.py`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Self

import numpy as np

from simtrain.errors import Problem
from simtrain.schedules.exchanges import ExchangeSlots, Messages, slots_of_blocks
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement, looped
from simtrain.schedules.vocabulary.split import VocabularySplit
from simtrain.schedules.window import most_outstanding

_NEAREST = 4
"""Legal numbers of microbatches that errors try to suggest."""
_REACH = 64
"""How far from the refused number they look, apart from multiples of the number of stages."""


class ScheduleFamily(ABC):
    """The schedules of one name.

    In the methods, p is the number of stages (ranks of the pipeline), m the number of chunks per
    stage, and n the number of microbatches.
    """

    name: ClassVar[str]
    """What a scenario writes as its schedule."""
    is_of_file: ClassVar[bool] = False
    """Whether a file has the order of its actions."""
    has_chunks: ClassVar[bool] = False
    """Whether each stage has several chunks; otherwise it has one."""
    num_chunks: ClassVar[int | None] = None
    """The only number of chunks that a stage can have, if there is only one above 1."""
    splits_backwards: ClassVar[bool] = False
    """Whether backward passes are split into input and weight gradients (I and W)."""
    blocks: bool = True
    """Whether it is of a framework whose transfers can block, which says what messages share an
    exchange (`blocking_slots`). Other orders block only if a scenario asks for it.
    """
    overlaps: bool = True
    """Whether its framework sends messages beside compute (overlap.pipeline)."""
    exchanges_shapes: ClassVar[bool] = False
    """Whether it says when blocking exchanges of shapes precede overlapped transfers."""
    aligns_reductions: ClassVar[bool] = True
    """Whether its framework can start the gradient reductions of all stages together. Otherwise
    they do so only if a scenario asks for it.
    """
    gathers_by_chunk: ClassVar[bool] = False
    """Whether its framework gathers parameters ahead, chunk by chunk (align_parameter_gather)."""
    alternates: ClassVar[bool] = False
    """Whether on one chunk each forward pass of the last stage is followed by its backward pass."""
    validates_steps: ClassVar[bool] = False
    """Whether its framework can run the optimizer before the norm of all stages exists."""
    torch_names: ClassVar[tuple[str, ...]] = ()
    """Names of the same order in PyTorch's pipelining, in lower case."""
    chooses_groups: ClassVar[bool] = False
    """Whether a scenario may set the size of its groups of microbatches (`in_groups`)."""

    cuts_sequences: ClassVar[bool] = False
    """Whether its passes run slices of sequences, into which a scenario cuts them (`in_slices`)."""
    splits_vocabulary: ClassVar[bool] = False
    """Whether a scenario may split the vocabulary over its stages (parallelism.vocabulary)."""
    vocabulary: VocabularySplit | None = None
    """How it splits the vocabulary over its stages; None if the first and the last one hold it."""

    can_merge: ClassVar[bool] = False
    """Whether a scenario may let it merge passes (overlap.merged_passes)."""
    merges: bool = False
    """Whether some forward passes run merged with backward passes."""

    @abstractmethod
    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return the rank of each virtual stage; by default, they loop over the ranks.

        Any m is asked for, also if `allows_chunks` refuses it.
        """
        return looped(p, m)

    def allows_chunks(self, m: int) -> bool:
        """Return whether a scenario may give each stage m chunks."""
        return (m > 1) is self.has_chunks and self.num_chunks in (None, m)

    def problems(self, p: int, m: int, n: int) -> Iterator[Problem]:
        """Yield why no schedule has these sizes; nothing if it has one."""
        counts = {"stages": p, "chunks per stage": m, "microbatches": n}
        for what, count in counts.items():
            if count < 1:
                yield Problem("E411", f"{count} {what}", fix="give 1 or more")
        if min(counts.values()) > 0 and (reason := self.uneven_groups(p, m, n)):
            near = [*self.near_microbatches(p, m, n)]
            sides = [number for number in near if number < n][:1]
            sides += [number for number in near if number > n][:1]
            nearest = " or ".join(map(str, sides))
            yield Problem(
                "E413",
                f"{n} microbatches on {p} stages of {m} chunks",
                reason=reason,
                fix=f"use {nearest} microbatches" if nearest else "use other groups",
            )
        if m > 1 and not self.has_chunks:
            yield Problem(
                "E412",
                f"schedule {self.name} with {m} chunks per stage",
                reason="only interleaved schedules give a stage more than one chunk",
                fix="use the interleaved schedule, or one chunk per stage",
            )
        if self.num_chunks not in (None, m):
            yield Problem(
                "E412",
                f"schedule {self.name} with {m} chunks per stage",
                reason=f"it places {self.num_chunks} chunks on each stage",
                fix=f"use {self.num_chunks} chunks per stage",
            )

    def merging(self) -> ScheduleFamily:
        """Return the same schedules with merged passes; itself if they always or never merge."""
        return self

    def splitting(self, vocabulary: VocabularySplit | None) -> Self:
        """Return the same schedules with a split of the vocabulary; itself without one.

        Their transfers are asynchronous: no framework says which of them share an exchange with
        vocabulary passes.
        """
        if vocabulary is None:
            return self
        return self.with_options(vocabulary=vocabulary, blocks=False, overlaps=True)

    def with_options(self, **options: object) -> Self:
        """Return the same schedules with these options, and with all others as they are."""
        changed = copy.copy(self)
        for name, value in options.items():
            object.__setattr__(changed, name, value)  # families with options are frozen
        return changed

    def allows_vocabulary(self, vocabulary: VocabularySplit) -> bool:
        """Return whether it can have a split of the vocabulary."""
        return self.splits_vocabulary

    def in_groups(self, size: int | None) -> ScheduleFamily:
        """Return the same schedules with groups of `size` microbatches; None for the default."""
        return self

    def in_slices(self, number: int) -> ScheduleFamily:
        """Return the same schedules with sequences in slices, if their passes run slices."""
        return self

    def group_sizes(self, p: int, m: int, n: int) -> Iterator[int]:
        """Yield the sizes of groups that a scenario may choose, the smallest first."""
        yield from ()

    def uneven_groups(self, p: int, m: int, n: int) -> str:
        """Return why legal p and m cannot run n microbatches; "" if they can."""
        return ""

    def near_microbatches(self, p: int, m: int, n: float) -> Iterator[int]:
        """Yield legal numbers of microbatches, the nearest to n first."""
        numbers = {*range(max(1, int(n) - _REACH), int(n) + _REACH)}
        numbers |= {p * max(1, int(n) // p + step) for step in range(-1, 3)}
        legal = (number for number in numbers if not self.uneven_groups(p, m, number))
        yield from sorted(legal, key=lambda number: (abs(number - n), number))[:_NEAREST]

    def most_outstanding(self, p: int, m: int, n: int) -> int:
        """Return the most forward passes of the first stage that wait for their backward pass."""
        return int(most_outstanding(self.build(p, m, n))[0])

    def blocking_slots(self, messages: Messages) -> ExchangeSlots:
        """Return the slots of the actions and of the blocking exchanges between them.

        By default, one call after each action sends its output and receives the next action's
        input, as Megatron-LM's 1F1B does between the passes of its steady phase.
        """
        return slots_of_blocks(messages, messages.schedule.cell, np.True_)

    def shape_slots(self, messages: Messages) -> ExchangeSlots:
        """Return the slots if a blocking exchange of shapes precedes each overlapped transfer."""
        raise NotImplementedError(self.name)
