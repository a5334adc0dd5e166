"""Rules of schedules whose passes run slices of each sequence (Seq1F1B).

Source: the authors' Megatron-LM (thunlp/Seq1F1B: `pipeline_parallel/schedules.py`,
`sequence_split.py`, `transformer/seq1f1b_attn.py`).
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, against, at_least, excludes, requires, shown, value_getter
from simtrain.scenario.schema import Scenario
from simtrain.schedules.registry import NAMED

SLICE_RULES = Rules()
rule = SLICE_RULES.rule
_SLICES = "parallelism.sequence_slices"
_CUTTING = [name for name, family in NAMED.items() if family.cuts_sequences]


def _cuts(scenario: Scenario) -> bool:
    return scenario.parallelism.sequence_slices > 1


def _runs_slices(scenario: Scenario) -> bool:
    return _cuts(scenario) and scenario.schedule_family.cuts_sequences


@rule(
    "E455",
    f"{' and '.join(_CUTTING)} run slices of each sequence; other schedules run whole sequences",
    "parallelism: {pipeline: 4, sequence_slices: 4}\nschedule: 1f1b",
)
def _schedule_runs_slices(scenario: Scenario) -> str | None:
    if _cuts(scenario) is scenario.schedule_family.cuts_sequences:
        return None
    schedule, number = scenario.schedule, scenario.parallelism.sequence_slices
    if _cuts(scenario):
        return f"{_SLICES} is {number}, but schedule {schedule} runs whole sequences"
    return f"schedule {schedule} runs slices of each sequence, but {_SLICES} is 1"


@rule(
    "E456",
    "slices have equally many tokens, or about equally many FLOPs; tensor-parallel ranks that "
    "divide a sequence divide each slice evenly, and fp8 and fp4 products need multiples of 128 "
    "tokens",
    "model: {seq_length: 2048}\nparallelism: {pipeline: 4, sequence_slices: 3}\n"
    "attention_backend: fused\nschedule: seq1f1b",
)
def _sequence_in_slices(scenario: Scenario) -> str | None:
    split, length, unit = scenario.parallelism, scenario.model.seq_length, scenario.slice_unit
    by_flops, number = split.slice_balance == "flops", split.sequence_slices
    # The shortest slice of equally many FLOPs has at least half as many tokens as the mean.
    step = unit if by_flops else number * unit
    least = 2 * number * unit if by_flops else step
    is_even = length % step == 0 and length >= least
    if not _runs_slices(scenario) or split.slice_lengths is not None or is_even:
        return None
    divided = f" of a multiple of {unit} tokens" if unit > 1 else ""
    return f"model.seq_length is {length}, which cannot be cut into {number} slices{divided}"


@rule(
    "E421",
    "slices have the tokens that are listed for them; together they are a sequence, and "
    "tensor-parallel ranks that divide a sequence divide each slice evenly",
    "model: {seq_length: 2048}\n"
    "parallelism: {pipeline: 4, sequence_slices: 2, slice_lengths: [1024, 512]}\n"
    "attention_backend: fused\nschedule: terapipe",
)
def _lengths_are_of_a_sequence(scenario: Scenario) -> str | None:
    split, length, unit = scenario.parallelism, scenario.model.seq_length, scenario.slice_unit
    lengths, number = split.slice_lengths, split.sequence_slices
    if lengths is None or not _runs_slices(scenario):
        return None
    written = ", ".join(map(str, lengths))
    if len(lengths) != number:
        return f"parallelism.slice_lengths has {len(lengths)} lengths for {number} slices"
    total = sum(lengths)
    if total != length:
        return f"parallelism.slice_lengths ({written}) add up to {total}, not to {length} tokens"
    if any(tokens % unit for tokens in lengths):
        return f"parallelism.slice_lengths ({written}) are not all multiples of {unit} tokens"
    return None


_WHOLE: dict[str, object] = {
    "parallelism.context": 1,
    "model.attention_window": None,
    "model.mtp_num_layers": 0,
    "model.layer_pattern": None,
    "memory.zero_stage": (0, 1),
}
"""The fields that slices limit, and their legal values."""


@rule(
    "E457",
    "a slice attends to all earlier keys, which its rank holds; token "
    "prediction needs the next slice, and Mamba-2 layers and ZeRO stages 2 and 3 are not simulated "
    "with slices",
    "parallelism: {pipeline: 4, sequence_slices: 4}\nschedule: seq1f1b\n"
    "attention_backend: fused\nmodel: {attention_window: 512}",
)
def _whole_sequences(scenario: Scenario) -> str | None:
    if not _runs_slices(scenario):
        return None
    number = scenario.parallelism.sequence_slices
    for field, legal in _WHOLE.items():
        value = value_getter(field)(scenario)
        if value not in (legal if isinstance(legal, tuple) else (legal,)):
            return f"{field} is {shown(value)}, but sequences are cut into {number} slices"
    return None


SLICE_RULES += [
    against(
        "E458",
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
        why="each chunk runs as many slices in turn as there are stages, and all slices of a "
        "microbatch in the same turn; a single stage runs whole sequences",
        example="parallelism: {pipeline: 8, interleave: 3, sequence_slices: 3}\n"
        "model: {seq_length: 3072}\nattention_backend: fused\nschedule: seq1f1b_interleaved",
    ),
    requires(
        "E459",
        "parallelism.slice_balance",
        needs={_SLICES: at_least(2)},
        off="tokens",
        why="slices are balanced only if sequences are cut into several",
        example="parallelism: {pipeline: 4, slice_balance: flops}",
    ),
    requires(
        "E341",
        "parallelism.slice_lengths",
        needs={
            _SLICES: at_least(2),
            "parallelism.slice_balance": "tokens",
        },
        why="lengths are those of several slices, and are not balanced besides",
        example="parallelism: {pipeline: 4, slice_lengths: [512, 512]}",
    ),
]


_PACKED = "batch.packed_lengths"


def _unit(scenario: Scenario) -> int:
    """Return the number of slices into which context-parallel ranks cut each document."""
    return 2 * scenario.parallelism.context


def _has_other_kernel(scenario: Scenario) -> bool:
    split = scenario.parallelism
    exchanges = split.context > 1 and not split.context_exchange.takes_documents
    is_other = scenario.attention_backend != "fused" or exchanges or split.sequence_slices > 1
    return is_other or scenario.model.layer_pattern is not None


def _uneven_documents(scenario: Scenario) -> bool:
    if scenario.parallelism.context == 1 or _has_other_kernel(scenario):
        return False
    return any(length % _unit(scenario) for length, _ in scenario.documents)


PACKING_RULES = Rules()
PACKING_RULES += [
    requires(
        "E410",
        "batch.micro",
        needs={_PACKED: None},
        off=1,
        why="a microbatch in the THD format is one packed sequence, which Megatron-Bridge requires",
        example="batch: {micro: 2, global: 8, packed_lengths: [512]}\nattention_backend: fused",
    ),
    excludes(
        "E419",
        _PACKED,
        "attention has no kernel for variable lengths",
        _has_other_kernel,
        reads=(
            "attention_backend",
            "parallelism.context_communication",
            "parallelism.sequence_slices",
            "model.layer_pattern",
        ),
        off=None,
        why="attention within documents needs a fused kernel for variable lengths; with context "
        "parallelism it is simulated with p2p only, and not with slices of sequences or in "
        "hybrid models",
        example="batch: {micro: 1, packed_lengths: [512]}\nattention_backend: unfused",
        first=(
            "attention_backend",
            "parallelism.context_communication",
            "parallelism.sequence_slices",
            "model.layer_pattern",
        ),
    ),
    against(
        "E420",
        _uneven_documents,
        "batch.packed_lengths gives documents whose lengths are not multiples of 2 x "
        "parallelism.context",
        why="each context-parallel rank holds two slices of every document, which must be padded "
        "to a multiple of 2 x parallelism.context (pad_seq_to_mult)",
        example="batch: {micro: 1, packed_lengths: [500]}\nparallelism: {context: 4}\n"
        "attention_backend: fused",
    ),
]
