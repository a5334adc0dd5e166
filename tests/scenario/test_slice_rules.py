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
