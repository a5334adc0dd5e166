"""No time depends on memory that nobody has filled, or on the process that computes it."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.random_programs import random_program, times_by_engine
from benchmarks.random_scenarios import legal_scenarios
from simtrain.scenario import Scenario
from tests.helpers.pairwise import legal_pairs
from tests.helpers.poisoned import GARBAGE, outcome, poisoned

WIDE_GROUPS = Scenario.model_validate(
    {
        "model": {
            "num_layers": 6,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "seq_length": 256,
            "vocab_size": 1024,
        },
        "parallelism": {"tensor": 2, "pipeline": 3, "interleave": 2, "microbatch_group_size": 4},
        "batch": {"micro": 1, "global": 8},
    }
)
"""A rank receives the input of a later action first, in the exchange of an earlier one."""


def scenarios(of_each: int, seed: int) -> Iterator[Scenario]:
    """Yield scenarios that their clusters can run: of the past, and of all pairs of settings."""
    yield WIDE_GROUPS
    yield from map(Scenario.model_validate, legal_scenarios(of_each, seed))
    yield from legal_pairs(seed, of_each)


def check(of_each: int, seed: int) -> None:
    for scenario in scenarios(of_each, seed):
        expected = outcome(scenario)
        for byte in GARBAGE:
            with poisoned(byte):
                assert outcome(scenario) == expected, byte


def test_garbage_is_what_empty_arrays_hold() -> None:
    with poisoned(0xFF):
        assert (np.empty(3, np.int32) == -1).all() and np.isnan(np.empty_like(np.ones(2))).all()
    assert np.empty is not None and np.empty(3).shape == (3,)


@pytest.mark.parametrize("byte", GARBAGE)
def test_programs_do_not_read_garbage(byte: int) -> None:
    number = random.Random(byte)
    for _ in range(15):
        program = random_program(number)
        expected = times_by_engine(program)
        with poisoned(byte):
            found = times_by_engine(program)
        for engine, times in expected.items():
            assert all(map(np.array_equal, times, found[engine]))


def test_iterations_do_not_read_garbage() -> None:
    check(of_each=1, seed=0)


@pytest.mark.ci
def test_many_iterations_do_not_read_garbage() -> None:
    check(of_each=40, seed=1)


@pytest.mark.ci
def test_processes_give_the_same_bytes() -> None:
    """Each has another seed of hashes, and half of them other garbage."""
    for scenario in [WIDE_GROUPS, *legal_pairs(seed=2, most=1)]:
        data = json.dumps(scenario.model_dump(mode="json", by_alias=True, exclude_unset=True))
        processes = [
            subprocess.run(
                [sys.executable, "-m", "tests.helpers.poisoned", str(byte)],
                input=data,
                env=os.environ | {"PYTHONHASHSEED": str(number)},
                capture_output=True,
                text=True,
                check=True,
            )
            for number, byte in enumerate((*GARBAGE[:2], *[-1] * 2))
        ]
        assert len({process.stdout for process in processes}) == 1 and processes[0].stdout
