"""The warning on a result whose time would be much longer on a slow host."""

from __future__ import annotations

from simtrain.base.plain_data import Number, Sentence
from simtrain.iteration.programs.seconds import passes_of
from simtrain.iteration.report.remarks import HOST_BOUND
from simtrain.iteration.report.result import Result
from simtrain.studies.changes import Change
from simtrain.studies.on_machine import plan_on
from simtrain.units import format_seconds
from simtrain.workload.record import record_of

SLOW_HOST_S = 100e-6
"""Host time per kernel that a framework's modules in Python can reach.

A forward pass of Transformer Engine's Linear takes the host 99.66 us on a GB200 and 90.53 us on a
GH200, where PyTorch's takes 37.08 and 33.17 us (NVIDIA/TransformerEngine, issue 2053). Profiles
have PyTorch's.
"""
_NEAR = 0.5
"""Share of a pass for which a slow host must be busy before it can make the pass much longer."""


def warnings_on(result: Result) -> list[Sentence]:
    """Return a warning with the iteration time on a slow host, if it is much longer.

    The iteration is simulated once more if a slow host would be busy for half of a pass; other
    results take no time here. Stacks with host times of their own and CUDA graphs need no warning.
    """
    scenario = result.scenario
    facts = scenario.facts
    has_host_time = facts.cuda_graphs or facts.host_call or scenario.host_issue_s is not None
    if has_host_time or result.profile.host.issue.value >= SLOW_HOST_S or not _is_near(result):
        return []
    slow_s = _slow_time_s(result)
    longer = slow_s / result.iteration_time_s - 1
    if longer < HOST_BOUND:
        return []
    issue_s = result.profile.host.issue.value
    return [
        Sentence(
            "Perhaps host-bound: if the host takes ",
            Number(SLOW_HOST_S, format_seconds(SLOW_HOST_S)),
            " per kernel (modules in Python) in place of ",
            Number(issue_s, format_seconds(issue_s)),
            ", the iteration takes ",
            Number(slow_s, format_seconds(slow_s)),
            " (",
            Number(longer, f"+{longer:.0%}"),
            "). Measure it, set software.host_issue, or use software.cuda_graphs.",
        )
    ]


def _slow_time_s(result: Result) -> float:
    slow = Change({"software.host_issue": f"{SLOW_HOST_S!r} s"}).applied_to(result.scenario)
    return plan_on(slow, result.seconds.machine)[0].iteration_time_s


def _is_near(result: Result) -> bool:
    return any(
        record_of(pass_).num_ops * SLOW_HOST_S > _NEAR * result.seconds.passes[part].duration_s
        for part, pass_ in passes_of(result.plan)
    )
