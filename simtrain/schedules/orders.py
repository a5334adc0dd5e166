"""GPipe, 1F1B and interleaved 1F1B, in Megatron-LM's order (core/pipeline_parallel/schedules.py).

All three have the same form: warm-up forwards, then alternating forwards and backwards, then the
remaining backwards. They differ in the number of warm-up forwards and in the order of the chunks.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np

from simtrain.errors import InputError, Problem
from simtrain.schedules.actions import KINDS
from simtrain.schedules.names import ScheduleName
from simtrain.schedules.schedule import Ints, Schedule


def gpipe(p: int, n: int) -> Schedule:
    """Run all n forwards, then all n backwards, on p stages. Raises InputError (E411)."""
    return build("gpipe", p, 1, n)


def one_f_one_b(p: int, n: int) -> Schedule:
    """1F1B of n microbatches on p stages: `forward_backward_pipelining_without_interleaving`.

    With p = 1 this is `forward_backward_no_pipelining`: F0 B0 F1 B1 ... Raises InputError (E411).
    """
    return build("1f1b", p, 1, n)


def interleaved(p: int, m: int, n: int) -> Schedule:
    """Interleaved 1F1B: `forward_backward_pipelining_with_interleaving`.

    It has p stages, m chunks per stage and n microbatches in groups of p. Raises InputError (E411,
    or E413 when p does not divide n).
    """
    return build("interleaved", p, m, n)


def build(schedule_name: ScheduleName, p: int, m: int, n: int) -> Schedule:
    """Build the named schedule on p stages with m chunks per stage and n microbatches.

    Raises:
        InputError: a count is below 1 (E411), m > 1 without interleaving (E412), or p does not
            divide n with interleaving (E413).
    """
    _check_counts(schedule_name, p, m, n)
    ranks, turns = np.arange(p)[:, None], np.arange(m * n)
    warmups = np.array([num_warmup_forwards(schedule_name, rank, p, m, n) for rank in range(p)])
    num_warmup = warmups[:, None]
    chunk, microbatch = _turns(m, n, p if schedule_name == "interleaved" else n)
    # Warm-up forwards, then alternating forwards and backwards, then the remaining backwards.
    forward = np.where(turns < num_warmup, turns, 2 * turns - num_warmup)
    backward = np.where(turns < m * n - num_warmup, num_warmup + 2 * turns + 1, m * n + turns)
    actions = np.empty((3, p, 2 * m * n), np.int32)
    for place, kind, chunks in ((forward, "F", chunk), (backward, "B", m - 1 - chunk)):
        actions[0, ranks, place] = chunks * p + ranks
        actions[1, ranks, place] = KINDS.index(kind)
        actions[2, ranks, place] = microbatch
    starts = np.arange(p + 1, dtype=np.int32) * (2 * m * n)
    return Schedule(schedule_name, p, m, n, starts, *actions.reshape(3, -1))


def num_warmup_forwards(schedule_name: ScheduleName, rank: int, p: int, m: int, n: int) -> int:
    """Number of forwards before a rank's first forward-backward pair.

    Sources: Megatron-LM `forward_backward_pipelining_without_interleaving` for 1F1B and
    `get_pp_rank_microbatches` for the interleaved schedule (microbatch groups of size p).
    """
    match schedule_name:
        case "gpipe":
            return n
        case "1f1b":
            return min(p - rank - 1, n)
        case "interleaved":
            return min(2 * (p - rank - 1) + (m - 1) * p, m * n)
        case _:
            assert_never(schedule_name)


def _turns(m: int, n: int, group: int) -> tuple[Ints, Ints]:
    """Megatron's schedule table: for each group of microbatches, each chunk in turn runs the group.

    Returns the chunk (0 is the first to run) and the microbatch of each forward, both of shape
    [m * n].
    """
    turns = np.arange(m * n)
    return turns // group % m, turns // (m * group) * group + turns % group


def _check_counts(name: ScheduleName, p: int, m: int, n: int) -> None:
    counts = {"stages": p, "chunks per stage": m, "microbatches": n}
    problems = [
        Problem(code="E411", message=f"{count} {what}", fix="give 1 or more")
        for what, count in counts.items()
        if count < 1
    ]
    if not problems and name != "interleaved" and m > 1:
        problems.append(_needs_interleaving(name, m))
    if not problems and name == "interleaved" and n % p:
        problems.append(_ragged_groups(p, n))
    if problems:
        raise InputError(problems)


def _needs_interleaving(name: ScheduleName, m: int) -> Problem:
    return Problem(
        code="E412",
        message=f"schedule {name} with {m} chunks per stage",
        reason="only the interleaved schedule gives a stage more than one chunk",
        fix="use the interleaved schedule, or one chunk per stage",
    )


def _ragged_groups(p: int, n: int) -> Problem:
    below, above = n - n % p, n - n % p + p
    nearest = f"{below} or {above}" if below else f"{above}"
    return Problem(
        code="E413",
        message=f"{n} microbatches on {p} interleaved stages",
        reason=f"each chunk runs microbatches in groups of {p}, one per stage",
        fix=f"use {nearest} microbatches",
    )
