"""Statistics of errors, worked out by hand, and predictions held against themselves."""

import math
import pathlib

import pytest

from simtrain.importing.runs import RunSettings, read_runs
from simtrain.iteration.report.breakdown import CAUSE_LABELS, Breakdown
from simtrain.scenario import load_scenario
from simtrain.studies.evaluation import Evaluation, Run
from simtrain.studies.simulation import simulate
from simtrain.studies.validation import Errors, Prediction, ValidatedRun, Validation, validate_runs

SCENARIO = load_scenario("table5_22b_present")


def run_with(
    measured_s: float, simulated_s: float, model: str = "", *, ran: bool = True, fits: bool = True
) -> ValidatedRun:
    """Return a run whose prediction takes this time, a tenth of it exposed communication."""
    parts = dict.fromkeys(CAUSE_LABELS, 0.0)
    parts |= {"compute_s": 0.9 * simulated_s, "data_communication_s": 0.1 * simulated_s}
    run = Run(simulated_s, 1.0, 0.5, 0.5, Breakdown(**parts))
    evaluation = Evaluation(SCENARIO, 10 if fits else 30, 20, run)
    prediction = Prediction.of(evaluation)
    return ValidatedRun("", model, "f", 1, prediction, "", measured_s, *[None] * 5, ran, ())


def test_statistics_by_hand() -> None:
    errors = Errors([-0.2, 0.0, 0.05, 0.1, 0.3])
    assert errors.num == 5
    assert errors.mean_abs_error == pytest.approx(0.13)
    assert errors.median_error == pytest.approx(0.1)
    assert errors.bias == pytest.approx(0.05)
    assert errors.within_10_percent == pytest.approx(0.6)
    assert errors.worst_error == 0.3
    assert (errors.p25, errors.p75) == (pytest.approx(0.0), pytest.approx(0.1))
    assert Errors([]).mean_abs_error is None


def test_ranks_are_compared_within_each_model() -> None:
    """Model a is in order (1); b is reversed (-1) and has as many runs: 0 together."""
    a = [run_with(time_s, 1.1 * time_s, "a") for time_s in (1.0, 2.0, 3.0)]
    b = [run_with(time_s, 4.0 - time_s, "b") for time_s in (1.0, 2.0, 3.0)]
    assert Validation("h100_sxm", a).rank_correlation == pytest.approx(1.0)
    assert Validation("h100_sxm", b).rank_correlation == pytest.approx(-1.0)
    assert Validation("h100_sxm", a + b).rank_correlation == pytest.approx(0.0)
    assert Validation("h100_sxm", a[:2]).rank_correlation is None


def test_a_slow_prediction_names_a_cause_that_takes_the_excess() -> None:
    assert run_with(0.95, 1.0).could_account_for_it == "exposed data-parallel communication"
    assert run_with(0.82, 1.0).could_account_for_it == "compute, if 20.0% faster"
    assert run_with(1.09, 1.0).could_account_for_it == "compute, if 10.0% slower"


def test_what_fits_is_counted() -> None:
    rows = [
        run_with(1.0, 1.0),
        run_with(1.0, 1.0, fits=False),
        run_with(1.0, 1.0, ran=False, fits=False),
    ]
    validation = Validation("h100_sxm", rows)
    assert (validation.num_ran, validation.num_ran_and_fit) == (2, 1)
    assert (validation.num_out_of_memory, validation.num_out_of_memory_and_does_not_fit) == (1, 1)


def test_a_prediction_of_ours_has_no_error(tmp_path: pathlib.Path) -> None:
    """A table of our own times and peaks: another way to the same numbers."""
    names = "table5_22b_present", "table5_22b_full"
    lines = [
        "layers,hidden,heads,seq,vocab,tp,sp,pp,dp,micro_batch,global_batch,recompute,"
        "parallelism.scatter_gather,iteration_s,peak_bytes"
    ]
    for name in names:
        result = simulate(load_scenario(name))
        model, split, batch = (
            result.scenario.model,
            result.scenario.parallelism,
            result.scenario.batch,
        )
        cells = (
            *(model.num_layers, model.hidden_size, model.num_attention_heads, model.seq_length),
            *(model.vocab_size, split.tensor, split.sequence_parallel, split.pipeline, split.data),
            *(batch.micro, batch.global_, result.scenario.recompute.strategy),
            *(str(split.scatter_gather).lower(), repr(result.iteration_time_s)),
            result.memory.fullest.peak_bytes,
        )
        lines.append(",".join(map(str, cells)))
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    progress: list[tuple[int, int]] = []
    runs = read_runs([file], RunSettings("a100_sxm4_80gb"))
    validation = validate_runs(
        runs, "a100_sxm4_80gb", lambda done, total: progress.append((done, total))
    )
    assert [row.refusal for row in validation.rows] == ["", ""]
    assert validation.time_errors.errors == [0.0, 0.0]
    assert validation.peak_errors.errors == [0.0, 0.0]
    assert progress == [(0, 2), (1, 2), (2, 2)]
    by_setting = {(part.setting, part.value): part.errors.num for part in validation.by_setting}
    assert by_setting == {("recompute", "full"): 1, ("recompute", "selective"): 1}
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
