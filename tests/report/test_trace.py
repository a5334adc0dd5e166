"""Traces read back: every span of the timeline to the nanosecond, and the kernels inside passes."""

import gzip
import itertools
import json
import pathlib
import re
from collections import Counter, defaultdict
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.report.result import Result
from simtrain.report.trace import write_trace
from simtrain.schedules import Messages, Schedule
from tests.helpers.command_line import call
from tests.helpers.toys import ONE_STAGE, run, small

BUCKETS = {"data_parallel": True}
RESULTS = {
    "pipeline": run(small()),
    "buckets": run(small({"data": 2}, overlap=BUCKETS, recompute="full")),
    "one stage": run(small(ONE_STAGE)),
}
Event = dict[str, Any]


def read(file: pathlib.Path) -> dict[str, Any]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        data: dict[str, Any] = json.load(lines)
    return data


def events_of(result: Result, folder: pathlib.Path, **chosen: Any) -> list[Event]:
    file = folder / "t.json"
    write_trace(result, file, **chosen)
    events: list[Event] = read(file)["traceEvents"]
    return events


def interval_ns(event: Event) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def check_no_overlap(events: list[Event]) -> None:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(interval_ns(event))
    for spans in threads.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(spans)):
            assert start >= end


@pytest.mark.parametrize("name", RESULTS)
def test_every_span_reads_back_to_the_nanosecond(name: str, tmp_path: pathlib.Path) -> None:
    result = RESULTS[name]
    events, timeline = events_of(result, tmp_path), result.timeline
    expected = [
        (round(start * 1e9), round(end * 1e9))
        for start, end in zip(timeline.start_s.tolist(), timeline.end_s.tolist(), strict=True)
    ]
    found = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            task = event["args"]["correlation"]
            found[task].add(interval_ns(event))
            assert event["name"].removeprefix("ncclDevKernel ") == timeline.span(task).name
    assert [found[task] for task in range(len(expected))] == [{one} for one in expected]
    assert len(found) == timeline.program.num_tasks
    check_no_overlap(events)


def test_transfers_have_arrows_and_ranks_their_memory(tmp_path: pathlib.Path) -> None:
    result = RESULTS["pipeline"]
    events = events_of(result, tmp_path)
    num_messages = len(Messages.of(result.plan.schedule))
    assert Counter(one["ph"] for one in events if one["ph"] in "sf") == {
        "s": num_messages,
        "f": num_messages,
    }
    ends = {one["id"]: one["ts"] for one in events if one["ph"] == "f"}
    assert all(one["ts"] <= ends[one["id"]] for one in events if one["ph"] == "s")
    peaks: dict[int, int] = defaultdict(int)
    for one in events:
        if one["ph"] == "C":
            peaks[one["pid"]] = max(peaks[one["pid"]], one["args"]["bytes"])
    assert tuple(peaks.values()) == result.memory.peaks_bytes
    assert [*peaks] == [0, 4, 8, 12]
    names = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert names[2] == "rank 8 (node 1, GPU 0), stage 2"


@pytest.mark.parametrize("name", RESULTS)
def test_chosen_passes_show_their_kernels(name: str, tmp_path: pathlib.Path) -> None:
    """Whole kernels and collectives, within their pass, and as long as in the pass's simulation."""
    result = RESULTS[name]
    last = result.plan.schedule.num_microbatches - 1
    events = events_of(result, tmp_path, microbatches=[0, last])
    check_no_overlap(events)
    passes = [one for one in events if one.get("cat") == "gpu_user_annotation"]
    assert {re.split("[FB]", one["name"])[1] for one in passes} == {"0", str(last)}
    kernels = [one for one in events if one.get("cat") == "kernel" and one["tid"] >= 5]
    launches = [one for one in events if one.get("cat") == "cuda_runtime"]
    assert {one["args"]["correlation"] for one in launches} >= {
        one["args"]["correlation"] for one in kernels if one["tid"] <= 8
    }
    by_rank = defaultdict(list)
    for one in passes:
        by_rank[one["pid"]].append(interval_ns(one))
    compute = [one for one in kernels if one["tid"] == 5]
    assert compute
    for one in compute:
        start, end = interval_ns(one)
        assert any(first <= end and start <= after for first, after in by_rank[one["pid"]])
    if name == "one stage":
        times = result.seconds.passes.values()
        seconds = sum(time.compute_s + time.recompute_s for time in times)
        shown = sum(end - start for start, end in map(interval_ns, compute))
        # Two microbatches, each with one forward and one backward pass.
        assert shown == pytest.approx(2e9 * seconds, rel=1e-6)


def test_a_window_chooses_passes(tmp_path: pathlib.Path) -> None:
    result = RESULTS["pipeline"]
    _, ends_s = result.iteration.intervals_s(slice(0, 1))
    events = events_of(result, tmp_path, window_s=(0.0, float(ends_s[0]) / 2))
    shown = [one["name"] for one in events if one.get("cat") == "gpu_user_annotation"]
    assert shown == ["0F0"]


def test_a_folder_has_a_file_for_each_rank(tmp_path: pathlib.Path) -> None:
    result, folder = RESULTS["pipeline"], tmp_path / "traces"
    for _ in range(2):
        write_trace(result, folder)
    assert sorted(file.name for file in folder.iterdir()) == [
        "rank_0.json.gz", "rank_12.json.gz", "rank_4.json.gz", "rank_8.json.gz",
    ]  # fmt: skip
    data = read(folder / "rank_8.json.gz")
    assert data["distributedInfo"] == {"backend": "nccl", "rank": 8, "world_size": 16}
    assert {one["pid"] for one in data["traceEvents"] if one["ph"] == "X"} == {8}
    # Holistic Trace Analysis finds the rank by this pattern.
    with gzip.open(folder / "rank_8.json.gz", "rt") as lines:
        assert re.search(r'"rank":\s+(\d+)', lines.read())[1] == "8"  # type: ignore[index]


def test_csv_is_the_schedule(tmp_path: pathlib.Path) -> None:
    result = RESULTS["pipeline"]
    write_trace(result, tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    assert Schedule.from_csv(text, "1f1b") == result.plan.schedule


def test_equal_traces_are_equal_files(tmp_path: pathlib.Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_trace(RESULTS["one stage"], tmp_path / name, microbatches=[0])
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_what_cannot_be_chosen_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="E118 there is no microbatch 8\n  fix: choose micro"):
        write_trace(RESULTS["pipeline"], tmp_path / "t.json", microbatches=[8])
    with pytest.raises(InputError, match="E118 the window 900 s to 901 s shows nothing"):
        write_trace(RESULTS["pipeline"], tmp_path / "t.json", window_s=(900.0, 901.0))
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "t.pftrace"], "t.pftrace: E117 the name does not say which format traces"),
        (["--trace", "nowhere/t.json"], "nowhere/t.json: E113 cannot write a trace here: No such"),
        (["--trace", "t.json", "--trace-microbatches", "0-1"], "--trace-microbatches 0-1: E118"),
        (["--trace", "t.json", "--trace-window", "2s"], "--trace-window 2s: E118 has no"),
    ],
)
def test_the_command_refuses_traces_that_it_cannot_write(
    arguments: list[str], message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = call("run", "gpt2_1_5b", *arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(message)
    assert not [*tmp_path.iterdir()]
    assert "--trace" in call("run", "gpt2_1_5b", "--trace-window", "0s:1s").stderr
