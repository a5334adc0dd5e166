"""Statistics of errors by hand, our own predictions, long tables, errors that give intervals."""

import dataclasses
import itertools
import math
import pathlib
import shutil
import statistics

import pytest

from simtrain.base.resources import find_profile
from simtrain.errors import InputError
from simtrain.guests.importing.runs import read_runs
from simtrain.hardware.evidence import MeasuredRuns, RunKind, validated_on
from simtrain.hardware.interval import interval_of, ratio_interval, shared_errors
from simtrain.scenario import load_scenario
from simtrain.scenario.resolved import settings_of
from simtrain.studies.evaluation import Evaluation, Evaluator
from simtrain.studies.simulation import simulate
from simtrain.studies.validation import (
    MOST_MEAN_ERROR,
    Errors,
    RunSettings,
    ValidatedRun,
    Validation,
    difference_of,
    error_classes,
    errors_text,
    in_one_line,
    validate_runs,
)
from simtrain.views.validation import validation_view
from tests.helpers.command_line import ROOT

KIND = RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False)
HEAD = "name,layers,hidden,heads,seq,tp,pp,dp,micro_batch,global_batch,iteration_s,peak_mem_gb"
SETTINGS = {"GPUs": 8, "tensor": 8}


def row_of(
    measured_s: float,
    simulated_s: float = 1.0,
    model: str = "m",
    kind: RunKind = KIND,
    **more: object,
) -> ValidatedRun:
    """Return a run with its prediction."""
    fields = {"settings": SETTINGS, "kind": kind, "fits": True} | more
    times = {"iteration_time_s": measured_s, "simulated_s": simulated_s}
    return ValidatedRun("", model, "f", 1, **times, **fields)  # type: ignore[arg-type]


def off(error: float, kind: RunKind = KIND, **more: object) -> ValidatedRun:
    """Return a run whose prediction is off by an error."""
    return row_of(1 / (1 + error), kind=kind, **more)


def classes_of(rows: list[ValidatedRun]) -> list[MeasuredRuns]:
    return error_classes(Validation.of("h100_sxm", rows), "x").measured_runs


def test_statistics_by_hand() -> None:
    errors = Errors.of([-0.2, 0.0, 0.05, 0.1, 0.3])
    assert errors.num == 5
    assert errors.mean_abs_error == pytest.approx(0.13)
    assert errors.median_error == pytest.approx(0.1)
    assert errors.bias == pytest.approx(0.05)
    assert errors.within_10_percent == pytest.approx(0.6)
    assert errors.worst_error == 0.3
    assert (errors.p25, errors.p75) == (pytest.approx(0.0), pytest.approx(0.1))
    assert Errors.of([None]).mean_abs_error is None


def test_what_fits_is_counted() -> None:
    rows = [row_of(1.0), row_of(1.0, fits=False), row_of(1.0, ran=False, fits=False)]
    validation = Validation.of("h100_sxm", [*rows, ValidatedRun("", "", "f", 1, refusal="no")])
    assert (validation.num_rows, validation.num_simulated, validation.num_refused) == (4, 3, 1)
    assert [*validation.fits.values()] == [2, 1, 1, 1]
    assert not validation.most_do_not_fit
    assert Validation.of("h100_sxm", [*rows, *rows[1:2] * 3]).most_do_not_fit


def test_a_prediction_of_ours_has_no_error(tmp_path: pathlib.Path) -> None:
    """A table of our own times and peaks: another way to the same numbers."""
    lines = [
        "layers,hidden,heads,seq,vocab,tp,sp,pp,dp,micro_batch,global_batch,recompute,"
        "parallelism.scatter_gather,iteration_s,peak_bytes"
    ]
    for name in ("table5_22b_present", "table5_22b_full"):
        result = simulate(load_scenario(name))
        scenario = result.scenario
        model, split, batch = scenario.model, scenario.parallelism, scenario.batch
        cells = (
            *(model.num_layers, model.hidden_size, model.num_attention_heads, model.seq_length),
            *(model.vocab_size, split.tensor, split.sequence_parallel, split.pipeline, split.data),
            *(batch.micro, batch.global_, scenario.recompute.strategy),
            *(str(split.scatter_gather).lower(), repr(result.iteration_time_s)),
            result.memory.fullest.peak_bytes,
        )
        lines.append(",".join(map(str, cells)))
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    progress: list[tuple[int, ...]] = []
    runs, cluster = read_runs([file], RunSettings("a100_sxm4_80gb")), "a100_sxm4_80gb"
    validation = validate_runs(runs, cluster, lambda *done: progress.append(done))
    assert [row.refusal for row in validation.rows] == ["", ""]
    assert validation.time_errors == Errors.of([0.0, 0.0])
    assert validation.peak_errors == Errors.of([0.0, 0.0])
    assert progress == [(0, 2), (1, 2), (2, 2)]
    assert all(
        math.isclose(sum((row.breakdown_s or {}).values()), row.simulated_s or 0.0)
        for row in validation.rows
    )


def test_an_allocated_peak_is_that_of_tensors(tmp_path: pathlib.Path) -> None:
    """Without the allocator's allowance; Megatron-LM's scalar is of the last stage."""
    head, cells = "layers,hidden,heads,seq,pp,gpus,global_batch", "24,1024,16,1024,4,4,8"
    peaks = {}
    for name in ("max_allocated_bytes", "mem_max_allocated_bytes"):
        file = tmp_path / "runs.csv"
        file.write_text(f"{head},{name}\n{cells},1e9\n", "utf-8")
        (run,) = read_runs([file], RunSettings("h100_sxm"))
        (row,) = validate_runs([run], "h100_sxm").rows
        assert run.scenario is not None
        peaks[name] = row.simulated_peak_bytes
        stages = simulate(run.scenario).memory.stages
    tensors = [stage.peak_bytes - stage.allocator_bytes for stage in stages]
    assert tensors[0] > tensors[-1]
    assert peaks == {"max_allocated_bytes": tensors[0], "mem_max_allocated_bytes": tensors[-1]}


def test_an_illegal_run_is_refused_with_its_rule(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(
        "layers,hidden,heads,seq,tp,dp,global_batch,iteration_s\n24,1024,16,1024,3,1,8,1\n", "utf-8"
    )
    (row,) = validate_runs(read_runs([file], RunSettings("h100_sxm")), "h100_sxm").rows
    assert row.refusal.startswith("E301 parallelism.tensor is 3, which does not divide")
    for code, follows in (("E204", "fix"), ("E301", "reason"), ("E408", "reason")):
        error = InputError.of(code, "wrong", fix="fix", reason="reason")
        assert in_one_line(error) == f"{code} wrong; {follows}"


def validation_of(folder: pathlib.Path, rows: list[str], head: str = HEAD) -> Validation:
    file = folder / "runs.csv"
    file.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return validate_runs(
        read_runs([file], RunSettings("h100_sxm", None, (), "megatron_core")), "h100_sxm"
    )


def row(number: int, time: object = 0.3, peak: object = 20) -> str:
    width = 64 * (8 + number)
    return f"r{number},4,{width},8,512,1,2,2,1,{8 + 2 * (number % 3)},{time},{peak}"


def test_runs_of_one_scenario_are_simulated_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = []

    def evaluate(self: Evaluator, scenario: object) -> Evaluation:
        evaluated.append(scenario)
        return original(self, scenario)

    original = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    rows = [row(number % 3, 0.3 + number / 1000) for number in range(12)]
    validation = validation_of(tmp_path, rows)
    assert validation.num_simulated == 12 and len(evaluated) == 3


def test_ok_has_a_limit(tmp_path: pathlib.Path) -> None:
    near = validation_of(tmp_path, [*map(row, range(3))])
    times = [each.simulated_s or 0.0 for each in near.rows]
    for factor, is_ok in ((1.0, True), (1 / (1 + MOST_MEAN_ERROR) + 0.01, True), (0.7, False)):
        rows = [row(number, factor * time, "") for number, time in enumerate(times)]
        headline = validation_view(validation_of(tmp_path, rows)).headline
        assert headline and (headline.tone == "good") is is_ok


CHANGES: list[dict[str, object]] = [
    {"batch.micro": 2},
    {"recompute": "selective"},
    {"parallelism.data": 2},
    {"software.stack": "megatron_2022"},
    {"parallelism.pipeline": 2, "parallelism.data": 4},
]
BASE = load_scenario("gpt2_1_5b").replace(
    {"parallelism.data": 8, "batch.micro": 1, "software.stack": "megatron_core"}
)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_what_differs_between_two_runs_explains_the_ratio_of_their_times(
    changes: dict[str, object],
) -> None:
    """One change alone, with its defaults, is the whole; both ways are reciprocal."""
    other = BASE.replace(changes)
    there, back = difference_of(BASE, other, 1.5), difference_of(other, BASE, 1 / 1.5)
    for name in ("simulated", "unexplained"):
        assert getattr(there, name) * getattr(back, name) == pytest.approx(1, rel=1e-12)
    ratio = simulate(other).iteration_time_s / simulate(BASE).iteration_time_s
    ours, theirs = settings_of(BASE), settings_of(other)
    changed = {name for name in ours | theirs if ours.get(name) != theirs.get(name)}
    assert {each.field for each in there.effects} == changed
    for each in (*there.effects, *back.effects):
        assert {each.first, each.second} == {ours.get(each.field), theirs.get(each.field)}
    whole = math.prod(1 + (each.change or 0.0) for each in there.effects)
    assert there.simulated == ratio == pytest.approx(whole, rel=1e-12)
    assert there.effects[0].field.startswith(next(iter(changes)))


def test_nothing_differs_between_two_runs_of_one_scenario() -> None:
    same = difference_of(BASE, BASE.replace({"name": "again"}), 1.5)
    assert (same.simulated, same.unexplained, [*same.effects]) == (1.0, 1.5, [])


def test_a_class_has_the_errors_of_its_runs_and_what_is_extrapolated() -> None:
    rows = [off(0.1, extrapolated=0.5), off(-0.2), off(0.0)]
    (runs,) = classes_of(rows)
    assert runs.errors == [-0.2, 0.0, 0.1]
    assert runs.extrapolated == 0.167
    assert (runs.num_runs, runs.worst_error) == (3, -0.2)
    assert runs.mean_error == pytest.approx(0.1)
    assert runs.log_ratios == pytest.approx([math.log(0.8), 0.0, math.log(1.1)])


def test_few_runs_on_one_node_are_one_class_with_those_on_several() -> None:
    one_node = dataclasses.replace(KIND, nodes="one")
    few = [off(0.1)] * 25 + [off(0.2, one_node)] * 3
    (runs,) = classes_of(few)
    assert (runs.nodes, runs.num_runs) == (None, 28)
    many = [off(0.1)] * 25 + [off(0.2, one_node)] * 20
    classes = classes_of(many)
    means = {runs.nodes: runs.mean_error for runs in classes}
    assert means == pytest.approx({"several": 0.1, "one": 0.2})


def test_a_written_file_anchors_the_intervals_of_other_runs(tmp_path: pathlib.Path) -> None:
    profile, shape = tmp_path / "mine.yaml", (0.0, 0.4, *[10.0] * 8)
    shutil.copy(find_profile("h100_sxm"), profile)
    (tmp_path / "validated_on").mkdir()
    rows = [off(-0.01 * number, shape=(*shape, float(number))) for number in range(40)]
    seen = error_classes(Validation.of(str(profile), rows), "x")
    (tmp_path / "validated_on" / "mine.yaml").write_text(errors_text(seen), "utf-8")
    assert validated_on(str(profile)) == seen
    kind = dataclasses.replace(KIND, cluster=str(profile))
    for number in (5, 15, 35):
        interval = interval_of(kind, (*shape, number + 0.5), 1.0)
        assert interval.expected_s == pytest.approx(1 / (1 - 0.01 * number), rel=0.03)
        assert "(40 runs)" in interval.basis


@pytest.mark.slow
@pytest.mark.ci
def test_the_stated_errors_are_those_of_the_shipped_runs_and_intervals_hold_90_percent() -> None:
    """If a prediction moves, copy what `simtrain validate ... -o FILE.yaml` writes.

    Other classes are further off, so intervals are wider than these runs need.
    """
    file = ROOT / "docs/measured_runs/h100_dgxc.csv"
    runs = read_runs([file], RunSettings("h100_sxm", "nemo", ()))
    validation = validate_runs(runs, "h100_sxm")
    assert validation.num_rows == validation.num_simulated == 98
    now = error_classes(validation, "x").measured_runs
    stated = validated_on("h100_sxm")
    assert stated
    shipped = [runs for runs in stated.measured_runs if runs.source.endswith(file.name)]
    both = [{r.data_types[0]: (r.errors, r.extrapolated) for r in runs} for runs in (shipped, now)]
    assert both[0] == both[1]
    assert (validation.interval_coverage or 0.0) >= 0.9
    pairs = []
    for first, second in itertools.combinations(validation.rows, 2):
        if first.model == second.model and first.interval and second.interval:
            shared = shared_errors((first.kind, second.kind), (first.shape, second.shape))  # type: ignore[arg-type]
            ratio = ratio_interval(first.interval, second.interval, shared)
            measured = (second.iteration_time_s or 0) / (first.iteration_time_s or 1)
            pairs.append(ratio.p5 <= measured <= ratio.p95)
    assert len(pairs) > 500 and sum(pairs) >= 0.95 * len(pairs)
    assert 0.4 <= (validation.half_interval_coverage or 0.0) <= 0.85
    widths = [row.interval.within for row in validation.rows if row.interval]
    assert statistics.median(widths) < 0.26
