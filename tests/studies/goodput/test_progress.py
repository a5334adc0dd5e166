"""Positions and checkpoints in closed form against one checkpoint after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.studies.goodput.fleet import Checkpointing
from simtrain.studies.goodput.progress import Progress


class Stepwise:
    """Walks from one boundary to the next."""

    def __init__(self, each: Checkpointing) -> None:
        self.each, self.position, self.since, self.blocked = each, 0.0, 0.0, 0.0
        self.saved = [(0.0, 0.0)]

    def advance(self, now: float, elapsed: float, speed: float) -> tuple[float, float]:
        """Work until the time is over."""
        work = stopped = 0.0
        while elapsed > 0:
            if self.blocked > 0:
                step = min(self.blocked, elapsed)
                self.blocked -= step
                stopped += step
            else:
                step = min((self.each.interval_s - self.since) / speed, elapsed)
                reaches = step < elapsed or self.since + step * speed >= self.each.interval_s
                self.since += step * speed
                self.position += step * speed
                work += step * speed
                if reaches and self.since >= self.each.interval_s * (1 - 1e-12):
                    self.since, self.blocked = 0.0, self.each.blocking_s
                    loadable = now + step + self.each.blocking_s + self.each.write_s
                    self.saved.append((loadable, self.position))
            now, elapsed = now + step, elapsed - step
        return work, stopped


@given(
    interval=st.floats(10, 100),
    blocking=st.floats(0, 5),
    write=st.floats(0, 10),
    pieces=st.lists(st.tuples(st.floats(0.1, 400), st.floats(0.2, 1)), min_size=1, max_size=6),
)
def test_pieces_of_any_length_are_as_one_step_after_another(
    interval: float, blocking: float, write: float, pieces: list[tuple[float, float]]
) -> None:
    each = Checkpointing(interval, blocking, write)
    progress, stepwise, now = Progress(each), Stepwise(each), 0.0
    for elapsed, speed in pieces:
        assert progress.advance(now, elapsed, speed) == pytest.approx(
            stepwise.advance(now, elapsed, speed), abs=1e-6
        )
        now += elapsed
        assert progress.position_s == pytest.approx(stepwise.position, abs=1e-6)
        saved = max(position for loadable, position in stepwise.saved if loadable <= now + 1e-9)
        # A checkpoint may become loadable within rounding of now.
        others = [position for loadable, position in stepwise.saved if abs(loadable - now) < 1e-6]
        assert any(progress.saved_at(now) == pytest.approx(each) for each in (saved, *others))


@given(
    interval=st.floats(10, 100),
    blocking=st.floats(0, 5),
    first=st.floats(0, 300),
    rest=st.floats(1, 1000),
    speed=st.floats(0.2, 1),
)
def test_the_time_to_a_position_reaches_it(
    interval: float, blocking: float, first: float, rest: float, speed: float
) -> None:
    progress = Progress(Checkpointing(interval, blocking))
    progress.advance(0.0, first, speed)
    target = progress.position_s + rest
    progress.advance(first, progress.time_to(target, speed), speed)
    assert progress.position_s == pytest.approx(target, abs=1e-6 + interval * 1e-9)
