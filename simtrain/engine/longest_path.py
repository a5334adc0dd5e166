"""Starts and ends of tasks that share no links: longest paths through the task graph.

A task starts at the latest end of the task before it on its stream and of the tasks that it waits
for (or at 0), and ends after its duration.
"""

from __future__ import annotations

from simtrain.engine.compiled import Floats, Ints


def find_order(
    queue_starts: Ints, queue: Ints, after_starts: Ints, after: Ints, order: Ints
) -> int:
    """Write the tasks to `order`, each after all tasks that it waits for; return their number.

    Args:
        queue_starts, queue: the tasks of stream s are `queue[queue_starts[s]:queue_starts[s + 1]]`,
            in order.
        after_starts, after: task i waits for `after[after_starts[i]:after_starts[i + 1]]`.
        order: [tasks], the result. Tasks of a deadlock are missing.
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
    """Write the start and end of each task.

    Args:
        order: as `find_order` writes it.
        previous: [tasks], the task before each task on its stream; -1 for none.
        after_starts, after: as in `find_order`.
        duration_s: [draws, tasks].
        start_s, end_s: [draws, tasks], the results.
    """
    for draw in range(len(duration_s)):
        durations, starts, ends = duration_s[draw], start_s[draw], end_s[draw]
        for task in order:
            moment = 0.0 if previous[task] < 0 else ends[previous[task]]
            for place in range(after_starts[task], after_starts[task + 1]):
                moment = max(moment, ends[after[place]])
            starts[task] = moment
            ends[task] = moment + durations[task]
