"""Profiles fitted to measured iterations: of machines whose entries are known, and by command."""

import itertools
import pathlib
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from calibrate.fit.base import Base
from calibrate.fit.factors import FACTORS, Factor, entries_to_fit, scaled_profile
from calibrate.fit.from_runs import RunsFit, RunTimes, errors_of_fit, fit_runs
from calibrate.fit.result import SOURCES, profile_of, profile_text
from simtrain.base.entry import Entry
from simtrain.errors import InputError
from simtrain.hardware.entries import entries_of
from simtrain.hardware.evidence import validated_on
from simtrain.hardware.load import load_profile
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import simulate
from simtrain.studies.validation import MeasuredRun, errors_text
from tests.helpers.command_line import call
from tests.render.test_terminal import WIDTHS, check, drawn, view_of

pytestmark = pytest.mark.slow

BASE = "a100_sxm4_80gb"
HOST, PRODUCTS = FACTORS[:2]
TRUE = {HOST: np.log(4), PRODUCTS: np.log(0.97)}


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Return small runs, some limited by the host and some by the GPU."""
    data: dict[str, Any] = {
        "model": {"num_layers": 4, "num_attention_heads": 16, "seq_length": 1024},
        "batch": {"global": 16},
        "recompute": "full",
    }
    sizes = itertools.product((1024, 4096), (1, 4), (1, 2), (1, 2))
    return tuple(
        Scenario.model_validate(
            data
            | {"model": data["model"] | {"hidden_size": hidden}}
            | {"batch": data["batch"] | {"micro": micro}}
            | {"parallelism": {"tensor": tensor, "data": replicas}}
        )
        for hidden, micro, tensor, replicas in sizes
    )


@cache
def true_seconds() -> tuple[float, ...]:
    base = Base.load(BASE)
    factors = [entries for entries in entries_to_fit(base, 0.1) if entries.factor in TRUE]
    profile = scaled_profile(base.profile, factors, [TRUE[each.factor] for each in factors])
    return tuple(simulate(each, profile).iteration_time_s for each in scenarios())


def runs(seed: int, num_wrong: int = 0, noise: float = 0.02, wrong: float = 3.0) -> Any:
    """Return runs of the true machine with noise; the first `num_wrong` are far off."""
    draw = np.random.default_rng(seed)
    times_s = np.array(true_seconds()) * np.exp(draw.normal(0, noise, len(scenarios())))
    times_s[:num_wrong] *= wrong
    return [
        MeasuredRun(f"run {number}", "", "runs.csv", 1 + number, scenario, float(time_s))
        for number, (scenario, time_s) in enumerate(zip(scenarios(), times_s, strict=True))
    ]


STEPS: list[tuple[str, int, int]] = []


def fitted_to(measured: list[MeasuredRun]) -> RunsFit:
    STEPS.clear()
    return fit_runs(BASE, measured, "mine", "runs.csv", lambda *step: STEPS.append(step))


@cache
def fit_of_all() -> RunsFit:
    fit = fitted_to(runs(0))
    assert [("fitting", 0, 6), *(("cross-validating", step, 6) for step in range(1, 7))] == STEPS
    return fit


def logarithms(fit: RunsFit) -> dict[str, tuple[float, float]]:
    return {
        entries.factor.label: (value, deviation) for entries, value, deviation in fit.estimates()
    }


def test_the_factors_of_a_known_machine_are_within_their_intervals() -> None:
    fit = fit_of_all()
    for factor, true in TRUE.items():
        value, deviation = logarithms(fit)[factor.label]
        assert abs(value - true) <= 1.645 * deviation
    assert fit.comparison("fit", fit.fitted_s).mean_abs_error < 0.03
    assert fit.held_out.mean_abs_error < 0.05
    assert fit.comparison("base", fit.before_s).mean_abs_error > 0.08


def test_a_prior_is_as_wide_as_the_errors_that_fits_state() -> None:
    profile = load_profile(BASE)
    states = {"source": "made up", "fitted_on": "9 points, mean |error| 20 %, worst 30 %"}
    issue = profile.host.issue.model_copy(update=states)
    stated = profile.model_copy(update={"host": profile.host.model_copy(update={"issue": issue})})
    copied = issue.model_copy(update={"source": "copied from another"})
    other = profile.model_copy(update={"host": profile.host.model_copy(update={"issue": copied})})
    unsure = other.model_copy(update={"uncertainty": Entry(value=0.5, source="made up")})
    # Hosts differ by a factor of 3, fabrics by a fifth, and rates of equal GPUs by a few percent.
    assert [each.least_width for each in FACTORS] == [1.1, 0.03, 0.05, 0.1, 0.2]
    assert [each.default_width for each in FACTORS] == [1.1, 0.1, 0.15, 0.1, 0.2]
    one = Factor("host", ("host.issue",), 0.1, 0.7)
    assert one.width(stated, 1.0) == pytest.approx(1.25 * 0.2)
    assert one.width(other, 1.0) == 0.7
    assert one.width(unsure, 1.0) == pytest.approx(np.log(1.5) / 1.645)
    assert replace(one, least_width=0.3).width(stated, 1.0) == 0.3
    assert replace(one, concerns_all=True).width(stated, 0.3) == pytest.approx(0.1)


def test_runs_that_set_entries_have_profiles_of_their_own() -> None:
    each = [
        replace(run, scenario=scenario.replace({"hardware": settings}))
        for run, scenario in zip(runs(0)[:4], scenarios()[:4], strict=True)
        for settings in ({}, {"host": {"issue": "40 us"}}, {"host": {"issue": "80 us"}})
    ]
    times = RunTimes(load_profile(BASE), each, ())
    found = times.seconds(range(len(each)), np.zeros(0))
    assert found.tolist() == [simulate(run.scenario).iteration_time_s for run in each]


def test_two_wrong_runs_do_not_harm() -> None:
    fit = fitted_to(runs(0, num_wrong=2))
    value, _ = logarithms(fit)[HOST.label]
    assert value == pytest.approx(TRUE[HOST], abs=0.1)
    assert np.argsort(fit.result.weights)[:2].tolist() == [0, 1]
    assert np.median(np.abs(fit.held_out.errors)) < 0.06


def test_what_the_runs_do_not_determine_stays_as_in_the_base() -> None:
    fit = fit_of_all()
    value, deviation = logarithms(fit)["rate across nodes"]
    (entries,) = (each for each in fit.factors if each.factor.label == "rate across nodes")
    assert value == pytest.approx(0)
    assert deviation == pytest.approx(entries.width)


def test_fitted_entries_name_the_runs_and_all_others_stay() -> None:
    fit = fit_of_all()
    before, after = (dict(entries_of(p)) for p in (load_profile(BASE), profile_of(fit.data)))
    changed = {name for name, entry in after.items() if entry != before[name]}
    assert "host.issue" in changed and "gpu.peak_flops" not in changed
    for name in changed:
        assert after[name].source.startswith("fitted to 16 runs of runs.csv")
        assert before[name].source in after[name].source
        assert (after[name].fitted_on or "").startswith("16 runs, mean |error|")
    issue_s = after["host.issue"].value
    assert issue_s == pytest.approx(4 * before["host.issue"].value, rel=0.1)


@pytest.mark.parametrize("factor", [1.0, 1.02, 0.98, 1.05])
def test_one_run_anchors_the_interval_of_the_base(tmp_path: pathlib.Path, factor: float) -> None:
    """A run inside the base's interval; predictions may move only by what it determines."""
    scenario, output = load_scenario("table5_22b_present"), tmp_path / "mine.yaml"
    before = simulate(scenario)
    measured_s = factor * before.iteration_time_s
    fit = fitted_to([MeasuredRun("own", "", "", 1, scenario, measured_s)])
    output.write_text(profile_text(fit.data, "", SOURCES), encoding="utf-8")
    errors = errors_of_fit(fit, str(output), BASE, "a run")
    (tmp_path / "validated_on").mkdir()
    (tmp_path / "validated_on" / "mine.yaml").write_text(errors_text(errors), "utf-8")
    after = simulate(scenario.replace({"cluster": str(output)}))
    assert after.interval.within < before.interval.within
    assert after.interval.has(measured_s) and "(1 run)" in after.interval.basis
    assert errors.measured_runs[-1].num_runs == 1 and errors.measured_runs[-1].seen == "fitted"


def table(path: pathlib.Path, measured: list[MeasuredRun]) -> pathlib.Path:
    lines = ["num_layers,hidden,heads,seq,tp,dp,micro_batch,global_batch,iteration_s"]
    for run in measured:
        assert run.scenario is not None
        split, batch, model = run.scenario.parallelism, run.scenario.batch, run.scenario.model
        cells = (model.num_layers, model.hidden_size, 16, 1024, split.tensor, split.data)
        lines.append(",".join(map(str, (*cells, batch.micro, batch.global_, run.iteration_time_s))))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_command_writes_a_profile_and_the_errors_of_its_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    file, output = table(tmp_path / "runs.csv", runs(0)), tmp_path / "mine.yaml"
    words = ("calibrate", "fit", str(file), "--base", BASE, "--software", "megatron_2022")
    view = view_of(shlex.join([*words, "--set", "recompute=full", "-o", str(output)]), monkeypatch)
    for width in WIDTHS:
        check(drawn(view, width), width)
    page = " ".join(drawn(view, WIDTHS[-1]).split())
    assert re.sub(r"[-+]?[\d.]+", "#", page) == snapshot
    profile = load_profile(output)
    assert profile.name == "mine"
    assert "calibrate fit" in output.read_text(encoding="utf-8").splitlines()[2]
    errors = validated_on(str(output))
    assert errors is not None
    (group,) = errors.measured_runs
    assert (group.num_runs, group.seen) == (16, "fitted")
    shown = call("run", "table5_22b_present", "--set", f"cluster={output}")
    assert "judged on 16 measured iterations" in " ".join(shown.stdout.split())


def test_runs_that_cannot_be_simulated_are_left_out_and_say_why() -> None:
    measured = runs(0)[:3]
    refused = MeasuredRun("bad", "", "runs.csv", 9, refusal="E204 wrong")
    fit = fitted_to([*measured, refused])
    assert [run.name for run in fit.refused] == ["bad"]
    assert len(fit.runs) == 3
    with pytest.raises(InputError, match="E724"):
        fitted_to([refused])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda time_s, number: 1e3 * time_s, "E732 16 of 16 measured times"),
        (lambda time_s, number: 1e-3 * time_s, "E732 16 of 16 measured times"),
        (
            lambda time_s, number: 1e3 * time_s if number == 3 else time_s,
            "E732 1 of 16 measured times",
        ),
        (lambda time_s, number: 1e12, "E724"),
    ],
)
def test_times_in_another_unit_write_no_profile(
    change: Callable[[float, int], float], code: str, tmp_path: pathlib.Path
) -> None:
    changed = [
        replace(run, iteration_time_s=change(run.iteration_time_s or 0.0, number))
        for number, run in enumerate(runs(0))
    ]
    file, output = table(tmp_path / "runs.csv", changed), tmp_path / "mine.yaml"
    words = ("calibrate", "fit", str(file), "--base", BASE, "--software", "megatron_2022")
    done = call(*words, "--set", "recompute=full", "-o", str(output))
    assert done.exit_code == 2 and code in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


def test_a_fit_that_is_worse_than_its_base_is_refused() -> None:
    fit = fit_of_all()
    fit.check()
    # One run far off spoils the mean and not the median.
    replace(fit, fitted_s=fit.fitted_s * np.array([9.0] + 15 * [1.0])).check()
    worse = replace(fit, fitted_s=3 * fit.before_s)
    with pytest.raises(InputError, match=f"E733 the fit is worse than {BASE}"):
        worse.check()


@pytest.mark.parametrize("name", ["all", "wrong", "one", "alike"])
def test_the_numbers_of_a_fit_stay(name: str, snapshot: SnapshotAssertion) -> None:
    """Runs with entries of the hardware in common are on a profile that has them."""
    wrong = [*runs(0, num_wrong=2)[:8], MeasuredRun("bad", "", "runs.csv", 9, refusal="E204")]
    alike = [
        replace(run, scenario=scenario.replace({"hardware": {"gemm": {"in_situ_speed": 0.8}}}))
        for run, scenario in zip(runs(1)[:3], scenarios(), strict=False)
    ]
    some = {"wrong": wrong, "one": runs(1)[3:4], "alike": alike}
    fit = fit_of_all() if name == "all" else fitted_to(some[name])
    lines = [
        f"{of.factor.label}: {[round(each, 4) + 0 for each in (of.width, of.upper, *found)]}"
        for of, *found in fit.estimates()
    ]
    lines += [f"{each.title}: {each.mean_abs_error:.4f}" for each in fit._comparisons()]
    lines += [f"scale {fit.result.scale:.4f}", str(fit._doubtful()), *fit._remarks()]
    issue, speed = fit.data["host"]["issue"], fit.data["gemm"]["in_situ_speed"]
    lines += [f"{each['value']}: {each['source']}" for each in (issue, speed)]
    assert "\n".join(lines) == snapshot
