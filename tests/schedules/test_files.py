"""Schedules from users' files: reading, rules, simulation."""

from pathlib import Path
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, load_scenario
from simtrain.schedules import (
    FileVersion,
    build,
    interleaved,
    one_f_one_b,
    read_schedule,
    time_slots,
)
from simtrain.studies.simulation import simulate
from simtrain.studies.sweep.grid import load_sweep
from tests.helpers.command_line import call
from tests.helpers.toys import scenario_with

MODEL = {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
OVERLAP = {"pipeline": True}
ZERO_BUBBLE = """\
0F0,0F1,0I0,0F2,0I1,0F3,0I2,0W0,0I3,0W1,0W2,0W3
1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3
"""
LATE = "0F0,0F1,0F2,0F3,0B3,0B1,0B2,0B0\n1F0,1F1,1F2,1F3,1B3,1B1,1B2,1B0\n"


# Stage 0 receives 1B0 after it has sent 0F2, which stage 1 receives after it has sent 1B0.
CROSSED = "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def toy(text: str, **sections: Any) -> Scenario:
    """Return four microbatches on two stages, in the order of a file with this text."""
    Path("order.csv").write_text(text)
    sections = {"overlap": OVERLAP, "batch": {"micro": 1, "global": 4}} | sections
    split = {"pipeline": 2} | sections.pop("parallelism", {})
    model = MODEL | sections.pop("model", {})
    return scenario_with(model, parallelism=split, schedule="order.csv", **sections)


def test_an_order_of_its_own_blocks_if_asked() -> None:
    """Exchanges only add time: no less than with asynchronous transfers; both engines agree."""
    scenario = toy(ZERO_BUBBLE, overlap={"pipeline": False})
    blocking, overlapped = simulate(scenario), simulate(toy(ZERO_BUBBLE))
    assert blocking.iteration_time_s > overlapped.iteration_time_s
    assert simulate(scenario, engine="simpy").iteration_time_s == blocking.iteration_time_s
    assert blocking.memory.peaks_bytes == overlapped.memory.peaks_bytes


def without_scenario(result: Result) -> dict[str, Any]:
    return result.to_dict() | {"scenario": None}


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_written_schedule_is_read_back(overlaps: bool) -> None:
    """The result is equal to the last bit, also with blocking transfers."""
    split = {"pipeline": 4, "interleave": 2}
    named = scenario_with(
        MODEL, parallelism=split, batch={"micro": 1, "global": 8}, overlap={"pipeline": overlaps}
    )
    Path("x.yaml").write_text(
        f"model: {MODEL}\nparallelism: {split}\nbatch: {{micro: 1, global: 8}}\n"
        f"overlap: {{pipeline: {str(overlaps).lower()}}}\n"
    )
    assert call("run", "x.yaml", "-o", "o.csv").exit_code == 0
    printed = call("run", "--show", "schedule", "x.yaml", "--format=csv").stdout
    assert Path("o.csv").read_text() == printed
    read = load_scenario("x.yaml", ["schedule=o.csv"])
    assert (read.schedule, read.schedule_family.name) == ("o.csv", "interleaved")
    assert without_scenario(simulate(read)) == without_scenario(simulate(named))


@pytest.mark.parametrize("sections", [{}, {"overlap": OVERLAP | {"data_parallel": True}}])
def test_an_order_of_megatron_takes_equally_long_if_it_is_not_recognized(
    sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order from a file has the tasks, passes and memory of the named schedule."""
    text = interleaved(2, 2, 4).to_csv()
    split = {"interleave": 2, "data": 2}
    given = {"batch": {"micro": 1, "global": 8}, "recompute": {"strategy": "full"}} | sections
    recognized = simulate(toy(text, parallelism=split, **given))
    read_schedule.cache_clear()
    monkeypatch.setattr("simtrain.schedules._named", lambda *_: iter(()))
    custom = simulate(toy(text, parallelism=split, **given))
    assert (recognized.plan.schedule.name, custom.plan.schedule.name) == ("interleaved", "custom")
    assert without_scenario(custom) == without_scenario(recognized)


def test_a_zero_bubble_schedule_runs_in_its_order() -> None:
    """FLOPs equal those of unsplit backward passes, and each stage runs the actions of its line."""
    split, whole = simulate(toy(ZERO_BUBBLE)), simulate(toy(one_f_one_b(2, 4).to_csv()))
    assert split.plan.schedule.to_csv() == ZERO_BUBBLE
    assert (split.hardware_flops, split.model_flops) == (whole.hardware_flops, whole.model_flops)
    for stage, line in enumerate(ZERO_BUBBLE.splitlines()):
        spans = [one for one in split.timeline.spans() if one.stream == f"stage {stage}"]
        passes = [one.name for one in spans if one.kind in ("forward", "backward")]
        assert passes == line.split(",")
    Path("again.csv").write_text(split.plan.schedule.to_csv())
    again = simulate(split.scenario.replace({"schedule": "again.csv"}))
    assert again.iteration_time_s == split.iteration_time_s


def test_passes_are_counted_one_by_one() -> None:
    """Only the second stage splits backward passes, and only two of four."""
    text = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1I0,1W0,1F1,1B1,1F2,1I2,1W2,1F3,1B3\n"
    plan = simulate(toy(text)).plan
    assert plan.num_passes == {
        PassVariant(0, "F"): 4,
        PassVariant(0, "B"): 4,
        PassVariant(1, "F"): 4,
        PassVariant(1, "B"): 2,
        PassVariant(1, "I"): 2,
        PassVariant(1, "W"): 2,
    }


@pytest.mark.parametrize("text", [LATE, LATE.replace("1B0", "1I0,1W0"), ZERO_BUBBLE])
def test_gradients_are_reduced_after_the_last_weight_gradient(text: str) -> None:
    """In a stage's own order this may be the one of microbatch 0, and a B or a W."""
    result = simulate(
        toy(
            text,
            parallelism={"data": 2},
            batch={"micro": 1, "global": 8},
            overlap=OVERLAP | {"data_parallel": True, "gradient_buckets": "layer"},
        )
    )
    for stage, line in enumerate(text.splitlines()):
        spans = [*result.timeline.spans()]
        last = [one for one in spans if one.name == line.split(",")[-1]]
        buckets = [one for one in spans if one.stream == f"data {stage}"]
        assert len(last) == len(buckets) == 4
        for part, bucket in zip(last, buckets, strict=True):
            assert bucket.start_s >= part.end_s
            assert bucket.name == f"gradients of {part.name}"
        assert buckets[0].start_s == last[0].end_s


def test_a_path_is_relative_to_the_scenario() -> None:
    Path("inside").mkdir()
    Path("inside/mine.csv").write_text(ZERO_BUBBLE)
    Path("inside/x.yaml").write_text(
        f"model: {MODEL}\nparallelism: {{pipeline: 2}}\nbatch: {{micro: 1, global: 4}}\n"
        "schedule: mine.csv\noverlap: {pipeline: true}\n"
    )
    assert load_scenario("inside/x.yaml").schedule == "inside/mine.csv"


def test_a_file_that_changes_is_read_again() -> None:
    Path("order.csv").write_text(build("1f1b", 2, 1, 4).to_csv())
    first = read_schedule(FileVersion.of("order.csv"))
    Path("order.csv").write_text(ZERO_BUBBLE)
    second = read_schedule(FileVersion.of("order.csv"))
    assert (first.name, second.name) == ("1f1b", "custom")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n1F0, 1X0\n", "order.csv:2:6: E401 '1X0' is not an action"),
        ("0F0,0B0,0B0\n1F0,1B0\n", "order.csv:1:9: E405 rank 0 runs 0B0 twice"),
        ("0F0,0B0\n1B0,1F0\n", "order.csv:2:1: E406 rank 1 runs 1B0 before 1F0"),
        ("0F0,0B0,1F0\n1B0\n", "order.csv:1:9: E404 1F0 does not belong on rank 0"),
        ("0F0,0B0\n1F0\n", "order.csv:2: E407 rank 1 does not run virtual stage 1, microbatch 0"),
        (
            "0F0,,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            "order.csv:1:6: E408 rank 0 waits at 0B0 for 1B0, rank 1 waits at 1F1 for 0F1",
        ),
    ],
)
def test_errors_name_the_line_and_the_column_of_the_file(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        toy(text)
    assert str(raised.value).startswith(message)
    assert all(problem.fix for problem in raised.value.problems)


@pytest.mark.parametrize(
    ("text", "sections", "message", "fix"),
    [
        (
            ZERO_BUBBLE,
            {"batch": {"micro": 1, "global": 6}},
            "E414 order.csv has 2 stages x 1 chunks and 4 microbatches, but the scenario has 2 x 1 "
            "and 6",
            "batch.global: 4",
        ),
        (
            interleaved(2, 2, 4).to_csv(),
            {"parallelism": {"interleave": 1}},
            "E414 order.csv has 2 stages x 2 chunks",
            "parallelism.interleave: 2",
        ),
        (
            CROSSED,
            {"overlap": {"pipeline": False}},
            "E415 schedule is order.csv, whose stages 0 and 1 would wait",
            "overlap.pipeline: true",
        ),
        (
            build("zbv", 2, 2, 4).to_csv().replace("1I0,1W0", "1B0"),
            {
                "overlap": OVERLAP | {"data_parallel": True, "align_gradient_reduction": True},
                "parallelism": {"data": 2, "interleave": 2},
                "batch": {"micro": 1, "global": 8},
            },
            "E416 overlap.align_gradient_reduction is true",
            "overlap.align_gradient_reduction: false",
        ),
        (
            ZERO_BUBBLE,
            {
                "memory": {"zero_stage": 3},
                "software": {"stack": "torchtitan"},
                "model": {"tied_embeddings": False},
                "parallelism": {"data": 2},
                "batch": {"micro": 1, "global": 8},
            },
            "E417 memory.zero_stage is 3, but order.csv splits backward passes",
            "memory.zero_stage: 1 or 0",
        ),
        ("0F0,0W0,0B0", {}, "E406", "move"),
    ],
)
def test_files_that_do_not_fit_the_scenario_are_refused(
    text: str, sections: dict[str, Any], message: str, fix: str
) -> None:
    with pytest.raises(InputError) as raised:
        toy(text, **sections)
    assert message in str(raised.value) and fix in str(raised.value)


def test_one_stage_may_run_in_any_order() -> None:
    """Without messages nothing blocks."""
    text = "0F0,0F1,0B1,0I0,0W0,0F2,0B2,0F3,0B3\n"
    scenario = toy(text, parallelism={"pipeline": 1}, overlap={})
    assert simulate(scenario).iteration_time_s > 0
    assert time_slots(simulate(scenario).plan.schedule).tolist() == [*range(9)]


def test_paths_on_the_axis_of_a_sweep_are_relative_to_the_sweep() -> None:
    """This holds also if the sweep runs in another folder."""
    Path("inside").mkdir()
    for name, text in (("a", ZERO_BUBBLE), ("b", build("1f1b", 2, 1, 4).to_csv())):
        Path(f"inside/{name}.csv").write_text(text)
    Path("inside/sweep.yaml").write_text(
        f"base: {{model: {MODEL}, parallelism: {{pipeline: 2}}, batch: {{micro: 1, global: 4}}, "
        "overlap: {pipeline: true}}\naxes: {schedule: [a.csv, b.csv]}\n"
    )
    (axis,) = load_sweep("inside/sweep.yaml").axes
    assert [*axis.values] == ["inside/a.csv", "inside/b.csv"]
