"""Rules of a vocabulary that pipeline stages split.

Source: sail-sg's zero-bubble repository with --enable-vocab-parallel (`validate_arguments`,
`vocab_output.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.scenario.allowed_values import one_of
from simtrain.scenario.divisibility import Divides
from simtrain.scenario.exclusion import Excludes
from simtrain.scenario.requirement import Given, Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import LEFT_OUT, Rule
from simtrain.schedules.registry import NAMED

_WHOLE = "first_last"

_REMOVED = one_of(None, near=(LEFT_OUT,))


def _families(scenario: Scenario) -> Iterator[str]:
    """Yield the schedules that can have the scenario's split of the vocabulary."""
    split = scenario.parallelism.vocabulary_split
    return (name for name, family in NAMED.items() if split and family.allows_vocabulary(split))


def _padded_sizes(scenario: Scenario) -> list[int]:
    ranks = scenario.parallelism.tensor * scenario.parallelism.pipeline
    return [-(-scenario.model.vocab_size // ranks) * ranks]


def _has_no_vocabulary_passes(scenario: Scenario) -> bool:
    split = scenario.parallelism.vocabulary_split
    return split is not None and not (
        scenario.parallelism.pipeline > 1
        and scenario.schedule_family.allows_vocabulary(split)
        and not scenario.schedule_file
    )


VOCABULARY_RULES: list[Rule] = [
    Divides(
        "E453",
        ("parallelism.tensor", "parallelism.pipeline"),
        "model.vocab_size",
        given=Given(
            "a split vocabulary", lambda scenario: scenario.parallelism.vocabulary_split is not None
        ),
        near={"model.vocab_size": _padded_sizes, "parallelism.vocabulary": [_WHOLE]},
        why=(
            "every stage holds an equal part of the rows of the embedding and of the columns of "
            "the output layer, which tensor-parallel ranks divide further"
        ),
        example=(
            "model: {tied_embeddings: false, vocab_size: 50258}\n"
            "parallelism: {pipeline: 4, vocabulary: vocab_1}"
        ),
    ),
    Excludes(
        "E452",
        "parallelism.vocabulary",
        "the schedule of these stages has no such passes",
        _has_no_vocabulary_passes,
        reads=("schedule", "parallelism.pipeline"),
        near={"schedule": _families},
        near_first=True,
        why=(
            "its authors added vocabulary passes to 1F1B, and those whose barriers other passes "
            "hide to V-Half, for pipelines of several stages"
        ),
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
