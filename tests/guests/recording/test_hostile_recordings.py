"""Recordings that others changed: a located error or an answer, in bounded time and memory."""

import copy
import gzip
import json
import math
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simtrain.base.input_file import FileVersion
from simtrain.errors import InputError
from simtrain.guests.recording.program import program_text, read_program
from simtrain.scenario import Scenario, check_scenario
from simtrain.studies.simulation import simulate
from tests.helpers.random_recordings import random_recording
from tests.helpers.recorded_programs import linear_layers

# Every number at its maximum, words of another type, sizes of zero, and words that control.
VALUES = (
    *(0, 1, -1, 2**31, 2**50, 2**63, 2**64, 10**30, 1.5, math.inf, True, None, "", "x", [], {}),
    *([1] * 50, [0, 0], [[0]] * 9, "bf16[0,0]", "bf16[4]", "bf16[1,1,1]", "f0[3]", "f999[3]"),
    *("1048576 x bf16[1048576]", "bf16[99999999,99999999]", "\x1b[31m", "aten.bmm", "c10d.send"),
    *("aten.convolution_backward", "aten.nll_loss_backward", "simtrain.attention", "aten.empty"),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Return each container of a document with each of its keys."""
    keys = data.keys() if isinstance(data, dict) else range(len(data))
    inner = [data[key] for key in keys if isinstance(data[key], dict | list)]
    return [(data, key) for key in keys] + [place for each in inner for place in places(each)]


def mutated(seed: int, changes: list[tuple[int, str, Any]]) -> Any:
    data = json.loads(program_text(random_recording(random.Random(seed))))
    for place, kind, value in changes:
        every = places(data)
        container, key = every[place % len(every)]
        if kind == "remove":
            del container[key]
        elif kind == "copy" and isinstance(container, list):
            container.insert(0, copy.deepcopy(container[key]))
        else:
            container[key] = value
    return data


CHANGE = st.tuples(
    st.integers(0, 10**6), st.sampled_from(["set", "remove", "copy"]), st.sampled_from(VALUES)
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 50), changes=st.lists(CHANGE, min_size=1, max_size=3))
def test_mutated_recordings_give_an_answer_or_a_located_error(
    seed: int, changes: list[tuple[int, str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "a.program.json"
    file.write_text(json.dumps(mutated(seed, changes)), "utf-8")
    try:
        scenario = Scenario.model_validate({"program": str(file), "cluster": "h100_sxm"})
        check_scenario(scenario)
        result = simulate(scenario)
    except InputError as error:
        assert str(error).count("\n") and not any(
            unicodedata.category(each) == "Cc" and each not in "\n\t" for each in str(error)
        )
        return
    assert 0 < result.iteration_time_s < math.inf
    assert result.memory.fullest.peak_bytes >= 0


def add(**changes: Any) -> dict[str, Any]:
    return {"op": "aten.add", "reads": ["bf16[8]"], "writes": ["bf16[8]"]} | changes


OP = {"op": "aten.add"}
BOMBS: dict[str, dict[str, Any] | str] = {
    "version: Field required": "{}",
    "Invalid JSON": "[",
    "version: Input should be 1": {"version": 2},
    "surprise: Extra inputs are not permitted": {"surprise": 1},
    "forward: List should have at least 1 item": {"forward": []},
    "ops, more than 1000000": {"forward": [{"count": 2_000_000, "ops": [OP, OP]}]},
    "forward.0.ops.0 (aten.add) waits for an op before the first": {
        "forward": [{"ops": [OP | {"waits": [1]}]}]
    },
    "forward.0.ops.0 (aten.add) has group 0, of 0": {"forward": [{"ops": [OP | {"group": 0}]}]},
    "a group has ranks twice, or ranks beyond 0": {"groups": [[0, 0]]},
    "tensor is 2, which does not divide gpus": {"tensor": 2},
    '"y" is no tensor': {"forward": [{"ops": [OP | {"reads": ["y"]}]}]},
    "more than 2^60": {"forward": [{"ops": [OP | {"reads": [f"u8[{10**9 - 1},{10**9},99]"]}]}]},
    "remarks: List should have at most 1000 items": {"remarks": ["x"] * 1001},
    "more than 4000000": {"remarks": ["x"] * 4_000_001},
    "sections, more than 100000": {"optimizer": [{"ops": [{"op": "x"}]}] * 100_000},
    "waits, more than 2000000": {
        "forward": [{"ops": [add()]}, {"count": 400_000, "ops": [add(waits=[1] * 20_000)]}]
    },
    "ranks of groups, more than 1048576": {"gpus": 1 << 20, "groups": [[*range(1 << 16)]] * 17},
    "bytes at aten.add, more than 2^50": {
        "forward": [{"count": 20_000, "ops": [add(makes_bytes=2**50)]}]
    },
    "bytes more at aten.add than there are": {"forward": [{"ops": [add(frees_bytes=2**50)]}]},
    "forward.0.ops.0: aten.bmm takes tensors of sizes bmk,bkn->bmn": {
        "forward": [{"ops": [add(op="aten.bmm", reads=["bf16[0,0,0]"] * 2, writes=[])]}]
    },
    "has control characters": {"forward": [{"ops": [add(op="a\x1b[31m\0")]}]},
}


@pytest.mark.parametrize("message", BOMBS)
def test_what_is_no_recording_is_refused(message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.program.json.gz"
    changes = BOMBS[message]
    data = json.loads(program_text(linear_layers()))
    text = changes if isinstance(changes, str) else json.dumps(data | changes)
    file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match="E940") as caught:
        read_program(FileVersion.of(str(file)))
    assert message in str(caught.value)
