"""The least-recently-used cache: which values it returns, and which it drops."""

from simtrain.iteration.programs.pass_tasks import RecentCache


def test_the_least_recently_used_value_is_dropped() -> None:
    made: list[int] = []

    def double(number: int) -> int:
        made.append(number)
        return 2 * number

    memory = RecentCache[int, int](limit=12, size=lambda value: value)
    assert [memory.get(number, double) for number in (1, 2, 3, 1)] == [2, 4, 6, 2]
    assert made == [1, 2, 3]
    assert memory.get(2, double) == 4  # 1 and 2 were used last: 3 makes room for 4
    assert memory.get(4, double) == 8
    made.clear()
    for number in (2, 4, 3):
        memory.get(number, double)
    assert made == [3]


def test_a_value_larger_than_the_limit_is_not_cached() -> None:
    memory = RecentCache[str, int](limit=3, size=lambda value: value)
    assert memory.get("large", len) == 5
    assert memory.get("large", lambda key: 2) == 2
    assert memory.get("large", len) == 2
