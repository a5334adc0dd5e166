"""One iteration of a settled scenario: record, price, lay out, run, replay memory, report."""

from __future__ import annotations

from simtrain.engine import Engine, is_compiled
from simtrain.engine import simulate as run_program
from simtrain.memory.curve import IterationTimeline
from simtrain.memory.report import memory_report
from simtrain.plan import Plan
from simtrain.programs.iteration_layout import iteration_layout
from simtrain.programs.seconds import IterationSeconds, Machine
from simtrain.report.breakdown import stage_breakdowns
from simtrain.report.result import Result


def simulate_iteration(plan: Plan, machine: Machine, engine: Engine = "auto") -> Result:
    """Simulate an iteration whose work is recorded in a plan."""
    seconds = IterationSeconds.of(plan, machine)
    builder, pipeline = iteration_layout(seconds.structure)
    timeline = run_program(builder.program(seconds.of_slot), engine)
    ran = IterationTimeline(timeline, pipeline)
    profile = machine.model.profile
    # Loaded here, not with the command line: numpy takes 0.1 s.
    import numpy as np

    from simtrain.programs.arrays import IterationTasks

    stages = stage_breakdowns(
        seconds,
        IterationTasks.of(builder, plan.mesh.pp),
        np.array(timeline.start_s),
        np.array(timeline.end_s),
        is_compiled=is_compiled(engine, len(timeline.end_s)),
    )
    return Result(
        plan=plan,
        profile=profile,
        ran=ran,
        memory=memory_report(plan, profile, ran),
        stages=stages,
        model_flops=seconds.flops(recompute=False),
        hardware_flops=seconds.flops(recompute=True),
        extrapolated=seconds.extrapolated(),
    )
