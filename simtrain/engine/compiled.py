"""Runs a program with the compiled executor."""

import numpy as np

from simtrain.engine.program import Program
from simtrain.engine.timeline import Timeline
from simtrain.engine.wiring import Wiring


def simulate_compiled(program: Program) -> Timeline:
    """Find when each task starts and ends; to the last bit what SimPy finds.

    Tasks that can never start are left with infinite times.
    """
    tasks = program.tasks
    wiring = Wiring.of(
        [task.stream for task in tasks],
        [task.after for task in tasks],
        [task.contends for task in tasks],
        program.interference,
    )
    durations_s = np.array([task.duration_s for task in tasks], np.float64)
    start_s, end_s = wiring.run(durations_s)
    return Timeline(program, tuple(start_s.tolist()), tuple(end_s.tolist()))
