"""Rules of recorded pipelines: which orders their passes can run in."""

from __future__ import annotations

from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering
from simtrain.schedules.registry import NAMED

RECORDED_RULES: list[Rule] = []
_rule = registering(RECORDED_RULES)


@_rule(
    "E953",
    "a recording has whole passes of each stage, on one copy of the model: a backward pass that is "
    "split, merged with another pass or run on other weights has other ops",
    what="A schedule needs other passes than a recorded pipeline has.",
    fix="Name a schedule of whole passes, such as 1f1b, interleaved or gpipe.",
    example=("A program that is recorded with --pp 4 --chunks 2, and schedule: zbv."),
)
def _recorded_passes_are_whole(scenario: Scenario) -> Violation | None:
    if scenario.program is None or scenario.parallelism.pipeline == 1:
        return None
    family, schedule = scenario.schedule_family, scenario.schedule_file
    needs = {
        "splits backward passes": (schedule or family).splits_backwards,
        "merges passes": scenario.merges_passes,
        "has several copies of the model": scenario.model_copies > 1,
        "runs iterations into each other": not family.flushes,
    }
    needed = [words for words, is_needed in needs.items() if is_needed]
    if not needed:
        return None
    chunks = scenario.parallelism.interleave
    whole = [
        name
        for name, each in NAMED.items()
        if each.allows_chunks(chunks)
        and each.flushes
        and not each.splits_backwards
        and each.placement(2, chunks).copies == 1
    ]
    return Violation(
        f"schedule {scenario.schedule} {needed[0]}, which a recorded pipeline cannot",
        {"schedule": whole},
        ("program",),
    )
