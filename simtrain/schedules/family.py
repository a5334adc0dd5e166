"""What a pipeline schedule answers: its actions, its messages, and what is legal.

A family has a schedule for each number of stages, chunks and microbatches. Everything that others
ask of a schedule by name is asked here, so that a new one is a class in a file of its own and an
entry of the tuple in `simtrain.schedules`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar, Self

import numpy as np

from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Problem
from simtrain.schedules.actions import KINDS, Kind
from simtrain.schedules.exchanges import ExchangeSlots, Messages, slots_of_blocks
from simtrain.schedules.schedule import Ints, Schedule, most_outstanding
from simtrain.schedules.stage_placement import StagePlacement, looped

# The order of a pipeline's actions, as one value: a named schedule, its options and its sizes.


@dataclass(frozen=True)
class Order:
    """The actions of each stage, before they are laid out: equal orders have equal actions.

    Args:
        family: the schedules of a name, with options.
        num_stages: ranks of the pipeline.
        num_chunks: chunks per stage.
        num_microbatches: of each replica.
    """

    family: ScheduleFamily
    num_stages: int
    num_chunks: int
    num_microbatches: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.num_stages, self.num_chunks, self.num_microbatches

    @property
    def actions(self) -> Schedule:
        """The actions of each stage.

        Raises:
            InputError: the schedule does not have these sizes (E411 to E413, E430).
        """
        return _actions(self)

    @property
    def num_actions(self) -> Ints:
        # A cache of thousands would keep all given actions in memory.
        return self.actions.num_actions if self.family.is_given else _num_actions(self)

    @property
    def placement(self) -> StagePlacement:
        return self.family.placement(self.num_stages, self.num_chunks)

    @property
    def merges_passes(self) -> bool:
        return self.family.merges

    @property
    def kinds(self) -> tuple[Kind, ...]:
        if not self.family.splits_backwards:
            return "F", "B"  # without building it, because searches ask for thousands
        return tuple(KINDS[kind] for kind in np.flatnonzero(self.num_actions.any(axis=0)))


@functools.lru_cache(maxsize=64)
def _actions(order: Order) -> Schedule:
    if problems := [*order.family.problems(*order.sizes)]:
        raise InputError(problems)
    return order.family.build(*order.sizes)


@functools.lru_cache(maxsize=4096)
def _num_actions(order: Order) -> Ints:
    return order.actions.num_actions


# ------------------------------------------------------------------------------
# What a scenario chooses of a schedule's order, apart from its sizes.


@dataclass(frozen=True)
class OrderOptions:
    """The options of an order.

    Args:
        group_size: microbatches that a chunk runs before the next chunk does; None for the
            schedule's default.
        merges: some forward passes run merged with backward passes of other microbatches.
    """

    group_size: int | None = None
    merges: bool = False


NO_OPTIONS = OrderOptions()


_NEAREST = 4
"""Legal numbers of microbatches that errors try to suggest."""
_REACH = 64
"""How far from the refused number they look, apart from multiples of the number of stages."""


@dataclass(frozen=True)
class ScheduleFamily(ABC):
    """The schedules of one name and of some options.

    In the methods, p is the number of stages (ranks of the pipeline), m the number of chunks per
    stage, and n the number of microbatches.

    Args:
        options: those that a scenario chose and the schedule has (`with_options`).
    """

    options: OrderOptions = NO_OPTIONS

    name: ClassVar[str]
    """What a scenario writes as its schedule."""
    is_given: ClassVar[bool] = False
    """Whether its actions are given, in a file for example, and not built."""
    fewest_chunks: ClassVar[int] = 1
    """The fewest chunks that a scenario may give each stage."""
    most_chunks: ClassVar[int | None] = 1
    """The most chunks that a scenario may give each stage; None for any number."""
    chunks_per_wave: ClassVar[int] = 1
    """Chunks that each way over the pipeline adds to a stage: legal numbers are multiples of it."""
    is_of_megatron: ClassVar[bool] = False
    """Whether Megatron-LM's functions of pipelines run it. Their transfers can block, in exchanges
    of which messages `blocking_slots` says; other orders block only if a scenario asks for it.
    """
    torch_names: ClassVar[tuple[str, ...]] = ()
    """Names of the same order in PyTorch's pipelining, in lower case."""

    chooses_groups: ClassVar[bool] = False
    """Whether a scenario may set the size of its groups of microbatches (`group_size`)."""
    can_merge: ClassVar[bool] = False
    """Whether a scenario may let it merge passes (overlap.merged_passes)."""

    def __init_subclass__(cls) -> None:
        for name, value in vars(cls).items():
            is_computed = isinstance(getattr(ScheduleFamily, name, None), property)
            if is_computed and not isinstance(value, property):
                raise TypeError(f"{cls.__name__} declares {name}, which is computed: remove it")

    def __hash__(self) -> int:
        return hash((type(self), self.options))

    @abstractmethod
    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""

    def placement(self, p: int, m: int) -> StagePlacement:
        """Return the rank of each virtual stage; by default, they loop over the ranks.

        Any m is asked for, also if `allows_chunks` refuses it.
        """
        return looped(p, m)

    @property
    def splits_backwards(self) -> bool:
        return traits_of(self).splits_backwards

    @property
    def merges(self) -> bool:
        return self.options.merges or traits_of(self).merges

    @property
    def alternates(self) -> bool:
        """Whether on one chunk each forward pass of the last stage is followed by its backward
        pass.
        """
        return traits_of(self).alternates

    @property
    def has_chunks(self) -> bool:
        return self.most_chunks != 1

    @property
    def num_chunks(self) -> int | None:
        return self.fewest_chunks if self.fewest_chunks == self.most_chunks != 1 else None

    @property
    def blocks(self) -> bool:
        return self.is_of_megatron

    @property
    def overlaps(self) -> bool:
        """Whether its framework sends messages beside compute (overlap.pipeline): Megatron-LM does
        so with several chunks per stage.
        """
        return self.has_chunks or not self.blocks

    @property
    def exchanges_shapes(self) -> bool:
        return type(self).shape_slots is not ScheduleFamily.shape_slots

    @property
    def aligns_reductions(self) -> bool:
        """Whether its framework can start the gradient reductions of all stages together.

        Otherwise they do so only if a scenario asks for it.
        """
        return self.is_of_megatron

    @property
    def gathers_by_chunk(self) -> bool:
        """Whether its framework gathers parameters ahead, chunk by chunk
        (align_parameter_gather).
        """
        return self.is_of_megatron and self.has_chunks

    def allows_chunks(self, m: int) -> bool:
        is_few = self.most_chunks is None or m <= self.most_chunks
        return self.fewest_chunks <= m and is_few and m % self.chunks_per_wave == 0

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
        if m % self.chunks_per_wave:
            yield Problem(
                "E412",
                f"schedule {self.name} with {m} chunks per stage",
                reason=f"each of its waves adds {self.chunks_per_wave} chunks to a stage",
                fix=f"use a multiple of {self.chunks_per_wave}",
            )

    def with_options(self, options: OrderOptions) -> Self:
        taken = OrderOptions(
            options.group_size if self.chooses_groups else None,
            options.merges and self.can_merge,
        )
        return self if taken == self.options else replace(self, options=taken)

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


# ------------------------------------------------------------------------------
# What the orders of a schedule show of it, so that no schedule declares it.


_STAGES = range(2, 17)
"""Stages of small orders: a single stage has no bubble that weight gradients could fill."""
_ORDERS = 2
"""Small orders of a schedule that are built."""


@dataclass(frozen=True)
class Traits:
    """What small orders of a schedule show.

    Args:
        splits_backwards: some backward passes are split into input and weight gradients (I, W).
        merges: some forward passes run merged with backward passes.
        alternates: on one chunk per stage, each forward pass of the last stage is followed by its
            backward pass.
    """

    splits_backwards: bool
    merges: bool
    alternates: bool


def traits_of(family: ScheduleFamily) -> Traits:
    """Return what small orders show of a schedule without options."""
    plain = family.options == NO_OPTIONS
    return _traits(family if plain else replace(family, options=NO_OPTIONS))


@functools.cache
def _traits(family: ScheduleFamily) -> Traits:
    orders = [order.actions for order in islice(_small_orders(family), _ORDERS)]
    of_one_chunk = [actions for actions in orders if actions.placement.interleave == 1]
    return Traits(
        any(actions.splits_backwards for actions in orders),
        any(actions.merges is not None for actions in orders),
        bool(of_one_chunk) and all(map(_alternates, of_one_chunk)),
    )


def _small_orders(family: ScheduleFamily) -> Iterator[Order]:
    """Yield orders with the fewest chunks and about 2 microbatches per stage, small ones first."""
    m = family.fewest_chunks
    for p in _STAGES:
        for n in family.near_microbatches(p, m, 2 * p):
            if not any(family.problems(p, m, n)):
                yield Order(family, p, m, n)
                break


def _alternates(actions: Schedule) -> bool:
    last = slice(actions.rank_starts[-2], actions.rank_starts[-1])
    kind, microbatch = actions.kind[last], actions.microbatch[last]
    return bool(
        (kind[::2] == KINDS.index("F")).all()
        and (kind[1::2] == KINDS.index("B")).all()
        and np.array_equal(microbatch[::2], microbatch[1::2])
    )


@dataclass(frozen=True, eq=False)
class Custom(ScheduleFamily):
    """Any order, as PyTorch's `_PipelineScheduleRuntime` runs it: with asynchronous transfers.

    Orders are equal if their actions are the same object, because comparing actions takes long.

    Args:
        actions: the actions; None for the sizes of no order in particular.
    """

    actions: Schedule | None = None

    name = "custom"
    is_given = True
    fewest_chunks, most_chunks = 2, None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.actions is other.actions

    def __hash__(self) -> int:
        return id(self.actions)

    @property
    def splits_backwards(self) -> bool:
        return self.actions is not None and self.actions.splits_backwards

    @property
    def merges(self) -> bool:
        return self.actions is not None and self.actions.merges is not None

    @property
    def alternates(self) -> bool:
        return False

    def placement(self, p: int, m: int) -> StagePlacement:
        placement = self.actions and self.actions.placement
        has_sizes = placement and (placement.num_ranks, placement.interleave) == (p, m)
        return placement if placement and has_sizes else super().placement(p, m)

    def build(self, p: int, m: int, n: int) -> Schedule:
        if self.actions is None:
            raise NotImplementedError(self.name)
        return self.actions
