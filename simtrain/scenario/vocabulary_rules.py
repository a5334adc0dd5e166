"""Rules of a vocabulary that pipeline stages split.

Source: sail-sg's zero-bubble repository with --enable-vocab-parallel (`validate_arguments`,
`vocab_output.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.scenario.allowed_values import one_of
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule, Violation, registering, rule_against
from simtrain.schedules.registry import NAMED

VOCABULARY_RULES: list[Rule] = []
_rule = registering(VOCABULARY_RULES)
_WHOLE = "first_last"

_REMOVED = one_of(None, near=(LEFT_OUT,))


def _families(scenario: Scenario) -> Iterator[str]:
    """Yield the schedules that can have the scenario's split of the vocabulary."""
    split = scenario.parallelism.vocabulary_split
    return (name for name, family in NAMED.items() if split and family.allows_vocabulary(split))


@_rule(
    "E453",
    "every stage holds an equal part of the rows of the embedding and of the columns of the output "
    "layer, which tensor-parallel ranks divide further",
    what="The stages cannot share the vocabulary evenly.",
    fix="Set model.vocab_size to a multiple of parallelism.tensor x parallelism.pipeline.",
    example=(
        "model: {tied_embeddings: false, vocab_size: 50258}\n"
        "parallelism: {pipeline: 4, vocabulary: vocab_1}"
    ),
)
def _stages_share_the_vocabulary(scenario: Scenario) -> Violation | None:
    split, size = scenario.parallelism, scenario.model.vocab_size
    ranks = split.tensor * split.pipeline
    if split.vocabulary_split is None or size % ranks == 0:
        return None
    padded = -(-size // ranks) * ranks
    return Violation(
        f"model.vocab_size is {size:,}, not a multiple of parallelism.tensor x "
        f"parallelism.pipeline ({split.tensor} x {split.pipeline} = {ranks})",
        {"model.vocab_size": [padded], "parallelism.vocabulary": [_WHOLE]},
        ("model.vocab_size", "parallelism.vocabulary"),
    )


VOCABULARY_RULES += [
    rule_against(
        "E452",
        "its authors added vocabulary passes to 1F1B, and those whose barriers other passes hide "
        "to V-Half, for pipelines of several stages",
        {"schedule": _families, "parallelism.vocabulary": [_WHOLE]},
        lambda scenario: (
            (split := scenario.parallelism.vocabulary_split) is not None
            and not (
                scenario.parallelism.pipeline > 1
                and scenario.schedule_family.allows_vocabulary(split)
                and not scenario.schedule_file
            )
        ),
        "parallelism.vocabulary is {scenario.parallelism.vocabulary}, but {scenario.schedule} on "
        "{scenario.parallelism.pipeline} stages has no such passes",
        ("parallelism.vocabulary", "schedule"),
        what="parallelism.vocabulary splits the vocabulary with a schedule that cannot have it.",
        fix="Use 1f1b or, with vocab_1 and vocab_2, v_half; or remove parallelism.vocabulary.",
        example=(
            "model: {tied_embeddings: false}\nschedule: gpipe\n"
            "parallelism: {pipeline: 4, vocabulary: vocab_1}"
        ),
    ),
    Requires(
        "E454",
        "parallelism.vocabulary",
        needs={
            "model.tied_embeddings": False,
            "model.mtp_num_layers": 0,
            "model.lora": _REMOVED,
            "model.layer_pattern": _REMOVED,
            "overlap.merged_passes": False,
            "overlap.data_parallel": False,
            "memory.zero_stage": (1, 0),
        },
        needs_first=True,
        why=(
            "the runtime with vocabulary passes refuses tied embeddings, and neither it nor "
            "simtrain has LoRA, hybrid layers, multi-token prediction, merged passes, ZeRO "
            "stages 2 and 3 or reductions during the backward pass with them"
        ),
        example="model: {tied_embeddings: true}\nparallelism: {pipeline: 4, vocabulary: vocab_1}",
    ),
]
