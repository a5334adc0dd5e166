"""Hypothesis strategies for schedules."""

import random
from collections.abc import Iterable

from hypothesis import strategies as st

from simtrain.schedules import (
    NAMED,
    Action,
    Schedule,
    StagePlacement,
    back_and_forth,
    build,
    looped,
)


def placements() -> st.SearchStrategy[StagePlacement]:
    """Draw a placement of up to 3 chunks on each of up to 4 ranks."""
    kinds = st.sampled_from([looped, back_and_forth])
    return st.builds(lambda kind, p, m: kind(p, m), kinds, st.integers(1, 4), st.integers(1, 3))


def schedules(names: Iterable[str] = tuple(NAMED)) -> st.SearchStrategy[Schedule]:
    """Draw a schedule of any name with up to 6 stages, 3 chunks per stage and 12 microbatches.

    Schedules whose groups have a size of choice have the default, the smallest or a larger one.
    """

    def build_one(name: str, p: int, m: int, groups: int, n: int, larger: int) -> Schedule:
        family = NAMED[name]
        chunks = family.num_chunks or (m if family.has_chunks else 1)
        p += any(family.near_microbatches(p, chunks, n)) is False
        legal = [*family.near_microbatches(p, chunks, n)]
        n = n if n in legal else legal[groups]
        sizes = [None, *family.group_sizes(p, chunks, n)]
        return build(name, p, chunks, n, sizes[larger % len(sizes)])

    return st.builds(
        build_one,
        name=st.sampled_from([*names]),
        p=st.integers(1, 6),
        m=st.integers(1, 3),
        groups=st.integers(1, 3),
        n=st.integers(1, 12),
        larger=st.integers(0, 5),
    )


def blocking_schedules() -> st.SearchStrategy[Schedule]:
    """Draw a schedule whose messages can be exchanged with blocking calls."""
    return schedules(name for name, family in NAMED.items() if family.blocks)


def random_order(placement: StagePlacement, n: int, seed: int) -> Schedule:
    """Return random actions that can run; some backward passes are split."""
    choice, num_stages = random.Random(seed), placement.num_virtual_stages
    splits = {
        (stage, microbatch): choice.random() < choice.choice((0, 0.5, 1))
        for stage in range(num_stages)
        for microbatch in range(n)
    }
    ready = [Action(0, "F", microbatch) for microbatch in range(n)]
    ranks: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    while ready:
        action = ready.pop(choice.randrange(len(ready)))
        stage, kind, microbatch = action
        ranks[placement.ranks[stage]].append(action)
        if kind == "F" and stage + 1 < num_stages:
            ready.append(Action(stage + 1, "F", microbatch))
        elif kind == "F" or (kind in ("B", "I") and stage > 0):
            following = stage if kind == "F" else stage - 1
            is_split = splits[following, microbatch]
            ready.append(Action(following, "I" if is_split else "B", microbatch))
        if kind == "I":
            ready.append(Action(stage, "W", microbatch))
    return Schedule.of("random", placement, n, ranks)
