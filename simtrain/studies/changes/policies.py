"""The recompute policies that a scenario can have, and policies in words."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.scenario import RecomputePolicy, Scenario
from simtrain.scenario.memory_rules import absent_modules
from simtrain.scenario.section import DEFAULT_MODULES, MODULES, Module

POLICIES = tuple(RecomputePolicy(strategy=name) for name in ("none", "selective", "full"))
"""One policy of each kind."""


def policies_near(scenario: Scenario) -> Iterator[RecomputePolicy]:
    """Yield each kind, other modules and numbers of layers, and other numbers of microbatches."""
    yield from POLICIES
    now, present = scenario.recompute, _present_modules(scenario)
    modules = {*now.modules} if now.strategy == "selective" else set()
    selections = [modules ^ {module} for module in present]
    if now.strategy != "selective":
        selections.append({*present} - {"moe", "mlp"})
    for selection in filter(None, selections):
        ordered = tuple(module for module in MODULES if module in selection)
        yield RecomputePolicy(strategy="selective", modules=ordered)
    yield RecomputePolicy(strategy="ops")
    largest = max(scenario.chunk_sizes)
    for number in sorted({largest // 4, largest // 2, 3 * largest // 4, largest - 1} - {0, -1}):
        yield first_layers(number)
    if now.strategy != "none" and scenario.parallelism.pipeline > 1:
        stages, kept = scenario.parallelism.pipeline, now.keep_microbatches
        assert isinstance(kept, int), "auto is not refined"
        for number in sorted({1, kept + 1, 2 * kept, stages // 2, stages} - {0, kept}):
            yield now.model_copy(update={"keep_microbatches": number})


def first_layers(number: int) -> RecomputePolicy:
    """Return the policy that recomputes this number of layers of each chunk in full."""
    return RecomputePolicy(strategy="full", method="block", num_layers=number)


def last_resorts(scenario: Scenario) -> Iterator[RecomputePolicy]:
    """Yield policies that save less than one input per layer, by sharding or by longer units."""
    grid = scenario.parallelism
    if grid.tensor > 1 and not grid.sequence_parallel:
        yield RecomputePolicy(strategy="full", distribute=True)
    if scenario.model.mtp_num_layers:
        return  # Rule E345 refuses longer units.
    sizes = scenario.chunk_sizes
    # Of lengths with equal numbers of units, the shortest recomputes the fewest layers at once.
    shortest = {
        tuple(-(-layers // length) for layers in sizes): length
        for length in range(max(sizes), 1, -1)
    }
    for length in shortest.values():
        yield RecomputePolicy(strategy="full", num_layers=length)


def policy_words(policy: RecomputePolicy) -> str:
    """Describe a policy, without the microbatches that it keeps."""
    layers = f"{policy.num_layers} layer{'s' * (policy.num_layers > 1)}"
    details = {
        f"modules {', '.join(policy.modules)}": policy.modules != DEFAULT_MODULES,
        f"the first {layers} of each chunk": policy.method == "block",
        f"saving {', '.join(policy.saved_ops)}": policy.strategy == "ops",
        f"units of {layers}": policy.method == "uniform" and policy.num_layers > 1,
        "inputs distributed": policy.distribute,
    }
    return ", ".join([policy.strategy, *(words for words, holds in details.items() if holds)])


def _present_modules(scenario: Scenario) -> list[Module]:
    absent = absent_modules(scenario)
    return [module for module in MODULES if module not in absent]
