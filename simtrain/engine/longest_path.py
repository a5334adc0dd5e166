"""When each task starts and ends where tasks share nothing: longest paths through their graph.

A stream is a FIFO and nothing is random, so a task starts at the latest end of what it waits for
(or at 0) and ends its duration later.
"""

from __future__ import annotations

from simtrain.engine.compiled import Floats, Ints


def find_order(
    queue_starts: Ints, queue: Ints, after_starts: Ints, after: Ints, order: Ints
) -> int:
    """Write the tasks to `order`, each after all that it waits for, and return how many there are.

    `queue[queue_starts[s]:queue_starts[s + 1]]` are the tasks of stream s in their order, and
    `after[after_starts[i]:after_starts[i + 1]]` what task i waits for. Tasks of a deadlock are left
    out.
    """
    num_streams = len(queue_starts) - 1
    heads = [queue_starts[stream] for stream in range(num_streams)]
    is_done = [False] * len(queue)
    num_done = 0
    moved = True
    while moved:
        moved = False
        for stream in range(num_streams):
            while heads[stream] < queue_starts[stream + 1]:
                task = queue[heads[stream]]
                is_ready = True
                for place in range(after_starts[task], after_starts[task + 1]):
                    if not is_done[after[place]]:
                        is_ready = False
                        break
                if not is_ready:
                    break
                is_done[task] = True
                order[num_done] = task
                num_done += 1
                heads[stream] += 1
                moved = True
    return num_done


def find_longest_paths(
    order: Ints,
    previous: Ints,
    after_starts: Ints,
    after: Ints,
    duration_s: Floats,
    start_s: Floats,
    end_s: Floats,
) -> None:
    """Write the start and end of each task of `order`; the last three are [draws, tasks].

    `previous[i]` is the task before task i on its stream, -1 for none.
    """
    for draw in range(len(duration_s)):
        durations, starts, ends = duration_s[draw], start_s[draw], end_s[draw]
        for task in order:
            moment = 0.0 if previous[task] < 0 else ends[previous[task]]
            for place in range(after_starts[task], after_starts[task + 1]):
                moment = max(moment, ends[after[place]])
            starts[task] = moment
            ends[task] = moment + durations[task]
