"""Hypothesis strategies for schedules."""

import itertools
import random
from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from simtrain.schedules import (
    NAMED,
    Action,
    Order,
    OrderOptions,
    Schedule,
    ScheduleFamily,
    StagePlacement,
    back_and_forth,
    looped,
)


def placements() -> st.SearchStrategy[StagePlacement]:
    """Draw a placement of up to 3 chunks on each of up to 4 ranks."""
    kinds = st.sampled_from([looped, back_and_forth])
    return st.builds(lambda kind, p, m: kind(p, m), kinds, st.integers(1, 4), st.integers(1, 3))


def schedules(names: Iterable[str] = tuple(NAMED)) -> st.SearchStrategy[Schedule]:
    """Draw the actions of an order with up to 6 stages, 4 chunks per stage and 12 microbatches."""
    return orders(names).map(lambda order: order.actions)


@st.composite
def orders(draw: st.DrawFn, names: Iterable[str] = tuple(NAMED)) -> Order:
    """Draw an order of any name, with any of its options, of up to 6 stages and 12 microbatches.

    Sizes that no order has change to sizes near by, and options that these sizes cannot have are
    left out.
    """
    plain = NAMED[draw(st.sampled_from([*names]))]
    p, n = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    m = draw(st.sampled_from([*filter(plain.allows_chunks, range(1, 5))]))
    p += any(plain.near_microbatches(p, m, n)) is False
    legal = [*plain.near_microbatches(p, m, n)]
    n = n if n in legal else draw(st.sampled_from(legal))
    for options in draw(st.permutations([*options_of(plain, p, m, n)])):
        family = plain.with_options(options)
        if not any(family.problems(p, m, n)):
            return Order(family, p, m, n)
    return Order(plain, p, m, n)


def options_of(plain: ScheduleFamily, p: int, m: int, n: int) -> Iterator[OrderOptions]:
    """Yield combinations of the options that a schedule has."""
    for group_size, merges in itertools.product(
        (None, *itertools.islice(plain.group_sizes(p, m, n), 3)), {False, plain.can_merge}
    ):
        yield OrderOptions(group_size, merges)


def blocking_schedules() -> st.SearchStrategy[Schedule]:
    """Draw the actions of an order whose messages can be exchanged with blocking calls."""
    names = [name for name, family in NAMED.items() if family.blocks]
    blocking = orders(names).filter(lambda order: order.family.blocks)
    return blocking.map(lambda order: order.actions)


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
