"""Traces, read back: spans of the timeline to the nanosecond, and kernels inside passes."""

import gzip
import itertools
import pathlib
import re
from collections import defaultdict

import pytest

from simtrain.errors import InputError
from simtrain.iteration.report.result import Result
from simtrain.render.traces.write import write_trace
from simtrain.schedules import Schedule
from simtrain.studies.simulation import simulate
from simtrain.workload.passes import record_pass
from simtrain.workload.work import Collective
from tests.helpers.traced_kernels import TRACED, measured, reported_us
from tests.helpers.traces import RESULTS, Slice, Thread, read_chrome, read_json, traced

INSIDE = {"compute", "communication", "host", "data", "equal shards"}


def rank_of(result: Result, stage: int) -> str:
    """Return the label of a stage's first rank; the four ranks of a stage use half a node."""
    rank = stage * result.plan.mesh.stride("pp")
    return f"node {rank // 8}, GPU {rank % 8}, rank {rank}, stage {stage}"


def threads_of(result: Result, stream: str) -> list[Thread]:
    """Return the threads that show the tasks of a stream of the iteration."""
    num_stages, places = result.num_stages, [int(one) for one in re.findall(r"\d+", stream)]
    if "->" in stream:
        sender, receiver = places
        way = "forward" if (receiver - sender) % num_stages == 1 else "backward"
        ends = [(sender, f"sends {way}"), (receiver, f"receives {way}")]
    elif places:
        is_own = stream.startswith("stage")
        name = "stage" if is_own else "gradient and parameter buckets"
        ends = [(places[0], name)]
    else:
        stages = {0, num_stages - 1} if stream == "embedding" else range(num_stages)
        ends = [(stage, stream) for stage in stages]
    return [(rank_of(result, stage), name) for stage, name in ends]


def check_spans(result: Result, folder: pathlib.Path) -> None:
    expected = defaultdict(list)
    for span in result.timeline.spans():
        for thread in threads_of(result, span.stream):
            one = Slice(span.name, round(span.start_s * 1e9), round(span.end_s * 1e9))
            expected[thread].append(one)
    trace = traced(result, folder)
    trace.check_no_overlap()
    del trace.slices["critical path", ""]
    assert trace.slices == expected


@pytest.mark.parametrize("name", RESULTS)
def test_every_span_reads_back_to_the_nanosecond(name: str, tmp_path: pathlib.Path) -> None:
    check_spans(RESULTS[name], tmp_path)


@pytest.mark.parametrize("name", RESULTS)
def test_counters_have_the_peak_memory(name: str, tmp_path: pathlib.Path) -> None:
    result = RESULTS[name]
    trace = traced(result, tmp_path)
    ranks = [rank_of(result, stage) for stage in range(result.num_stages)]
    peaks = [max(value for _, value in trace.counters[rank, "memory"]) for rank in ranks]
    assert tuple(peaks) == result.memory.peaks_bytes


def test_a_folder_with_traces_of_other_ranks_is_refused(tmp_path: pathlib.Path) -> None:
    one_stage, pipeline = RESULTS["one stage"], RESULTS["pipeline"]
    write_trace(one_stage, tmp_path)
    write_trace(pipeline, tmp_path)  # it replaces rank 0
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"rank_\d+\.json\.gz: E113 "):
        write_trace(one_stage, tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files


@pytest.mark.parametrize("name", RESULTS)
def test_the_critical_path_is_a_track(name: str, tmp_path: pathlib.Path) -> None:
    result = RESULTS[name]
    slices = traced(result, tmp_path).slices["critical path", ""]
    assert slices[0].start_ns == 0
    assert slices[-1].end_ns == round(result.iteration_time_s * 1e9)
    assert all(one.end_ns == two.start_ns for one, two in itertools.pairwise(slices))
    path = [f"{span.name} ({span.stream})" for span in result.timeline.critical_path()]
    assert [one.name for one in slices] == path


@pytest.mark.parametrize("name", RESULTS)
def test_chosen_passes_show_their_kernels(name: str, tmp_path: pathlib.Path) -> None:
    """Kernels and collectives lie inside their pass, and have the durations of the pass's
    simulation.
    """
    result = RESULTS[name]
    last = result.plan.schedule.num_microbatches - 1
    trace = traced(result, tmp_path, microbatches=[0, last])
    trace.check_no_overlap()
    for stage in range(result.num_stages):
        rank = rank_of(result, stage)
        # A pass that buckets cut has several spans of the same name.
        passes = defaultdict(list)
        for one in trace.slices[rank, "stage"]:
            if re.fullmatch(rf"\d+[FB](0|{last})", one.name):
                passes[one.name].append(one)
        intervals = [(own[0].start_ns, own[-1].end_ns) for own in passes.values()]
        inside = [
            one for (of, thread), own in trace.slices.items() if of == rank and thread in INSIDE
            for one in own
        ]  # fmt: skip
        assert inside
        for one in inside:
            assert any(start <= one.start_ns and one.end_ns <= end for start, end in intervals)
    if name == "one stage":
        times = result.seconds.passes.values()
        seconds = sum(time.compute_s + time.recompute_s for time in times)
        shown = sum(end - start for _, start, end in trace.slices[rank, "compute"])
        # Two microbatches have one forward and one backward pass each.
        assert shown == pytest.approx(2e9 * seconds, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_kernels_take_the_times_of_the_report(name: str, tmp_path: pathlib.Path) -> None:
    result, file = simulate(TRACED[name]), tmp_path / "t.json"
    write_trace(result, file, window_s=(0.0, result.iteration_time_s))
    events = read_json(file)["traceEvents"]
    for stage in range(result.num_stages):
        kernels = measured(events, stage * result.plan.mesh.stride("pp"))
        compute_us, exposed_us = reported_us(result, stage)
        assert kernels.compute_us == pytest.approx(compute_us, abs=0.2)
        assert kernels.other_us == pytest.approx(exposed_us, abs=0.2)


def test_only_collectives_have_the_names_of_nccl_kernels(tmp_path: pathlib.Path) -> None:
    """PyTorch's fully_shard also copies, casts and adds on the streams of its collectives."""
    result, file = simulate(TRACED["fully_shard"]), tmp_path / "t.json"
    write_trace(result, file, microbatches=[1])
    kernels = [one for one in read_json(file)["traceEvents"] if "stream" in one.get("args", {})]
    names = {word: set() for word in ("ncclDevKernel", "Memcpy DtoD")}
    for one in kernels:
        first, name = re.fullmatch(r"(ncclDevKernel |Memcpy DtoD )?(.*)", one["name"]).groups()
        assert (one["cat"] == "gpu_memcpy") == (first == "Memcpy DtoD ")
        if first and " communication" not in name and " copies" not in name:
            names[first.strip()].add(name)
    passes = result.plan.variants.values()
    ops = [op for one in passes for op in record_pass(one).ops]
    steps = [op for step in result.plan.steps for own in step.values() for op in own]
    collectives = {op.name for op in (*ops, *steps) if isinstance(op.work, Collective)}
    copies = {op.name for op in ops if op.stream_group is not None}
    assert names["Memcpy DtoD"] == copies >= {"parameter copy in", "gradient accumulate"}
    assert names["ncclDevKernel"] <= collectives and "parameter gather" in collectives


def test_reductions_after_all_passes_show_their_kernels(tmp_path: pathlib.Path) -> None:
    """They belong to the last microbatch."""
    result = simulate(TRACED["reduction after all passes"])
    last = result.plan.schedule.num_microbatches - 1
    spans = [one for one in result.timeline.spans() if one.name == "gradient reduction"]
    assert len(spans) == result.num_stages
    first_s = min(one.start_s for one in spans)
    for chosen, is_shown in (
        ({"microbatches": [0]}, False),
        ({"microbatches": [last]}, True),
        ({"window_s": (first_s, result.iteration_time_s)}, True),
    ):
        slices = traced(result, tmp_path, **chosen).slices
        for stage in range(result.num_stages):
            rank = rank_of(result, stage)
            names = [one.name for one in slices[rank, "data"]]
            assert ("gradient reduction" in names) == is_shown


def test_a_window_chooses_passes(tmp_path: pathlib.Path) -> None:
    result = RESULTS["pipeline"]
    end_s = float(result.timeline.end_s[result.passes.last[0]])
    write_trace(result, tmp_path / "t.json", window_s=(0.0, end_s / 2))
    events = read_json(tmp_path / "t.json")["traceEvents"]
    launches = [one["ts"] for one in events if one.get("cat") == "cuda_runtime"]
    assert launches and max(launches) < 1e6 * end_s  # only launches of 0F0


def test_a_folder_has_a_file_for_each_rank(tmp_path: pathlib.Path) -> None:
    result, folder = RESULTS["pipeline"], tmp_path / "traces"
    for _ in range(2):
        write_trace(result, folder)
    assert sorted(file.name for file in folder.iterdir()) == [
        "rank_0.json.gz", "rank_12.json.gz", "rank_4.json.gz", "rank_8.json.gz",
    ]  # fmt: skip
    data = read_json(folder / "rank_8.json.gz")
    assert data["distributedInfo"] == {"backend": "nccl", "rank": 8, "world_size": 16}
    assert {rank for rank, _ in read_chrome(data).slices} == {rank_of(result, 2)}
    # Holistic Trace Analysis finds the rank by this pattern.
    with gzip.open(folder / "rank_8.json.gz", "rt") as lines:
        assert re.search(r'"rank":\s+(\d+)', lines.read())[1] == "8"  # type: ignore[index]


@pytest.mark.parametrize("name", RESULTS)
def test_a_kernel_and_its_launch_share_a_number_of_their_own(
    name: str, tmp_path: pathlib.Path
) -> None:
    """Processes and threads are sorted, counters change, and one step is the iteration."""
    result, numbers = RESULTS[name], defaultdict(list)
    write_trace(result, tmp_path / "t.json", microbatches=[0, 1])
    events, path = read_json(tmp_path / "t.json")["traceEvents"], result.scenario.num_gpus
    named = [one for one in events if one["ph"] == "M" and one["name"].endswith("index")]
    for one in named:
        place = one.get("tid", one["pid"])
        assert one["args"]["sort_index"] == (-1 if one["pid"] == path else place)
    ranks = [one["pid"] for one in named if "tid" not in one and one["pid"] != path]
    steps = [one for one in events if one["name"] == "ProfilerStep#0"]
    whole_us = pytest.approx(1e6 * result.iteration_time_s, abs=1e-3)
    assert [(one["pid"], one["ts"], one["dur"]) for one in steps] == [
        (rank, 0, whole_us) for rank in ranks
    ]
    for one in events:
        if one["ph"] == "X" and one["pid"] != path and one not in steps:
            numbers[one["pid"], one["args"]["correlation"]].append(one)
    for (rank, number), shown in numbers.items():
        on_gpu = [one for one in shown if "stream" in one["args"]]
        has_launch = number >= result.timeline.program.num_tasks
        launches = [one for one in shown if one["cat"] == "cuda_runtime"]
        assert (len(launches), len(on_gpu), len(shown)) == (1, 1, 2) or not has_launch
        for one in on_gpu:
            assert one["args"]["stream"] == one["tid"] and one["args"]["device"] == rank % 8
    for rank in ranks:
        counted = [one for one in events if one["ph"] == "C" and one["pid"] == rank]
        for first, second in itertools.pairwise(counted):
            assert first["ts"] < second["ts"] and first["args"] != second["args"]


@pytest.mark.parametrize("name", ["t.csv", "T.CSV"])
def test_csv_contains_the_schedule(name: str, tmp_path: pathlib.Path) -> None:
    result = RESULTS["pipeline"]
    write_trace(result, tmp_path / name)
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert Schedule.from_csv(text, "1f1b") == result.plan.schedule


def test_microbatches_and_windows_without_passes_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        InputError, match="E118 there is no microbatch 8\n  fix: choose from 0 to 7"
    ):
        write_trace(RESULTS["pipeline"], tmp_path / "t.json", microbatches=[8])
    with pytest.raises(InputError, match="E118 the window 900 s to 901 s shows nothing"):
        write_trace(RESULTS["pipeline"], tmp_path / "t.json", window_s=(900.0, 901.0))
    end_s = RESULTS["pipeline"].iteration_time_s
    for chosen, words in (
        ({"window_s": (0.9999 * end_s, end_s)}, "no pass runs"),  # the optimizer
        ({"window_s": (0.0, end_s / 100), "microbatches": [7]}, "no pass of these microbatches"),
    ):
        with pytest.raises(InputError, match=f"window: E118 {words}"):
            write_trace(RESULTS["pipeline"], tmp_path / "t.json", **chosen)
    assert not (tmp_path / "t.json").exists()


def test_equal_traces_are_equal_files(tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    for file in (first, second):
        write_trace(RESULTS["one stage"], file, microbatches=[0])
    assert first.read_bytes() == second.read_bytes()
