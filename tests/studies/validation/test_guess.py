"""A bias that all runs share leads to the setting that explains it, and nothing else does."""

import dataclasses
import pathlib

import pytest

from simtrain.importing.runs import RunSettings, read_runs
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.validation import Validation, validate_runs
from simtrain.studies.validation.guess import SAMPLE, SampledErrors
from simtrain.studies.validation.measured import MeasuredRun
from simtrain.views.validation import validation_view
from simtrain.views.view import Paragraphs, Verdict

CLUSTER = "a100_sxm4_80gb"
HEAD = "name,layers,hidden,heads,vocab,seq,tp,sp,pp,dp,micro_batch,global_batch,zero_stage,dtype"


class Listed(list[MeasuredRun]):
    """Runs in memory."""


def measured_with(folder: pathlib.Path, setting: str, micro: int = 4) -> Listed:
    """Return runs whose source leaves a setting out, each measured as simulated with it."""
    rows = [
        f"r{number},{4 * number},2048,16,51200,2048,2,true,2,2,{micro},{8 * micro},1,bf16"
        for number in range(1, 8)
    ]
    file = folder / "runs.csv"
    file.write_text(
        "\n".join([f"{HEAD},iteration_s", *(f"{row},1" for row in rows)]) + "\n", "utf-8"
    )
    settings = RunSettings(CLUSTER, "megatron_2022")
    runs = [*read_runs([file], settings)]
    with_setting = read_runs([file], dataclasses.replace(settings, overrides=(setting,)))
    evaluator = Evaluator(allow_oom=True)
    times = []
    for run in with_setting:
        assert run.scenario, run.refusal
        times.append(evaluator.evaluate(run.scenario).iteration_time_s)
    return Listed(
        dataclasses.replace(run, iteration_time_s=time_s)
        for run, time_s in zip(runs, times, strict=True)
    )


def words_of(validation: Validation) -> str:
    part = validation_view(validation).parts[0]
    return " ".join(map(str, part.texts)) if isinstance(part, Paragraphs) else ""


def test_the_setting_that_all_runs_had_is_guessed(tmp_path: pathlib.Path) -> None:
    validation = validate_runs(measured_with(tmp_path, "recompute=full"), CLUSTER)
    guess = validation.guess
    assert guess is not None and guess.change.values == {"recompute": "full"}
    assert guess.after.mean_abs_error == pytest.approx(0, abs=1e-12)
    assert guess.before.mean_abs_error > 0.1
    assert guess.to_dict()["setting"] == "--set recompute=full"
    assert "A guess: with --set recompute=full" in words_of(validation)


def test_a_setting_that_the_source_states_is_not_guessed(tmp_path: pathlib.Path) -> None:
    runs = Listed(
        dataclasses.replace(run, stated={*(run.stated or ()), "recompute"})
        for run in measured_with(tmp_path, "recompute=full")
    )
    guess = validate_runs(runs, CLUSTER).guess
    assert guess is None or "recompute" not in guess.change.values


@pytest.mark.parametrize("stated", [None, {"recompute"}])
def test_no_guess_without_a_shared_error(tmp_path: pathlib.Path, stated: set[str] | None) -> None:
    """Predictions that are right need no guess, and arguments say all."""
    setting = "recompute=full" if stated is None else "recompute=none"
    runs = measured_with(tmp_path, setting)
    complete = Listed(dataclasses.replace(run, stated=stated) for run in runs)
    assert validate_runs(complete, CLUSTER).guess is None


def test_runs_that_ran_and_do_not_fit_are_doubted(tmp_path: pathlib.Path) -> None:
    validation = validate_runs(measured_with(tmp_path, "recompute=full", micro=96), CLUSTER)
    assert validation.most_do_not_fit
    assert "ran are predicted not to fit" in words_of(validation)
    verdict = validation_view(validation).parts[-1]
    assert isinstance(verdict, Verdict) and not verdict.text.startswith("OK")
    guess = validation.guess
    assert guess is not None and guess.after.num_fit > guess.before.num_fit


def test_a_bias_has_one_sign_and_is_not_small() -> None:
    assert SampledErrors((0.2, 0.3, 0.1, 0.2, -0.1), 5).is_biased
    assert not SampledErrors((0.2, 0.3, -0.3, 0.2, -0.1), 5).is_biased
    assert not SampledErrors((0.02, 0.03, 0.03, 0.02, 0.01), 5).is_biased
    assert not SampledErrors((0.2, 0.3), 2).is_biased
    assert SampledErrors((), 0).mean_abs_error == 0.0
    assert SAMPLE >= 5
