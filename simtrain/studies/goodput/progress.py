"""How far a training is, and what of it is saved."""

from __future__ import annotations

import math
from collections.abc import Callable

from simtrain.studies.goodput.fleet import Checkpointing


class Progress:
    """The position of a training in seconds of work, and its checkpoints.

    Work goes on at a speed (1 without slow or missing nodes). After each interval of work a
    checkpoint stops it; the state can be loaded after a write. Without `draw_write_s`, a write
    takes no longer than an interval, so only the latest two checkpoints can be unfinished; drawn
    writes of a checkpoint that is eight intervals old count as finished.

    Args:
        checkpoint: how the state is saved.
        draw_write_s: draws the time of a write; None if each takes `checkpoint.write_s`.
    """

    def __init__(
        self, checkpoint: Checkpointing, draw_write_s: Callable[[], float] | None = None
    ) -> None:
        self._draw_write_s = draw_write_s or (lambda: checkpoint.write_s)
        self._most_unfinished = 2 if draw_write_s is None else 8
        self.position_s = 0.0
        self.saved_s = 0.0
        self._checkpoint = checkpoint
        self._since_s = 0.0  # work since the last checkpoint began
        self._blocked_s = 0.0  # rest of a checkpoint's stop
        self._unfinished: list[tuple[float, float]] = []  # when loadable, position

    def time_to(self, target_s: float, speed: float) -> float:
        """Return the seconds until a position is reached, checkpoints on the way included."""
        left_s = target_s - self.position_s
        if not speed or math.isinf(left_s):
            return math.inf
        each = self._checkpoint
        # A checkpoint that would begin at the target itself is not written.
        stops = max(0, math.ceil((left_s + self._since_s) / each.interval_s) - 1)
        return self._blocked_s + left_s / speed + stops * each.blocking_s

    def advance(self, now_s: float, elapsed_s: float, speed: float) -> tuple[float, float]:
        """Work for a time; return seconds of work, and seconds for which checkpoints stopped it.

        Args:
            now_s: when the time begins.
            elapsed_s: the time.
            speed: seconds of work per second.
        """
        each = self._checkpoint
        stopped_s = min(self._blocked_s, elapsed_s)
        self._blocked_s -= stopped_s
        left_s, begin_s = elapsed_s - stopped_s, now_s + stopped_s
        to_first_s = (each.interval_s - self._since_s) / speed
        if left_s < to_first_s or self._blocked_s > 0:
            work_s = left_s * speed
            self._since_s += work_s
            self.position_s += work_s
            return work_s, stopped_s
        cycle_s = each.blocking_s + each.interval_s / speed
        full, rest_s = divmod(left_s - to_first_s, cycle_s)
        num_checkpoints = int(full) + 1
        first_position_s = self.position_s + each.interval_s - self._since_s
        oldest = max(0, num_checkpoints - self._most_unfinished)
        if oldest:
            self.saved_s = max(self.saved_s, first_position_s + (oldest - 1) * each.interval_s)
        for index in range(oldest, num_checkpoints):
            stopped_at_s = begin_s + to_first_s + index * cycle_s
            loadable_s = stopped_at_s + each.blocking_s + self._draw_write_s()
            self._unfinished.append((loadable_s, first_position_s + index * each.interval_s))
        stop_s = min(rest_s, each.blocking_s)
        self._blocked_s = each.blocking_s - stop_s
        self._since_s = (rest_s - stop_s) * speed
        end_s = first_position_s + full * each.interval_s + self._since_s
        work_s, self.position_s = end_s - self.position_s, end_s
        return work_s, stopped_s + full * each.blocking_s + stop_s

    def save(self) -> None:
        """Count everything so far as saved: a checkpoint was written while nothing else ran."""
        self.saved_s, self._since_s, self._blocked_s = self.position_s, 0.0, 0.0
        self._unfinished.clear()

    def saved_at(self, now_s: float) -> float:
        """Return the position of the newest checkpoint that can be loaded."""
        ready = [position for loadable, position in self._unfinished if loadable <= now_s]
        self._unfinished = [each for each in self._unfinished if each[0] > now_s]
        self.saved_s = max([self.saved_s, *ready])
        return self.saved_s

    def go_back(self, position_s: float) -> float:
        """Load the checkpoint at a position; return the work that is lost."""
        lost_s = self.position_s - position_s
        self.position_s = self.saved_s = position_s
        self._since_s = self._blocked_s = 0.0
        self._unfinished.clear()
        return lost_s
