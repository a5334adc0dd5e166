"""Waiting for data: successive iterations, and a loader that prepares their data ahead."""

from __future__ import annotations

import numpy as np

from simtrain.engine.compiled import Floats


def intervals_s(times_s: Floats, load_s: float, prefetch: int) -> Floats:
    """Return [iterations], the time from the end of each iteration before to its own end.

    Args:
        times_s: [iterations], the time that each takes once its data are there.
        load_s: time to load the data of an iteration.
        prefetch: iterations whose data can wait. The loader begins with the data of an iteration
            when the one that is so many before it has taken its own.

    The iterations run twice, so that the first ones of the result find the queue as later ones do.
    """
    every = np.concatenate([times_s, times_s]).tolist()
    started_s: list[float] = []
    waits_s, end_s, loaded_s = [], 0.0, 0.0
    for number, time_s in enumerate(every):
        taken_s = started_s[number - prefetch] if number >= prefetch else 0.0
        loaded_s = max(loaded_s, taken_s) + load_s
        waits_s.append(max(0.0, loaded_s - end_s))
        started_s.append(max(end_s, loaded_s))
        end_s = started_s[-1] + time_s
    waited_s: Floats = np.array(waits_s[len(times_s) :])
    return times_s + waited_s
