"""Rules of schedules whose passes run slices of each sequence (Seq1F1B).

Source: the authors' Megatron-LM (thunlp/Seq1F1B: `pipeline_parallel/schedules.py`,
`sequence_split.py`, `transformer/seq1f1b_attn.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from simtrain.scenario.allowed_values import at_least, one_of, shown
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import numbers_of_stages
from simtrain.scenario.violation import LEFT_OUT, Rule, Violation, registering, rule_against
from simtrain.schedules.registry import NAMED

SLICE_RULES: list[Rule] = []
_rule = registering(SLICE_RULES)
_SLICES = "parallelism.sequence_slices"
_CUTTING = [name for name, family in NAMED.items() if family.cuts_sequences]
_WHOLE = [name for name, family in NAMED.items() if not family.cuts_sequences]


def _cuts(scenario: Scenario) -> bool:
    return scenario.parallelism.sequence_slices > 1


def _runs_slices(scenario: Scenario) -> bool:
    return _cuts(scenario) and scenario.schedule_family.cuts_sequences


def _numbers_of_slices(scenario: Scenario) -> Iterator[int]:
    """Yield numbers of slices from 2 on that divide the sequence, the nearest first."""
    length, number = scenario.model.seq_length, scenario.parallelism.sequence_slices
    return near_divisors(number, length // scenario.slice_unit, at_least=2)


@_rule(
    "E455",
    f"{' and '.join(_CUTTING)} run slices of each sequence; other schedules run whole sequences",
    what="Sequences are cut into slices by another schedule, or not cut by one that runs slices.",
    fix=f"Set schedule to one of {', '.join(_CUTTING)}, and parallelism.sequence_slices above 1.",
    example="parallelism: {pipeline: 4, sequence_slices: 4}\nschedule: 1f1b",
)
def _schedule_runs_slices(scenario: Scenario) -> Violation | None:
    if _cuts(scenario) is scenario.schedule_family.cuts_sequences:
        return None
    schedule, number = scenario.schedule, scenario.parallelism.sequence_slices
    if _cuts(scenario):
        return Violation(
            f"{_SLICES} is {number}, but schedule {schedule} runs whole sequences",
            {"schedule": _CUTTING, _SLICES: [LEFT_OUT]},
            (_SLICES, "schedule"),
        )
    return Violation(
        f"schedule {schedule} runs slices of each sequence, but {_SLICES} is 1",
        {_SLICES: _numbers_of_slices(scenario), "schedule": _WHOLE},
        ("schedule", _SLICES),
    )


@_rule(
    "E456",
    "slices have equally many tokens, or about equally many FLOPs; tensor-parallel ranks that "
    "divide a sequence divide each slice evenly, and fp8 and fp4 products need multiples of 128 "
    "tokens",
    what="The sequence cannot be cut into slices of whole, evenly divided tokens.",
    fix=(
        "Change model.seq_length or parallelism.sequence_slices, or set parallelism.slice_balance "
        "to flops."
    ),
    example=(
        "model: {seq_length: 2048}\nparallelism: {pipeline: 4, sequence_slices: 3}\n"
        "attention_backend: fused\nschedule: seq1f1b"
    ),
)
def _sequence_in_slices(scenario: Scenario) -> Violation | None:
    split, length, unit = scenario.parallelism, scenario.model.seq_length, scenario.slice_unit
    by_flops, number = split.slice_balance == "flops", split.sequence_slices
    # The shortest slice of equally many FLOPs has at least half as many tokens as the mean.
    step = unit if by_flops else number * unit
    least = 2 * number * unit if by_flops else step
    is_even = length % step == 0 and length >= least
    if not _runs_slices(scenario) or split.slice_lengths is not None or is_even:
        return None
    lengths = near_multiples(length, step)
    values: dict[str, Iterable[object]] = {
        "model.seq_length": (near for near in lengths if near >= least),
        _SLICES: _numbers_of_slices(scenario),
    }
    divided = f" of a multiple of {unit} tokens" if unit > 1 else ""
    return Violation(
        f"model.seq_length is {length}, which cannot be cut into {number} slices{divided}",
        values if by_flops else {**values, "parallelism.slice_balance": ["flops"]},
        ("model.seq_length", _SLICES),
    )


@_rule(
    "E421",
    "slices have the tokens that are listed for them; together they are a sequence, and "
    "tensor-parallel ranks that divide a sequence divide each slice evenly",
    what="The lengths of slices are not those of the slices of a sequence.",
    fix="Write as many lengths as parallelism.sequence_slices, which add up to model.seq_length.",
    example=(
        "model: {seq_length: 2048}\n"
        "parallelism: {pipeline: 4, sequence_slices: 2, slice_lengths: [1024, 512]}\n"
        "attention_backend: fused\nschedule: terapipe"
    ),
)
def _lengths_are_of_a_sequence(scenario: Scenario) -> Violation | None:
    split, length, unit = scenario.parallelism, scenario.model.seq_length, scenario.slice_unit
    lengths, number = split.slice_lengths, split.sequence_slices
    if lengths is None or not _runs_slices(scenario):
        return None
    fields = ("parallelism.slice_lengths", _SLICES, "model.seq_length")
    values: dict[str, Iterable[object]] = {"parallelism.slice_lengths": [LEFT_OUT]}
    written = ", ".join(map(str, lengths))
    if len(lengths) != number:
        message = f"parallelism.slice_lengths has {len(lengths)} lengths for {number} slices"
        return Violation(message, values | {_SLICES: [len(lengths)]}, fields)
    if sum(lengths) != length:
        total = sum(lengths)
        message = f"parallelism.slice_lengths ({written}) add up to {total}, not to {length} tokens"
        return Violation(message, values | {"model.seq_length": [total]}, fields)
    if any(tokens % unit for tokens in lengths):
        message = f"parallelism.slice_lengths ({written}) are not all multiples of {unit} tokens"
        return Violation(message, values, fields)
    return None


_WITHOUT_SLICES: dict[str, tuple[Callable[[Scenario], object], Iterable[object]]] = {
    "parallelism.context": (lambda scenario: scenario.parallelism.context > 1, [1]),
    "model.attention_window": (
        lambda scenario: scenario.model.attention_window is not None,
        [LEFT_OUT],
    ),
    "model.mtp_num_layers": (lambda scenario: scenario.model.mtp_num_layers, [LEFT_OUT]),
    "model.layer_pattern": (lambda scenario: scenario.model.layer_pattern, [LEFT_OUT]),
    "memory.zero_stage": (lambda scenario: scenario.memory.zero_stage > 1, [1, 0]),
}
"""For each field, when slices cannot run with it, and its legal values."""


@_rule(
    "E457",
    "a slice attends to all earlier keys, which its rank holds; token "
    "prediction needs the next slice, and Mamba-2 layers and ZeRO stages 2 and 3 are not simulated "
    "with slices",
    what="Something that needs whole sequences is combined with slices of sequences.",
    fix=(
        "Set memory.zero_stage to 1 or 0; remove context parallelism, the attention window, "
        "multi-token prediction and Mamba-2 layers."
    ),
    example=(
        "parallelism: {pipeline: 4, sequence_slices: 4}\nschedule: seq1f1b\n"
        "attention_backend: fused\nmodel: {attention_window: 512}"
    ),
)
def _whole_sequences(scenario: Scenario) -> Violation | None:
    if not _runs_slices(scenario):
        return None
    for field, (is_broken, legal) in _WITHOUT_SLICES.items():
        if is_broken(scenario):
            value: object = scenario
            for name in field.split("."):
                value = getattr(value, name)
            number = scenario.parallelism.sequence_slices
            message = f"{field} is {shown(value)}, but sequences are cut into {number} slices"
            return Violation(message, {field: legal, _SLICES: []}, (field, _SLICES))
    return None


SLICE_RULES += [
    rule_against(
        "E458",
        "each chunk runs as many slices in turn as there are stages, and all slices of a "
        "microbatch in the same turn; a single stage runs whole sequences",
        {
            _SLICES: lambda scenario: near_divisors(
                scenario.parallelism.sequence_slices, scenario.parallelism.pipeline, at_least=2
            ),
            "parallelism.pipeline": lambda scenario: numbers_of_stages(scenario, at_least=2),
        },
        lambda scenario: (
            _runs_slices(scenario)
            and (
                scenario.parallelism.pipeline == 1
                or (
                    scenario.schedule_family.has_chunks
                    and scenario.parallelism.pipeline % scenario.parallelism.sequence_slices
                )
            )
        ),
        "schedule {scenario.schedule} cannot run {scenario.parallelism.sequence_slices} slices on "
        "{scenario.parallelism.pipeline} stages",
        (_SLICES, "parallelism.pipeline"),
        what="The number of slices does not divide the number of interleaved stages.",
        fix="Set parallelism.sequence_slices to a divisor of parallelism.pipeline, 2 or more.",
        example=(
            "parallelism: {pipeline: 8, interleave: 3, sequence_slices: 3}\n"
            "model: {seq_length: 3072}\nattention_backend: fused\nschedule: seq1f1b_interleaved"
        ),
    ),
    Requires(
        "E459",
        "parallelism.slice_balance",
        needs={_SLICES: at_least(2, near=(2,))},
        off=one_of("tokens", near=(LEFT_OUT,)),
        why="slices are balanced only if sequences are cut into several",
        example="parallelism: {pipeline: 4, slice_balance: flops}",
    ),
    Requires(
        "E341",
        "parallelism.slice_lengths",
        needs={
            _SLICES: at_least(2, near=(2,)),
            "parallelism.slice_balance": one_of("tokens", near=(LEFT_OUT,)),
        },
        why="lengths are those of several slices, and are not balanced besides",
        example="parallelism: {pipeline: 4, slice_lengths: [512, 512]}",
    ),
]
