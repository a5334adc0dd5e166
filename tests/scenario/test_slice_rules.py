"""Rules of schedules whose passes run slices of sequences."""

from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Scenario, check_scenario
from tests.helpers.toys import small

SLICED = {
    "schedule": "seq1f1b",
    "attention_backend": "fused",
    "parallelism.sequence_slices": 4,
}


def sliced(**changes: Any) -> Scenario:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return small().replace(SLICED | named)


def refusal(scenario: Scenario) -> str:
    with pytest.raises(InputError) as raised:
        check_scenario(scenario)
    return str(raised.value)


def test_slices_are_legal() -> None:
    for changes in (
        {},
        {"parallelism__slice_balance": "flops", "parallelism__sequence_slices": 5},
        {"parallelism__interleave": 2, "schedule": "seq1f1b_interleaved"},
        {"recompute": "full"},
        {"model__num_query_groups": 8, "parallelism__sequence_parallel": True},
        {"memory__zero_stage": 1, "parallelism__data": 2, "batch__global": 16},
    ):
        check_scenario(sliced(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallelism__context": 2}, "parallelism.context is 2"),
        ({"model__attention_window": 512}, "model.attention_window is 512"),
        (
            {"model__mtp_num_layers": 1, "model__position_embedding": "rope"},
            "model.mtp_num_layers is 1",
        ),
        (
            {
                "model__layer_pattern": "M-M-M-M-",
                "model__position_embedding": "none",
                "software": "megatron_core",
            },
            "model.layer_pattern is M-M-M-M-",
        ),
        (
            {
                "memory__zero_stage": 2,
                "software": "deepspeed_2022",
                "parallelism__data": 2,
                "batch__global": 16,
            },
            "memory.zero_stage is 2",
        ),
    ],
)
def test_what_needs_whole_sequences_is_refused(changes: dict[str, Any], words: str) -> None:
    assert f"E457 {words}, but sequences are cut into 4 slices" in refusal(sliced(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "1f1b"}, "E455 parallelism.sequence_slices is 4, but schedule 1f1b runs"),
        ({"parallelism__sequence_slices": 1}, "E455 schedule seq1f1b runs slices"),
        ({"parallelism__sequence_slices": 3}, "E456 model.seq_length is 2048, which cannot be"),
        (
            {
                "model__seq_length": 1024,
                "parallelism__sequence_slices": 256,
                "parallelism__slice_balance": "flops",
            },
            "E456 model.seq_length is 1024, which cannot be cut into 256 slices",
        ),
        (
            {"precision__compute": "fp8", "parallelism__sequence_slices": 8, "cluster": "h100_sxm"},
            "E456 model.seq_length is 2048, which cannot be cut into 8 slices of a multiple of 512",
        ),
        (
            {"parallelism__pipeline": 1, "batch__global": 8},
            "E458 schedule seq1f1b cannot run 4 slices on 1 stages",
        ),
        (
            {
                "parallelism__sequence_slices": 8,
                "parallelism__interleave": 2,
                "schedule": "seq1f1b_interleaved",
            },
            "E458 schedule seq1f1b_interleaved cannot run 8 slices on 4 stages",
        ),
        (
            {
                "schedule": "1f1b",
                "parallelism__sequence_slices": 1,
                "parallelism__slice_balance": "flops",
            },
            "E459 parallelism.slice_balance is flops while parallelism.sequence_slices is 1",
        ),
    ],
)
def test_sizes_and_schedules_that_cannot_run_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    refused = refusal(sliced(**changes))
    assert words in refused and "fix: " in refused
