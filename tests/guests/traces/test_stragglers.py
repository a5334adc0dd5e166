"""Steps whose slow rank is known, replayed from traces and run again without it."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from simtrain.engine import simulate
from simtrain.guests.traces.ranks import read_rank_traces
from simtrain.guests.traces.stragglers import step_of_traces
from tests.helpers.command_line import call, refused
from tests.helpers.kineto import kernel, step, write
from tests.helpers.traces import read_json

RANKS = {"Group size": 3, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]"}


def rank_trace(folder: pathlib.Path, rank: int, work_us: float, **group: Any) -> pathlib.Path:
    """Write a rank that works, waits for a reduction of 5 us up to 25 us, and updates in 2 us.

    A gather of 3 us begins after half of the work, which hides it.
    """
    gather, reduction = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_AllReduce_RING_LL"
    events = [
        step(0, 0, 27),
        kernel("cutlass_gemm", 0, work_us),
        kernel(gather, work_us / 2, 3, 9, **group),
        kernel(reduction, work_us, 25 - work_us, 9, **group),
        kernel("multi_tensor_apply_adam", 25, 2),
    ]
    world = {"distributedInfo": {"rank": rank, "world_size": 3}}
    return write(folder / f"rank{rank}.json.gz", events, **world)


def test_a_slow_rank_of_traces_is_named(tmp_path: pathlib.Path) -> None:
    for rank, work_us in enumerate((10.0, 10.0, 20.0)):
        rank_trace(tmp_path, rank, work_us, **RANKS)
    data = json.loads(call("validate", str(tmp_path), "--format=json").stdout)
    assert [data["measured_s"], data["replayed_s"]] == pytest.approx([27e-6, 27e-6])
    assert data["culprit"]["name"] == "rank 2"
    # Half of 10 us, then the mean of the other halves, the reduction and the update.
    assert data["culprit"]["without_s"] == pytest.approx((40 / 3 + 5 + 2) * 1e-6)
    files = [file for file in sorted(tmp_path.iterdir())]
    replay = step_of_traces([rank for file in files for rank in read_rank_traces(file)])
    by_events = simulate(replay.program, "simpy")
    assert np.array_equal(by_events.end_s, simulate(replay.program).end_s)


@pytest.mark.parametrize(("work_us", "culprit"), [(20, None), (20.15, None), (20.285, "rank 2")])
def test_half_a_percent_of_the_step_makes_a_straggler(
    tmp_path: pathlib.Path, work_us: float, culprit: str | None
) -> None:
    for rank in range(3):
        rank_trace(tmp_path, rank, work_us if rank == 2 else 20, **RANKS)
    data = json.loads(call("validate", str(tmp_path), "--format=json").stdout)
    assert (data["culprit"] or {"name": None})["name"] == culprit
    typical_us = (40 + work_us) / 3 + 25 - work_us + 2
    assert data["slowdown"] == pytest.approx(27 / typical_us)
    assert ("OK: no rank" in call("validate", str(tmp_path)).stdout) == (culprit is None)


def test_the_median_step_of_ten_ranks_worked_out_by_hand(tmp_path: pathlib.Path) -> None:
    """Its ranks need 10 us but for rank 3, which needs 12, and rank 9, which needs 20.

    Where the first step of a rank is shorter or longer than this one, others decide its place.
    """
    ranks = RANKS | {"Group size": 10}
    for rank in range(10):
        work_us = {3: 12, 9: 20}.get(rank, 10)
        own = read_json(rank_trace(tmp_path, rank, work_us, **ranks))
        events = [event | {"ts": event["ts"] + 100} for event in own["traceEvents"]]
        events += [step(1, 0, 10), kernel("gemm", 0, 9), kernel("gemm", 400, 1)]
        events += [step(2, 400, 50 if rank % 2 else 5), kernel("gemm", 401, 2)]
        write(tmp_path / f"rank{rank}.json.gz", events, distributedInfo=own["distributedInfo"])
    data = json.loads(call("validate", str(tmp_path), "--format=json").stdout)
    # The mean of all is 11.2 us; without rank 9, rank 3 is the last.
    assert data["measured_s"] == pytest.approx(27e-6)
    assert data["replayed_s"] == pytest.approx(27e-6)
    assert data["typical_s"] == pytest.approx((11.2 + 5 + 2) * 1e-6)
    assert (data["num_workers"], len(data["suspects"])) == (10, 8)
    first = data["suspects"][0]
    assert (first["name"], data["culprit"]) == ("rank 9", first)
    assert first["without_s"] == pytest.approx((12 + 5 + 2) * 1e-6)
    assert first["saving"] == pytest.approx(8 / 27)
    assert first["relative_passes"] == pytest.approx(22 / 13.2)
    assert [each["saving"] for each in data["suspects"][1:]] == pytest.approx([0] * 7, abs=1e-9)
    text = call("validate", str(tmp_path)).stdout
    assert "STRAGGLER: rank 9: without it the step takes 19 µs, 29.6% less" in text


def test_ranks_that_wait_for_each_other_are_an_error(tmp_path: pathlib.Path) -> None:
    """Each starts its send before the receive that the other waits for."""
    for rank in range(2):
        sends = [{"Src Rank": rank, "Dst Rank": 1 - rank}, {"Src Rank": 1 - rank, "Dst Rank": rank}]
        events = [step(0, 0, 9), kernel("gemm", 0, 1)]
        for place, ends in enumerate(sends):
            events.append(kernel("ncclDevKernel_SendRecv", 1 + 3 * place, 3, **ends))
        world = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(tmp_path / f"rank{rank}.json.gz", events, **world)
    assert "E869" in refused("validate", str(tmp_path))


def test_traces_that_do_not_fit_together_are_errors(tmp_path: pathlib.Path) -> None:
    for rank in range(3):
        rank_trace(tmp_path, rank, 10.0, **RANKS)
    files = [str(tmp_path / f"rank{rank}.json.gz") for rank in (0, 1, 1)]
    assert "E866" in refused("validate", *files)
    write(tmp_path / "rank2.json.gz", [step(0, 0, 9), kernel("gemm", 0, 9)])
    assert "E868" in refused("validate", str(tmp_path))
    rank_trace(tmp_path, 2, 10.0)
    assert "E868" in refused("validate", str(tmp_path))
    write(tmp_path / "rank2.json.gz", [step(1, 0, 9), kernel("gemm", 0, 9)])
    assert "E867" in refused("validate", str(tmp_path))
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8bno trace")
    assert "E726" in refused("validate", str(tmp_path))
