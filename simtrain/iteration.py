"""One iteration of a settled scenario: record, price, lay out, run, replay memory, report."""

from __future__ import annotations

from simtrain.engine import Engine
from simtrain.engine import simulate as run_program
from simtrain.memory.curve import IterationTimeline
from simtrain.memory.report import memory_report
from simtrain.plan import Plan
from simtrain.programs.seconds import IterationSeconds, Machine
from simtrain.programs.structure import iteration_layout
from simtrain.report.breakdown import stage_breakdowns
from simtrain.report.result import Result


def simulate_iteration(plan: Plan, machine: Machine, engine: Engine = "auto") -> Result:
    """Simulate an iteration whose work is recorded in a plan."""
    seconds = IterationSeconds.of(plan, machine)
    pattern, pipeline = iteration_layout(seconds.structure)
    timeline = run_program(pattern.program(seconds.of_slot), engine)
    ran = IterationTimeline(timeline, pipeline)
    profile = machine.model.profile
    return Result(
        plan=plan,
        profile=profile,
        ran=ran,
        memory=memory_report(plan, profile, ran),
        stages=stage_breakdowns(timeline, plan.schedule, pipeline.actions, seconds.action_time),
        model_flops=seconds.flops(recompute=False),
        hardware_flops=seconds.flops(recompute=True),
        extrapolated=seconds.extrapolated(),
    )
