"""What a schedule declares, and what follows from its orders: neither can be false."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings

from simtrain.schedules import (
    KINDS,
    NAMED,
    Custom,
    Messages,
    Order,
    ScheduleFamily,
    blocking_slots,
    most_outstanding,
    waiting_stages,
)
from tests.helpers.schedule_strategies import options_of, orders

OPTIONS = ("chooses_groups", "can_merge")


def orders_of(plain: ScheduleFamily) -> Iterator[Order]:
    """Yield orders of all options of a schedule, of up to 4 stages and each number of chunks."""
    for p in range(1, 5):
        for m in filter(plain.allows_chunks, range(1, 5)):
            for n in [*plain.near_microbatches(p, m, 2 * p)][:2]:
                for options in options_of(plain, p, m, n):
                    family = plain.with_options(options)
                    if not any(family.problems(p, m, n)):
                        yield Order(family, p, m, n)


def check_order(order: Order) -> None:
    """Assert that an order and its actions say the same."""
    actions, family = order.actions, order.family
    actions.validate()
    assert actions.placement == order.placement
    assert (order.placement.num_ranks, order.placement.interleave) == order.sizes[:2]
    assert actions.num_microbatches == order.num_microbatches
    assert (actions.merges is not None) is order.merges_passes
    assert order.kinds == tuple(
        kind for number, kind in enumerate(KINDS) if (actions.kind == number).any()
    )
    assert (order.num_actions == actions.num_actions).all()
    assert family.splits_backwards or not actions.splits_backwards
    assert family.most_outstanding(*order.sizes) == most_outstanding(actions)[0]
    if family.blocks:
        assert not waiting_stages(actions)
        assert len(blocking_slots(Messages.of(actions)).action) == len(actions.kind)


def alternates(order: Order) -> bool:
    """Return whether the last stage runs F0 B0 F1 B1 ..."""
    last = [str(action) for action in order.actions.ranks[-1]]
    stage, numbers = order.num_stages - 1, range(order.num_microbatches)
    return last == [f"{stage}{kind}{number}" for number in numbers for kind in "FB"]


def check_declarations(plain: ScheduleFamily) -> None:
    """Assert that what a schedule declares is true of its orders."""
    every = [*orders_of(plain)]
    for order in every:
        check_order(order)
    allowed = {*filter(plain.allows_chunks, range(1, 5))}
    assert {order.num_chunks for order in every} == allowed != set()
    assert plain.splits_backwards is any(order.actions.splits_backwards for order in every)
    of_one_chunk = [
        order
        for order in every
        if order.family == plain and order.num_chunks == 1 < order.num_stages
    ]
    assert plain.alternates is (bool(of_one_chunk) and all(map(alternates, of_one_chunk)))
    of_options = [order.family.options for order in every]
    taken = {
        "chooses_groups": any(options.group_size for options in of_options),
        "can_merge": any(options.merges for options in of_options),
    }
    assert taken == {name: getattr(plain, name) for name in OPTIONS}
    for order in every:
        if order.family.options != plain.options:
            check_option_shows(order, replace(order, family=plain))
    if plain.is_of_megatron:
        assert not plain.splits_backwards
        assert not plain.merges
    assert all(name == name.lower() for name in plain.torch_names)


def check_option_shows(order: Order, plain: Order) -> None:
    """Assert that the actions of an order have its options."""
    actions, options = order.actions, order.family.options
    assert actions.group_size == options.group_size
    assert (actions.merges is not None) is (options.merges or plain.merges_passes)


@pytest.mark.parametrize("name", NAMED)
def test_what_a_schedule_declares_is_true_of_its_orders(name: str) -> None:
    check_declarations(NAMED[name])


@given(orders())
@settings(max_examples=80)
def test_an_order_and_its_actions_say_the_same(order: Order) -> None:
    check_order(order)


@given(orders())
@settings(max_examples=40)
def test_given_actions_are_an_order_like_any_other(order: Order) -> None:
    actions = order.actions
    given_order = replace(order, family=Custom(actions=actions))
    assert given_order.actions is actions
    assert given_order.kinds == order.kinds
    assert given_order.merges_passes is order.merges_passes
    assert given_order != order
    assert given_order == replace(order, family=Custom(actions=actions))
