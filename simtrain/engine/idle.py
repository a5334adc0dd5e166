"""Idle time of streams, by the other streams that run at the same time."""

from __future__ import annotations

import numpy as np

from simtrain.engine.compiled import Floats, Ints


# Numba compiles this function, so its arrays are parameters: compiled code takes no dataclasses.
def idle_seconds(
    streams: Ints,
    others: Ints,
    category_of: Ints,
    queue_starts: Ints,
    queue: Ints,
    start_s: Floats,
    end_s: Floats,
    begins_s: Floats,
    ends_s: Floats,
) -> Floats:
    """Return the time for which streams are idle while others run, by category of the others.

    Args:
        streams: [n], the streams whose idle time is measured.
        others: [n, m], the streams that each of them may wait for, sorted by category. A short row
            is padded with the idle stream itself, which never runs in its own gaps.
        category_of: [n, m], the categories of `others`, from 0 to categories - 1.
        queue_starts, queue: the tasks of each stream, as in `TaskGraph.queue`.
        start_s, end_s: [tasks].
        begins_s, ends_s: [n], the start of the first gap, and the end of the last one.

    Returns:
        [n, categories], in seconds.

    The loop walks through the gaps between the tasks of each stream. At each moment of a gap it
    charges the first category that runs a task, until the task ends or a task of an earlier
    category starts. It skips tasks of zero duration.
    """
    seconds = np.zeros((len(streams), np.max(category_of) + 1))
    for row in range(len(streams)):
        heads = [queue_starts[other] for other in others[row]]
        now_s = begins_s[row]
        own_end = queue_starts[streams[row] + 1]
        for place in range(queue_starts[streams[row]], own_end + 1):
            gap_end_s = start_s[queue[place]] if place < own_end else ends_s[row]
            if place < own_end and end_s[queue[place]] == gap_end_s:
                continue
            while now_s < gap_end_s:
                until_s = gap_end_s
                charged = -1
                for column in range(len(heads)):
                    head = heads[column]
                    end = queue_starts[others[row][column] + 1]
                    while head < end and end_s[queue[head]] <= max(now_s, start_s[queue[head]]):
                        head += 1
                    heads[column] = head
                    if head < end:
                        if start_s[queue[head]] <= now_s:
                            until_s = min(until_s, end_s[queue[head]])
                            charged = category_of[row][column]
                            break
                        until_s = min(until_s, start_s[queue[head]])
                if charged >= 0:
                    seconds[row, charged] += until_s - now_s
                now_s = until_s
            if place < own_end:
                now_s = end_s[queue[place]]
    return seconds
