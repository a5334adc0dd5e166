"""Steps whose stragglers are known, replayed and run again without them."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.engine import simulate
from simtrain.errors import InputError
from simtrain.traces.replayed_step import StragglerReport, find_stragglers
from simtrain.traces.step_table import TracedOp, Worker, read_table, step_of
from tests.helpers.command_line import call, refused
from tests.helpers.kineto import kernel, step, write

Duration = Callable[[Worker, str, int], float]
SYNC_S = 0.25
"""What the reduction of gradients takes once all replicas are there."""


def items(stage: int, num_stages: int, microbatches: int) -> list[tuple[str, str, int]]:
    """Return what a stage does in GPipe's order: receive, compute and send each microbatch."""
    todo = []
    for kind, before, after in (
        ("forward", stage > 0, stage < num_stages - 1),
        ("backward", stage < num_stages - 1, stage > 0),
    ):
        for number in range(microbatches):
            todo += [("recv", kind, number)] * before
            todo.append(("compute", kind, number))
            todo += [("send", kind, number)] * after
    return todo


def traced(
    num_stages: int, replicas: int, microbatches: int, duration: Duration
) -> tuple[TracedOp, ...]:
    """Return what a tracer would record of a step whose transfers take no time.

    Written out op by op, without the engine: a send and its receive both last until the later one
    of the two stages is there.
    """
    ops, clock = [], {}
    for replica in range(replicas):
        todo = {stage: items(stage, num_stages, microbatches) for stage in range(num_stages)}
        clock |= {(replica, stage): 0.0 for stage in todo}
        while any(todo.values()):
            for stage in range(num_stages):
                while todo[stage] and todo[stage][0][0] == "compute":
                    _, kind, number = todo[stage].pop(0)
                    worker = Worker(replica, stage)
                    lasts = duration(worker, kind, number)
                    start = clock[replica, stage]
                    ops.append(TracedOp(worker, f"{kind}-compute", number, start, lasts))
                    clock[replica, stage] += lasts
            for stage in range(num_stages - 1):
                pair = (stage, stage + 1)
                heads = [todo[each][0] if todo[each] else None for each in pair]
                if None in heads or {head[0] for head in heads if head} != {"send", "recv"}:
                    continue
                if heads[0][1:] != heads[1][1:]:  # type: ignore[index]
                    continue
                meets = max(clock[replica, each] for each in pair)
                for each in pair:
                    what, kind, _ = todo[each].pop(0)
                    start = clock[replica, each]
                    name = f"{kind}-{what}"
                    ops.append(TracedOp(Worker(replica, each), name, -1, start, meets - start))
                    clock[replica, each] = meets
    for stage in range(num_stages):
        last = max(clock[replica, stage] for replica in range(replicas))
        for replica in range(replicas):
            start = clock[replica, stage]
            name = "grads-reduce-scatter"
            ops.append(TracedOp(Worker(replica, stage), name, -1, start, last + SYNC_S - start))
    return tuple(sorted(ops, key=lambda op: (op.worker.replica, op.worker.stage, op.start_s)))


def report_of(ops: Sequence[TracedOp]) -> StragglerReport:
    """Return the stragglers of some ops."""
    return find_stragglers(step_of(ops, "step.csv"))


def even(worker: Worker, kind: str, number: int) -> float:
    """Let a backward pass take twice a forward pass."""
    return 1.0 if kind == "forward" else 2.0


@given(
    num_stages=st.integers(1, 4),
    replicas=st.integers(1, 3),
    microbatches=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_a_replay_follows_the_trace(
    num_stages: int, replicas: int, microbatches: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    ops = traced(num_stages, replicas, microbatches, lambda *_: float(rng.uniform(0.5, 2)))
    replay = step_of(ops, "step.csv")
    assert replay.time_s == pytest.approx(replay.measured_s)
    assert replay.largest_pass_error < 1e-9
    by_events = simulate(replay.program, "simpy")
    assert np.array_equal(by_events.end_s, simulate(replay.program).end_s)


def test_even_workers_have_no_straggler() -> None:
    report = report_of(traced(4, 2, 8, even))
    assert report.culprit is None
    assert report.slowdown == pytest.approx(1)
    # (microbatches + stages - 1) passes of each kind, and the reduction.
    assert report.replayed_s == pytest.approx((8 + 3) * 3 + SYNC_S)


@pytest.mark.parametrize("factor", [1.16, 1.40, 2.03])
def test_a_slow_worker_is_named(factor: float) -> None:
    """The slowdowns that ByteDance injected."""
    slow = Worker(1, 2)

    def duration(worker: Worker, kind: str, number: int) -> float:
        return even(worker, kind, number) * (factor if worker == slow else 1.0)

    report = report_of(traced(4, 4, 32, duration))
    assert report.culprit is not None
    assert (report.culprit.kind, report.culprit.name) == ("worker", str(slow))
    # A slow stage paces the pipeline; one of 16 workers raises the mean a little.
    paced = (32 * factor + 3) / (35 * (1 + (factor - 1) / 16))
    assert report.slowdown == pytest.approx(paced, abs=0.02)


def test_a_long_last_stage_is_named() -> None:
    def duration(worker: Worker, kind: str, number: int) -> float:
        return even(worker, kind, number) * (1.4 if worker.stage == 3 else 1.0)

    culprit = report_of(traced(4, 2, 8, duration)).culprit
    assert culprit and (culprit.kind, culprit.name) == ("stage", "stage 3")


def test_a_long_sequence_is_named() -> None:
    def duration(worker: Worker, kind: str, number: int) -> float:
        is_long = worker.replica == 1 and number == 3
        return even(worker, kind, number) * (4.0 if is_long else 1.0)

    culprit = report_of(traced(2, 4, 8, duration)).culprit
    assert culprit and culprit.name == "microbatch 3 of replica 1"


@given(st.permutations(range(len(traced(2, 2, 3, even)))))
def test_rows_in_any_order_are_the_same_step(order: list[int]) -> None:
    """Transfers without duration begin with the passes after them."""
    ops = traced(2, 2, 3, lambda worker, kind, number: 1.0 + (worker.replica == number))
    assert report_of([ops[place] for place in order]) == report_of(ops)


HEAD = "dp_rank,stage,op,microbatch,start_s,duration_s"
STEP = ["0,0,forward-compute,0,0.0,1.0", "0,0,backward-compute,0,1.0,2.0"]
STAGES = [
    *("0,0,forward-send,-1,0,1", "0,0,backward-recv,-1,1,1"),
    *("0,1,backward-send,-1,0,1", "0,1,forward-recv,-1,1,1"),
]


def written(folder: pathlib.Path, *lines: str) -> pathlib.Path:
    """Write a step."""
    file = folder / "step.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def test_a_step_of_one_worker(tmp_path: pathlib.Path) -> None:
    file = written(tmp_path, HEAD, *STEP)
    outcome = call("straggler", str(file), "--json")
    data = json.loads(outcome.stdout)
    assert data["replayed_s"] == data["measured_s"] == pytest.approx(3.0)
    assert "OK: no worker" in call("straggler", str(file)).stdout


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        (["op,start_s,duration_s", "forward-compute,0,1"], "E865", None),
        ([HEAD], "E865", None),
        (["# note", HEAD, f"{'9' * 200_000},0,gc,0,0,1"], "E865", 3),
        ([HEAD, "0,0,forward,0,0.0,1.0"], "E866", 2),
        (["# note", HEAD, "0,0,forward-compute,0,0.0,-1.0"], "E866", 3),
        ([HEAD, "0,0,forward-compute,0,nan,1.0"], "E866", 2),
        ([HEAD, "0,x,forward-compute,0,0.0,1.0"], "E866", 2),
        ([HEAD, f"{'9' * 5000},0,forward-compute,0,0.0,1.0"], "E866", 2),
        ([HEAD, "--1,0,forward-compute,0,0.0,1.0"], "E866", 2),
        ([HEAD, *STEP, *STEP], "E866", 4),
        ([HEAD, "0,0,gc,0,1.0,0.0"], "E866", None),
        ([f"{HEAD},step", f"{STEP[0]},1", f"{STEP[1]},2"], "E867", 3),
        ([HEAD, *STEP, "0,0,forward-send,-1,3.0,0.0"], "E868", 4),
        ([HEAD, *STEP, "0,1,forward-send,-1,3.0,0.0"], "E868", 4),
        ([HEAD, *STAGES], "E869", 2),
    ],
)
def test_wrong_steps_are_errors(
    tmp_path: pathlib.Path, lines: list[str], code: str, line: int | None
) -> None:
    with pytest.raises(InputError) as caught:
        find_stragglers(read_table(written(tmp_path, *lines)))
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.location is not None and problem.location.line == line


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
    data = json.loads(call("straggler", str(tmp_path), "--json").stdout)
    assert [data["measured_s"], data["replayed_s"]] == pytest.approx([27e-6, 27e-6])
    assert data["largest_pass_error"] == pytest.approx(0, abs=1e-9)
    assert data["culprit"]["name"] == "rank 2"
    # Half of 10 us, then the mean of the other halves, the reduction and the update.
    assert data["culprit"]["without_s"] == pytest.approx((40 / 3 + 5 + 2) * 1e-6)


def test_traces_that_do_not_fit_together_are_errors(tmp_path: pathlib.Path) -> None:
    for rank in range(3):
        rank_trace(tmp_path, rank, 10.0, **RANKS)
    files = [str(tmp_path / f"rank{rank}.json.gz") for rank in (0, 1, 1)]
    assert "E866" in refused("straggler", *files)
    write(tmp_path / "rank2.json.gz", [step(0, 0, 9), kernel("gemm", 0, 9)])
    assert "E868" in refused("straggler", str(tmp_path))
    rank_trace(tmp_path, 2, 10.0)
    assert "E868" in refused("straggler", str(tmp_path))
    write(tmp_path / "rank2.json.gz", [step(1, 0, 9), kernel("gemm", 0, 9)])
    assert "E867" in refused("straggler", str(tmp_path))
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8bno trace")
    assert "E726" in refused("straggler", str(tmp_path))
