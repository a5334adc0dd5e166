"""Programs with only a pipeline, whose durations are functions of actions and messages."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simtrain.engine import Program, Task
from simtrain.iteration.programs.iteration_tasks import link_streams, stage_streams
from simtrain.iteration.programs.pipeline import PipelineTasks
from simtrain.schedules import Action, Message, Schedule, actions_of


@dataclass(frozen=True)
class PipelineSeconds:
    """Durations of the tasks of a pipeline.

    Args:
        transfer: of a message; takes the number of messages that its sender sends in the same
            exchange.
        receive_gather: of the all-gather of a message at its receiver; None if receivers do not
            gather.
        synchronize: takes the number of messages in an exchange.
        merged_s: seconds of merged actions; None for the sum of both.
    """

    action: Callable[[Action], float]
    transfer: Callable[[Message, int], float]
    receive_gather: Callable[[Message], float] | None = None
    synchronize: Callable[[int], float] = lambda num_messages: 0.0
    merged_s: float | None = None


def pipeline_program(
    schedule: Schedule, seconds: PipelineSeconds, overlap: bool, exchanges_shapes: bool = False
) -> tuple[Program, PipelineTasks]:
    """Return the program of a pipeline with one task per cell; merged actions run in turn."""
    num_stages = schedule.num_stages
    tasks = PipelineTasks(
        schedule,
        (~schedule.follows_merged).astype(np.int32),
        overlaps=overlap,
        gathers_on_receive=seconds.receive_gather is not None,
        exchanges_shapes=exchanges_shapes,
    )
    assert np.array_equal(tasks.first, tasks.last)
    forward, backward = link_streams(num_stages, 1), link_streams(num_stages, -1)
    ends = zip(tasks.messages.sender.tolist(), tasks.messages.step.tolist(), strict=True)
    streams = [(forward if step > 0 else backward)[sender] for sender, step in ends]
    streams += np.repeat(stage_streams(num_stages), np.diff(tasks.own_starts)).tolist()
    # Name, kind and seconds of each task.
    found: dict[int, tuple[str, str, float]] = {}
    for number, message in enumerate(tasks.messages):
        duration_s = seconds.transfer(message, int(tasks.num_sends[number]))
        found[number] = str(message), "transfer", duration_s
        if seconds.receive_gather:
            receive_gather = f"gather {message}", "receive gather", seconds.receive_gather(message)
            found[int(tasks.receive_gathers[number])] = receive_gather
    for place, task in enumerate(tasks.first.tolist()):
        cell = schedule.cell_at(place)
        first, *others = actions_of(cell)
        kind = "merged" if others else "forward" if first.kind == "F" else "backward"
        cell_s = sum(map(seconds.action, (first, *others)))
        if others and seconds.merged_s is not None:
            cell_s = seconds.merged_s
        found[task] = str(cell), kind, cell_s
    for task, number in zip(tasks.synchronizing.tolist(), tasks.num_messages, strict=True):
        found[task] = "synchronize", "synchronize", seconds.synchronize(int(number))
    waits = defaultdict[int, list[int]](list)
    for waiting, awaited in np.stack(tasks.waits, axis=1).tolist():
        waits[waiting].append(awaited)
    assert sorted(found) == [*range(tasks.num_tasks)]
    return Program.of(
        Task(name, streams[number], duration_s, tuple(waits[number]), kind)
        for number, (name, kind, duration_s) in sorted(found.items())
    ), tasks
