"""What an iteration consists of, and what decides how many tasks it has of each part.

An iteration has many tasks and few different parts: equal parts take equal seconds. Scenarios that
differ only in sizes, links or hardware share a structure.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

from simtrain.plan import PipelineOrder, Plan
from simtrain.programs.quiet_passes import QuietRule, quiet_rule
from simtrain.workload.passes import PassKind
from simtrain.workload.slices import numbered


@dataclass(frozen=True, slots=True)
class PassPart:
    """A pass of one microbatch on a chunk, the layers of a bucket in it, or the reduction of the
    chunk's gradients (R).

    `keeps` says that it keeps everything, `is_quiet` that it exchanges less with other replicas
    than its likes (`quiet_passes`). `span` numbers buckets in the order in which the pass runs
    them, in the last backward pass or the first forward pass; None is the whole pass.
    """

    chunk: int
    kind: PassKind
    keeps: bool
    is_quiet: bool = False
    span: int | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message between two stages: sends at the same time, and how many levels it leaves."""

    num_sends: int
    levels_crossed: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """The all-gather of a scattered message."""


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host's work for an exchange of so many messages."""

    num_messages: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The reduction of a bucket's gradients, or the gather of its parameters.

    `number` counts in the order of the backward pass. `is_last` says that the bucket is the last
    one of its stage in that order.
    """

    chunk: int
    number: int
    step: int
    is_last: bool
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A field of a stage's optimizer step; without a step, an all-reduce for which stages meet."""

    name: str
    step: int | None = None


Part: TypeAlias = PassPart | Transfer | Arrival | Synchronize | Bucket | Step


@dataclass(frozen=True, slots=True)
class Structure:
    """All that decides which tasks an iteration has.

    Args:
        steps: for each stage, the number of its optimizer step among the different ones.
        step_fields: for each different step, its fields (see `workload.optimizer.STEP_FIELDS`).
        levels_crossed: how many levels a message from a stage to the next (from the last to the
            first) leaves: 0 inside a node.
        num_buckets: the buckets of each virtual stage if gradients are reduced as they come.
        gathers: parameters are gathered in the same buckets, beside the first forward passes.
        aligns_reduction, aligns_gather: all stages begin at about the same time.
        quiet: which passes exchange less with other replicas than their likes.
        reduces_after: gradients are reduced after all passes, chunk by chunk.
    """

    order: PipelineOrder
    steps: tuple[int, ...]
    step_fields: tuple[frozenset[str], ...]
    levels_crossed: tuple[int, ...]
    overlap: bool
    arrives: bool
    num_buckets: tuple[int, ...] | None
    gathers: bool
    aligns_reduction: bool
    aligns_gather: bool
    quiet: QuietRule
    reduces_after: bool


def structure_of(plan: Plan) -> Structure:
    """The structure of a plan."""
    mesh, overlap, last = plan.mesh, plan.scenario.overlap, plan.mesh.pp - 1
    neighbours = [(stage, stage + 1) for stage in range(last)] + [(last, 0)]
    num_buckets = None
    if plan.has_buckets:
        num_buckets = tuple(len(plan.buckets[one].parameters) for one in plan.slices.numbers)
    return Structure(
        plan.order,
        steps=numbered(plan.stage_parameters),
        step_fields=tuple(map(frozenset, plan.steps)),
        levels_crossed=tuple(itertools.starmap(mesh.levels_crossed, neighbours)),
        overlap=overlap.pipeline,
        arrives=plan.arrival is not None,
        num_buckets=num_buckets,
        gathers=plan.step_options.gathers_beside_forward,
        aligns_reduction=plan.has_buckets and overlap.align_gradient_reduction,
        aligns_gather=overlap.align_parameter_gather,
        quiet=quiet_rule(plan),
        reduces_after=bool(plan.reductions),
    )
