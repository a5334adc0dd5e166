"""What the frameworks refuse of recompute and ZeRO, why they do, and what they accept nearby.

Sources: Megatron-LM's arguments.py, transformer_config.py and pipeline_parallel/schedules.py for
recompute, DeepSpeed's runtime/pipe/engine.py for ZeRO beside a pipeline. Both take some settings
without a word and then never read them; these are refused too, as no setting is ignored here.
"""

from __future__ import annotations

from simtrain.scenario.nearest import Fix, divisors
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import numbers_of_stages
from simtrain.scenario.violation import Rule, Violation, registering

MEMORY_RULES: list[Rule] = []
_rule = registering(MEMORY_RULES)

_OF_FULL_ONLY: dict[str, int | bool | str] = {
    "method": "uniform",
    "num_layers": 1,
    "distribute": False,
}
"""The fields that only full recompute has, with their defaults."""


@_rule("E318", "only full recompute has units of layers, whose inputs can be distributed")
def _units_need_full(scenario: Scenario) -> Violation | None:
    policy = scenario.recompute
    changed = {
        f"recompute.{name}": default
        for name, default in _OF_FULL_ONLY.items()
        if getattr(policy, name) != default
    }
    if policy.strategy == "full" or not changed:
        return None
    verb = "is" if len(changed) == 1 else "are"
    return Violation(
        (*changed, "recompute.strategy"),
        f"{' and '.join(changed)} {verb} set while recompute.strategy is {policy.strategy}",
        (
            [Fix("recompute.strategy", "full")],
            *([Fix(field, default)] for field, default in changed.items()),
        ),
    )


@_rule("E319", "a unit of recompute lies within one chunk")
def _units_fit_chunks(scenario: Scenario) -> Violation | None:
    num_layers, available = scenario.recompute.num_layers, max(scenario.chunk_sizes)
    if scenario.recompute.strategy != "full" or num_layers <= max(1, available):
        return None
    return Violation(
        ("recompute.num_layers", "model.num_layers"),
        f"recompute.num_layers is {num_layers}, but no chunk has more than "
        f"{available} layer{'s' * (available != 1)}",
        ([Fix("recompute.num_layers", max(1, available))],),
    )


@_rule("E320", "a unit's input is distributed over the tensor-parallel ranks")
def _distribute_needs_tensor(scenario: Scenario) -> Violation | None:
    if not scenario.recompute.distribute or scenario.parallelism.tensor > 1:
        return None
    heads = scenario.model.num_attention_heads
    return Violation(
        ("recompute.distribute", "parallelism.tensor"),
        f"recompute.distribute is true while parallelism.tensor is {scenario.parallelism.tensor}",
        (
            [Fix("recompute.distribute", False)],
            divisors("parallelism.tensor", 1, heads, at_least=2),
        ),
    )


@_rule("E321", "under sequence parallelism a unit's input is already split over the ranks")
def _distribute_without_sequence_parallel(scenario: Scenario) -> Violation | None:
    if not (scenario.recompute.distribute and scenario.parallelism.sequence_parallel):
        return None
    return Violation(
        ("recompute.distribute", "parallelism.sequence_parallel"),
        "recompute.distribute is true together with parallelism.sequence_parallel",
        (
            [Fix("recompute.distribute", False)],
            [Fix("parallelism.sequence_parallel", False)],
        ),
    )


@_rule("E322", "microbatches that keep everything are exceptions from a recompute of the others")
def _kept_need_recompute(scenario: Scenario) -> Violation | None:
    policy = scenario.recompute
    if not policy.keep_microbatches or policy.strategy in ("selective", "full"):
        return None
    return Violation(
        ("recompute.keep_microbatches", "recompute.strategy"),
        f"recompute.keep_microbatches is {policy.keep_microbatches} while recompute.strategy is "
        f"{policy.strategy}",
        (
            [Fix("recompute.keep_microbatches", 0)],
            [Fix("recompute.strategy", "selective"), Fix("recompute.strategy", "full")],
        ),
    )


@_rule("E323", "the schedule of a single stage (forward_backward_no_pipelining) keeps none of them")
def _kept_need_pipeline(scenario: Scenario) -> Violation | None:
    kept = scenario.recompute.keep_microbatches
    if not kept or scenario.parallelism.pipeline > 1:
        return None
    return Violation(
        ("recompute.keep_microbatches", "parallelism.pipeline"),
        f"recompute.keep_microbatches is {kept} while parallelism.pipeline is "
        f"{scenario.parallelism.pipeline}",
        (
            [Fix("recompute.keep_microbatches", 0)],
            numbers_of_stages(scenario, at_least=2),
        ),
    )


@_rule("E324", "a stage cannot keep more forward passes than it has outstanding")
def _kept_are_outstanding(scenario: Scenario) -> Violation | None:
    kept, outstanding = scenario.recompute.keep_microbatches, _most_outstanding(scenario)
    if kept == "auto" or kept <= outstanding or outstanding < 1:
        return None
    if _kept_need_recompute(scenario) or _kept_need_pipeline(scenario):
        return None  # then no number but 0 is legal, as these rules say
    return Violation(
        ("recompute.keep_microbatches", "parallelism.pipeline", "batch.global"),
        f"recompute.keep_microbatches is {kept}, but the first stage has at most {outstanding} "
        f"forward passes outstanding",
        ([Fix("recompute.keep_microbatches", outstanding)],),
    )


def _most_outstanding(scenario: Scenario) -> int:
    """Forward passes that the first stage has before a backward pass, under its schedule."""
    stages, chunks = scenario.parallelism.pipeline, scenario.num_chunks
    forwards = scenario.num_microbatches * chunks
    match scenario.schedule:
        case "gpipe":
            return forwards
        case "1f1b":
            return min(stages, forwards)
        case "interleaved":
            return min(2 * (stages - 1) + (chunks - 1) * stages + 1, forwards)


@_rule("E325", "ZeRO stages 2 and 3 divide gradients that a pipeline still adds to (DeepSpeed)")
def _divided_gradients_without_pipeline(scenario: Scenario) -> Violation | None:
    stage, pipeline = scenario.memory.zero_stage, scenario.parallelism.pipeline
    if stage < 2 or pipeline == 1:
        return None
    return Violation(
        ("memory.zero_stage", "parallelism.pipeline"),
        f"memory.zero_stage is {stage} while parallelism.pipeline is {pipeline}",
        (
            [Fix("memory.zero_stage", 1), Fix("memory.zero_stage", 0)],
            [Fix("parallelism.pipeline", 1)],
        ),
    )


@_rule("E326", "ZeRO divides model states over replicas")
def _zero_needs_replicas(scenario: Scenario) -> Violation | None:
    stage, batch = scenario.memory.zero_stage, scenario.batch.global_
    if stage == 0 or scenario.parallelism.data > 1:
        return None
    return Violation(
        ("memory.zero_stage", "parallelism.data"),
        f"memory.zero_stage is {stage} while parallelism.data is {scenario.parallelism.data}",
        (
            [Fix("memory.zero_stage", 0)],
            divisors("parallelism.data", 1, batch, at_least=2),
        ),
    )


def host_link_rule(has_host_link: bool) -> Rule:
    """The rule that only a cluster whose profile has a host link can offload."""

    def check(scenario: Scenario) -> Violation | None:
        if has_host_link or not scenario.memory.offload_optimizer:
            return None
        return Violation(
            ("memory.offload_optimizer", "cluster"),
            f"memory.offload_optimizer is true, but the profile of {scenario.cluster} has no "
            "host_link",
            ([Fix("memory.offload_optimizer", False)],),
        )

    reason = (
        "its time follows from host_link.bandwidth and host_link.adam_bandwidth, which a profile "
        "may leave out"
    )
    return Rule("E329", reason, check)
