"""Arguments of a search, its errors, and its output files."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

import simtrain
from simtrain.errors import DoesNotFitError, InputError
from simtrain.scenario import RecomputePolicy, Scenario, load_unchecked
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.layout_words import num_gpus_in_words
from simtrain.studies.search.result import SearchResult
from simtrain.studies.search.run import search
from simtrain.studies.search.scenario_files import write_scenarios
from simtrain.studies.simulation import simulate_memory
from simtrain.views.search import search_view
from tests.helpers.command_line import call, refused
from tests.helpers.search_spaces import BASES, base, holding

FILE = """\
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048}
batch: {micro: 4, global: 32}
"""


def notes(result: SearchResult) -> list[str]:
    return list(search_view(result, details=True).sentences)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def scenario_with_auto(file: pathlib.Path) -> tuple[Scenario, int]:
    """Return a scenario with `recompute: auto`, and its peak memory without recompute in bytes."""
    fixed = ("parallelism.tensor=2", "parallelism.pipeline=1", "batch.micro=8", "recompute=auto")
    fixed += ("parallelism.sequence_parallel=false", "memory.zero_stage=1")
    scenario = load_unchecked(file, fixed)
    split = scenario.parallelism.model_copy(update={"data": 2})
    layout = scenario.model_copy(update={"parallelism": split})
    return scenario, simulate_memory(layout).fullest.peak_bytes


def test_auto_chooses_recompute_that_fits_the_memory_limit(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """With a limit of 1 GiB below the peak without recompute, every layout still fits."""
    scenario, peak_bytes = scenario_with_auto(file)
    limit = peak_bytes - 2**30
    result = search(scenario, (4,), max_memory=f"{limit} B")
    best = result.ranked[0]
    assert result.outcome.num_fitting == len(result.legal.points)
    assert best.evaluation.scenario.recompute.strategy != "none"
    assert best.evaluation.peak_bytes <= limit
    again = simtrain.load_scenario(write_scenarios(result, tmp_path)[0])
    assert Evaluator().evaluate(again).run == best.run


def test_details_of_recompute_are_reported(file: pathlib.Path) -> None:
    scenario, peak_bytes = scenario_with_auto(file)
    result = search(scenario, (4,), max_memory=f"{peak_bytes - 2**30} B", top=1)
    chosen = result.ranked[0].evaluation.scenario.recompute
    assert RecomputePolicy(**result.to_dict()["best"]["recompute"]) == chosen
    assert result.to_dict()["best"]["configuration"]["recompute"] == {"strategy": "auto"}
    policy = {"strategy": "full", "method": "block", "num_layers": 2, "keep_microbatches": 1}
    fixed = holding(base(recompute=policy, parallelism={"pipeline": 2}), ("recompute",))
    said = " ".join(notes(search(fixed, (4,), top=2)))
    assert "number 1, 2: full, the first 2 layers of each chunk" in said


def test_a_limit_above_the_gpus_memory_is_an_error() -> None:
    with pytest.raises(InputError, match=r"--max-memory: E833 1 TiB .* 80 GiB"):
        search(BASES["narrow"], (1,), max_memory="1 TiB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": ()}, r"gpus is \(\)"),
        ({"gpus": (4, 0)}, "gpus is 0"),
        ({"gpus": (-8,)}, "gpus is -8"),
        ({"gpus": (8.0,)}, r"gpus is 8\.0"),
        ({"gpus": (True,)}, "gpus is True"),
        ({"gpus": (4,), "top": 0}, "top is 0"),
        ({"gpus": (4,), "max_trials": 0}, "max_trials is 0"),
        ({"gpus": (4,), "objective": "speed"}, "objective is 'speed'"),
        ({"gpus": (4,), "context": (0,)}, "context is 0"),
        ({"gpus": (4,), "expert": ()}, r"expert is \(\)"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^E834 {message}"):
        search(BASES["narrow"], **arguments)


def remedy(scenario: Scenario, max_memory: str) -> str:
    with pytest.raises(DoesNotFitError) as caught:
        search(scenario, (4,), max_memory=max_memory)
    return str(caught.value.problems[0].fix)


def test_the_remedy_makes_a_layout_fit(file: pathlib.Path) -> None:
    offload, more = "memory.offload_optimizer=true", "on a cluster whose GPUs have more memory"
    assert offload in remedy(BASES["narrow"], "1 GiB")
    assert offload not in remedy(BASES["offloaded"], "64 MiB")
    on_trn1 = BASES["narrow"].model_copy(update={"cluster": "trn1"})
    assert offload not in remedy(on_trn1, "64 MiB")
    limit = remedy(BASES["narrow"], "1 GiB").partition("--max-memory ")[2].partition(",")[0]
    assert search(BASES["narrow"], (4,), max_memory=limit).outcome.num_fitting >= 1
    too_long = load_unchecked(file, ["model.seq_length=2000000"])
    assert "--max-memory" not in remedy(too_long, "1 GiB")
    assert remedy(too_long, "1 GiB").endswith(more)


def test_the_remedy_names_fixed_fields() -> None:
    policy = {"strategy": "full", "method": "block", "num_layers": 8}
    fixed = holding(base(recompute=policy), ("recompute",))
    with pytest.raises(InputError) as caught:
        search(fixed, (4,))
    option = "--set 'recompute={strategy: full, method: block, num_layers: 8}'"
    assert str(caught.value).endswith(option)


def test_the_page_has_columns_for_expert_and_context_parallelism() -> None:
    result = search(BASES["experts"], (4,), top=3, context=(1, 2), expert=(2,))
    best = result.to_dict()["best"]["configuration"]
    assert best["expert"] == 2 and best["expert_tensor"] in (1, best["tensor"])
    headings = [column.heading for column in search_view(result).tables["layouts"].columns]
    assert {"ex-\npert", "expert\ntensor"} <= {*headings} and "con-\ntext" not in headings
    left_out = "overlap.align_gradient_reduction"
    assert f"Turned off where it cannot apply: {left_out}." in notes(result)
    result = search(BASES["long"], (4,), top=1, context=(2,))
    headings = [column.heading for column in search_view(result).tables["layouts"].columns]
    assert "con-\ntext" in headings and "ex-\npert" not in headings


def test_set_and_context_together_are_an_error(file: pathlib.Path) -> None:
    options = ("--gpus", "2", "--context", "2", "--set", "parallelism.context=1")
    outcome = call("search", str(file), *options)
    assert outcome.exit_code == 2
    assert "E834 parallelism.context " in outcome.stderr
    assert '--context: E834 "x,2"' in call("search", str(file), *options[:3], "x,2").stderr


def test_numbers_of_gpus_as_text() -> None:
    assert num_gpus_in_words([1]) == "1 GPU"
    assert num_gpus_in_words((1, 2)) == "1 or 2 GPUs"


def test_json_of_auto_has_the_chosen_strategy(file: pathlib.Path) -> None:
    _, peak_bytes = scenario_with_auto(file)
    options = ("--gpus", "1", "--set", "recompute=auto", "--max-memory", f"{peak_bytes - 2**30}B")
    outcome = call("search", str(file), *options, "--top", "1", "--json")
    assert json.loads(outcome.stdout)["best"]["recompute"]["strategy"] != "auto"


def test_the_base_scenario_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "small_02.yaml"
    path.write_text(FILE + "name: small\n")
    result = search(load_unchecked(path), (2,), top=2)
    with pytest.raises(InputError, match=r"small_02\.yaml: E113 "):
        write_scenarios(result, tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["small_02.yaml"]
    assert path.read_text().startswith("model:")


def test_only_files_of_a_search_are_replaced(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result, out = search(load_unchecked(file), (2,), top=2), tmp_path / "out"
    first, second = write_scenarios(result, out)
    written = first.read_bytes()
    second.write_text("mine", "utf-8")
    first.unlink()
    with pytest.raises(InputError, match=r"small_02\.yaml: E113 the file exists"):
        write_scenarios(result, out)
    assert {one.name: one.read_bytes() for one in out.iterdir()} == {second.name: b"mine"}
    second.unlink()
    for _ in range(2):
        write_scenarios(result, out)
        assert first.read_bytes() == written


def test_a_folder_contains_only_the_newest_ranking(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Unedited files of an older ranking are removed; edited and other files stay."""
    result, out = search(load_unchecked(file), (2,), top=5), tmp_path / "out"
    *_, fourth, fifth = write_scenarios(result, out)
    others = [out / "small_b_05.yaml", out / "mine.yaml"]
    others[0].write_bytes(fifth.read_bytes().replace(b"search small", b"search small_b"))
    others[1].write_text("mine", "utf-8")
    fifth.write_text(fifth.read_text("utf-8") + "# edited\n", "utf-8")
    paths = write_scenarios(dataclasses.replace(result, top=2), out)
    assert not fourth.exists()
    assert sorted(out.iterdir()) == sorted([*paths, fifth, *others])


def test_a_folder_with_an_edited_file_is_refused_before_the_search(
    file: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.studies.search.run.search", None)
    (tmp_path / "small_01.yaml").write_text("mine", "utf-8")
    errors = refused("search", str(file), "--gpus", "2", "--out", str(tmp_path))
    assert "small_01.yaml: E113 the file exists, and no search wrote it" in errors


def test_a_file_that_cannot_be_written_is_an_error(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "out" / "small_01.yaml").mkdir(parents=True)
    with pytest.raises(InputError, match=r"small_01\.yaml: E113 "):
        write_scenarios(search(load_unchecked(file), (2,), top=1), tmp_path / "out")


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("model.hidden_size=2050", "E302"),
        ("precision.gradients=fp16", "E315"),
        ("attention_backend=fused", "E330"),
    ],
)
def test_a_base_that_is_illegal_for_every_split_has_the_error_of_the_scenario(
    file: pathlib.Path, field: str, code: str
) -> None:
    """With a hidden size of 2048, each of 2 heads has 1024 channels: too many for
    fused attention.
    """
    heads = "model.num_attention_heads=2" if code == "E330" else "model.num_layers=16"
    with pytest.raises(InputError) as caught:
        search(load_unchecked(file, [heads, field]), (2,))
    with pytest.raises(InputError) as of_run:
        simtrain.load_scenario(file, [heads, field])
    assert [problem.code for problem in caught.value.problems] == [code]
    assert caught.value.problems[0] in of_run.value.problems


@pytest.mark.parametrize("gpus", ["8", b"8", None, 8.0])
def test_numbers_of_gpus_are_one_number_or_a_list(gpus: Any) -> None:
    with pytest.raises(InputError, match=r"E834 gpus is .*, not a list"):
        search(base(), gpus)
