"""Shared links: concurrent tasks divide the capacity of a link.

A task at full speed takes its load of each of its links. If the loads exceed a capacity, tasks run
slower. Speeds are found by progressive filling: all speeds rise together, in proportion to the
weights of the tasks, until a link is full or a task reaches full speed; the tasks of the full link
then keep their speeds. These speeds are max-min fair: no speed can rise without lowering another
that is not higher relative to its weight (Bertsekas and Gallager, "Data Networks", Section 6.5.2).

Network transfers have loads and capacities in bytes/s and weights of 1/load, so they get equal
bandwidth. Kernels that share a GPU have fractions of it as loads and weights of 1, so they slow
down by the same factor.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from simtrain.engine.compiled import Floats, Ints


class LinkLoads(NamedTuple):
    """The loads of all tasks on links.

    Task i takes `load[j]` of link `link[j]`, for j in range(load_starts[i], load_starts[i + 1]).
    Each link has a capacity, and each task a weight.
    """

    capacity: Floats
    load_starts: Ints
    link: Ints
    load: Floats
    weight: Floats


def find_slowdowns_alone(links: LinkLoads) -> list[float]:
    """Return the slowdown of each task while no other one uses its links (`find_slowdowns`)."""
    capacity, load_starts, link, load, weight = links
    slowdowns = [1.0] * len(weight)
    for task in range(len(weight)):
        level = weight[task]
        for j in range(load_starts[task], load_starts[task + 1]):
            claimed = 0.0
            for i in range(load_starts[task], load_starts[task + 1]):
                if link[i] == link[j]:
                    claimed += load[i] * weight[task]
            level = max(level, claimed / capacity[link[j]])
        slowdowns[task] = level / weight[task]
    return slowdowns


def find_slowdowns(links: LinkLoads, tasks: Sequence[int]) -> list[float]:
    """Return the slowdown of each running task: 1 at full speed, 2 at half speed."""
    capacity, load_starts, link, load, weight = links
    num_links = len(capacity)
    free = [capacity[number] for number in range(num_links)]
    slowdowns = [0.0] * len(tasks)
    num_open = len(tasks)
    while num_open > 0:
        # The next link to fill has the largest ratio of claims to free capacity. A task reaches
        # full speed when its weight is as large as this ratio.
        claims = [0.0] * num_links
        level = 0.0
        for place, task in enumerate(tasks):
            if slowdowns[place] == 0.0:
                level = max(level, weight[task])
                for j in range(load_starts[task], load_starts[task + 1]):
                    claims[link[j]] += load[j] * weight[task]
        fullest = -1
        for number in range(num_links):
            # Rounding may leave a slightly negative free capacity of a full link.
            claimed = claims[number] / max(free[number], 1e-12 * capacity[number])
            if claimed > level:
                level, fullest = claimed, number
        for place, task in enumerate(tasks):
            stays = weight[task] == level  # above all weights if a link is the fullest
            for j in range(load_starts[task], load_starts[task + 1]):
                stays = stays or link[j] == fullest
            if slowdowns[place] == 0.0 and stays:
                slowdowns[place] = 1.0 if fullest < 0 else level / weight[task]
                num_open -= 1
                for j in range(load_starts[task], load_starts[task + 1]):
                    free[link[j]] -= load[j] / slowdowns[place]
    return slowdowns


# The loop with shared links, from event to event.
#
# At each moment, tasks end and start until nothing changes; then speeds change, and the next moment
# is the earliest end. Two things make it fast. After an end, only its stream and those of the tasks
# that waited for it are looked at. And all speeds are computed again only if a task shares a link
# with another running task when it starts or ends: otherwise no speed but its own depends on it
# (`find_slowdowns_alone`).
#
# It is one function of local lists: with lists in a named tuple, numba counts references at every
# access, and separate functions for its steps take twice as long.


def find_all_slowdowns(
    links: LinkLoads, running: Sequence[int], sharing: list[int], speeds: list[float]
) -> None:
    """Add streams whose `running` task (or -1) has loads to `sharing`, slowdowns to `speeds`."""
    starts, first = links.load_starts, len(sharing)
    tasks = [task for task in running if task >= 0 and starts[task] < starts[task + 1]]
    slowdowns = find_slowdowns(links, tasks)
    for stream in range(len(running)):
        place = len(sharing) - first
        if place < len(tasks) and running[stream] == tasks[place]:
            sharing.append(stream)
            speeds[stream] = slowdowns[place]


def run_sharing(
    queue_starts: Ints,
    queue: Ints,
    num_waits: Ints,
    follower_starts: Ints,
    followers: Ints,
    stream_of: Ints,
    links: LinkLoads,
    durations: Floats,
    starts: Floats,
    ends: Floats,
) -> None:
    """Write [tasks], the start and end of each task; both are infinite before.

    The first six arrays are those of `TaskGraph`.
    """
    load_starts, link = links.load_starts, links.link
    streams = range(len(queue_starts) - 1)
    missing = [number for number in num_waits]
    heads = [queue_starts[stream] for stream in streams]
    running = [-1 for _ in streams]
    finish_s = [math.inf for _ in streams]
    # A task with loads had `left_s` of work left at `begun_s`; its slowdown applies since then.
    left_s, begun_s = [0.0 for _ in streams], [0.0 for _ in streams]
    slowdown, speeds = [1.0 for _ in streams], [1.0 for _ in streams]
    users, alone = [0 for _ in links.capacity], find_slowdowns_alone(links)
    # Ends of tasks, the earliest first. A change of speed leaves an outdated entry behind: its time
    # is no longer that in `finish_s`. The last entries keep the heap from being empty.
    heap = [(math.inf, -1)] * 2
    # The first entries of both lists are padding: numba moves a list whenever it shrinks by half.
    padding, begun = len(streams), [stream for stream in streams]
    to_start = [number % padding for number in range(2 * padding)]
    now_s = 0.0

    while now_s < math.inf:
        changed = False
        while len(to_start) > padding or heap[0][0] <= now_s:
            # Start what can start.
            while len(to_start) > padding:
                stream = to_start.pop()
                if running[stream] >= 0 or heads[stream] == queue_starts[stream + 1]:
                    continue
                task = queue[heads[stream]]
                if missing[task] > 0:
                    continue
                heads[stream] += 1
                running[stream], starts[task] = task, now_s
                finish_s[stream] = now_s + durations[task]
                if load_starts[task] < load_starts[task + 1] and durations[task] > 0:
                    # Its end is unknown until its speed is computed.
                    left_s[stream], begun_s[stream] = durations[task], now_s
                    finish_s[stream] = slowdown[stream] = math.inf
                    begun.append(stream)
                    speeds[stream] = alone[task]
                    for j in range(load_starts[task], load_starts[task + 1]):
                        users[link[j]] += 1
                        changed |= users[link[j]] > 1
                else:
                    heapq.heappush(heap, (finish_s[stream], stream))

            # End a task, which may let others start at the same moment.
            if heap[0][0] <= now_s:
                finished_s, stream = heapq.heappop(heap)
                if finish_s[stream] != finished_s:
                    continue
                task = running[stream]
                ends[task] = now_s
                running[stream], finish_s[stream] = -1, math.inf
                to_start.append(stream)
                for place in range(follower_starts[task], follower_starts[task + 1]):
                    missing[followers[place]] -= 1
                    if missing[followers[place]] == 0:
                        to_start.append(stream_of[followers[place]])
                if durations[task] > 0:
                    for j in range(load_starts[task], load_starts[task + 1]):
                        users[link[j]] -= 1
                        changed |= users[link[j]] > 0

        # Change speeds: of all tasks with loads if one of their links is shared, else of new ones.
        if changed:
            find_all_slowdowns(links, running, begun, speeds)
        while len(begun) > padding:
            stream = begun.pop()  # listed twice, its speed is equal the second time
            if speeds[stream] != slowdown[stream]:
                left_s[stream] -= (now_s - begun_s[stream]) / slowdown[stream]
                begun_s[stream], slowdown[stream] = now_s, speeds[stream]
                finish_s[stream] = now_s + max(left_s[stream], 0.0) * speeds[stream]
                heapq.heappush(heap, (finish_s[stream], stream))

        # Go to the earliest end.
        while heap[0][1] >= 0 and finish_s[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        now_s = heap[0][0]
