"""The division of time by a made-up clock, and bytes of kernels by data type."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import pytest
import torch

from calibrate.benchmarks import collectives, kernels, timing
from calibrate.benchmarks.kernels import host_points, kernel_points
from calibrate.benchmarks.measure import Share, in_time
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.sizes import Sizes, sizes_for
from calibrate.benchmarks.timing import RandomData, Timer
from calibrate.records.file import MeasurementPoint
from calibrate.records.schema import KernelRecord

pytestmark = pytest.mark.slow  # imports torch


def test_kernels_of_fp32_move_more_bytes_than_those_of_bf16() -> None:
    def moved(sizes: Sizes) -> dict[str, float]:
        points = kernel_points(sizes, Timer("cpu", 1.0))
        count = sizes.kernel_elements[0]
        kernels = [point.what for point in points if point.kind is KernelRecord]
        return {each["name"]: each["num_bytes"] / count for each in reversed(kernels)}

    sizes = sizes_for("cpu", quick=True)
    narrow, wide = (moved(replace(sizes, compute=dtype)) for dtype in ("bf16", "fp32"))
    assert (narrow["layer norm"], wide["layer norm"]) == (4, 8)
    assert (narrow["dropout gradient"], wide["dropout gradient"]) == (5, 9)  # a mask of bytes
    # Without a 16-bit weight, a step of Adam has none to write.
    assert (narrow["Adam step"], wide["Adam step"]) == (38, 32)
    # Five passes over fp32 logits read, and three write; 16-bit logits are cast first.
    assert (narrow["cross entropy"], wide["cross entropy"]) == (38, 32)


def test_random_numbers_are_handed_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_CACHE_BYTES", {"cpu": 16 * 4})
    data = RandomData("cpu", torch.float32)
    first, rest, again = data.take(2, 5), data.take(6), data.take(3)
    assert torch.equal(again, first.flatten()[:3])  # all 16 numbers were taken
    whole = torch.cat([first.flatten(), rest])
    assert torch.equal(data.take(20), torch.cat([whole, whole[:4]]))


def test_parts_take_the_time_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that each part moves; a repeated part takes its share of a sample."""
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def part(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    timer = Timer("cpu", 1.0, clock=lambda: now[0])
    assert [each.median_s for each in timer.time_parts([part(0.25), part(0.5)])] == [0.25, 0.5]
    assert timer.time([part(0.001)]).median_s == pytest.approx(0.001)
    assert timer.once(part(0.25), part(0.5)) == [0.75, 0.75]
    assert collectives._time_between(part(0.25), part(0.5), timer).median_s == 0.5


def test_the_host_steps_adam_with_its_share_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [(torch.get_num_threads(), "")]
    monkeypatch.setattr(torch, "set_num_threads", lambda number: used.append((number, "")))
    monkeypatch.setattr(kernels, "num_processors", lambda: 9)
    monkeypatch.setattr(Timer, "time", lambda timer, runs: used.append((0, timer.device)))
    sizes = replace(sizes_for("cuda", quick=True), host_bytes=(600,))
    for ranks in (4, 16):
        *_, adam = host_points(sizes, Timer("cuda", 1.0, Ranks(0, ranks, ranks)))
        assert adam.measure() and adam.what["num_bytes"] == 21 * 28
    assert used[1:] == [(2, ""), (0, "cpu"), used[0], (1, ""), (0, "cpu"), used[0]]


class Clock:
    """A clock that stands still until a point is measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def point(name: str) -> MeasurementPoint:
    return MeasurementPoint(KernelRecord, {"name": name}, dict)


def measured(seconds: Mapping[str, float], budget_s: float, *parts: tuple[float, str]) -> str:
    """Return the names of the points that are measured, each of which takes its seconds."""
    clock, names = Clock(), ""
    shares = [Share(weight, [point(name) for name in names]) for weight, names in parts]
    for each in in_time(shares, budget_s, clock):
        names += each.what["name"]
        clock.now_s += seconds[each.what["name"].lower()]
    return names


def test_a_long_time_measures_all_parts_in_order() -> None:
    assert measured({"a": 1, "b": 1}, 100, (1, "aaa"), (3, "bb")) == "aaabb"


def test_a_slow_part_takes_no_time_from_the_others() -> None:
    """The first has 10 of 40 s, for two points; the other two points come last."""
    assert measured({"a": 5, "b": 3}, 40, (1, "aaaa"), (3, "bbbb")) == "aabbbbaa"
    assert measured({"a": 5, "b": 7}, 40, (1, "aaaa"), (3, "bbbb")) == "aabbbba"


def test_nothing_begins_after_the_last_second() -> None:
    """However slow the machine is, at most one point is on its way when the time is over."""
    for slow, budget_s in product((1.0, 10.0, 1000.0), (10.0, 120.0)):
        count = len(measured({"a": slow, "b": slow}, budget_s, (1, "a" * 50), (1, "b" * 50)))
        assert (count - 1) * slow < budget_s or count == 100
        # Both parts begin if each has time for a point.
        assert count >= min(2, budget_s // slow)
