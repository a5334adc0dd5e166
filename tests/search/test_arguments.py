"""What is asked of a search: limits that hold, numbers that count, answers that can be used."""

import json
import pathlib
from typing import Any

import pytest

import simtrain
from simtrain.errors import DoesNotFitError, InputError
from simtrain.evaluation import Evaluator
from simtrain.pages.search_page import search_page
from simtrain.scenario import RecomputePolicy, Scenario, load_unchecked
from simtrain.search import Objective, SearchResult, search, write_scenarios
from simtrain.search.words import num_gpus_in_words
from tests.helpers.command_line import call
from tests.helpers.search_spaces import BASES, EVALUATOR, base, holding

FILE = """\
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048}
batch: {micro: 4, global: 32}
"""


def notes(result: SearchResult) -> list[str]:
    return [str(line) for line in search_page(result).renderables[1:]]  # type: ignore[attr-defined]


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def least_auto(file: pathlib.Path) -> tuple[Scenario, int]:
    """A scenario that needs recompute in less memory, and its peak without any."""
    held = ("parallelism.tensor=2", "parallelism.pipeline=1", "batch.micro=8", "recompute=auto")
    held += ("parallelism.sequence_parallel=false", "memory.zero_stage=1")
    scenario = load_unchecked(file, held)
    split = scenario.parallelism.model_copy(update={"data": 2})
    return scenario, EVALUATOR.peak_bytes(scenario.model_copy(update={"parallelism": split}))


def test_recompute_that_is_open_is_chosen_within_the_limit(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """What needs 1 GiB more without recompute still fits with some of it, and its file says so."""
    scenario, without = least_auto(file)
    limit = without - 2**30
    result = search(scenario, (4,), max_memory=f"{limit} B")
    best = result.ranked[0]
    assert result.outcome.num_fitting == len(result.legal.points)
    assert best.evaluation.scenario.recompute.strategy != "none"
    assert best.evaluation.peak_bytes <= limit
    again = simtrain.load_scenario(write_scenarios(result, tmp_path)[0])
    assert Evaluator().evaluate(again).run == best.run


def test_what_recompute_does_beyond_its_word_is_said(file: pathlib.Path) -> None:
    scenario, without = least_auto(file)
    result = search(scenario, (4,), max_memory=f"{without - 2**30} B", top=1)
    chosen = result.ranked[0].evaluation.scenario.recompute
    assert RecomputePolicy(**result.to_json()["best"]["recompute"]) == chosen
    assert result.to_json()["best"]["configuration"]["recompute"] == {"strategy": "auto"}
    policy = {"strategy": "full", "method": "block", "num_layers": 2, "keep_microbatches": 1}
    held = holding(base(recompute=policy, parallelism={"pipeline": 2}), ("recompute",))
    first = notes(search(held, (4,), top=2))[0]
    assert first == (
        "Recompute of number 1, 2: full, the first 2 layers of each chunk, keeping microbatches: 1."
    )


def test_more_memory_than_a_gpu_has_is_no_limit() -> None:
    with pytest.raises(InputError, match=r"--max-memory: E833 1 TiB is more than the 80 GiB of a"):
        search(BASES["narrow"], (1,), max_memory="1 TiB")


@pytest.mark.parametrize(
    ("asked", "said"),
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
def test_what_counts_nothing_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^E834 {said}"):
        search(BASES["narrow"], **asked)


def test_an_objective_may_be_its_word() -> None:
    result = search(BASES["narrow"], (4,), "memory", top=1)
    assert result == search(BASES["narrow"], (4,), Objective.MEMORY, top=1)


def remedy(scenario: Scenario, max_memory: str) -> str:
    with pytest.raises(DoesNotFitError) as caught:
        search(scenario, (4,), max_memory=max_memory)
    return str(caught.value.problems[0].fix)


def test_the_remedy_is_one_that_helps(file: pathlib.Path) -> None:
    offload, more = "memory.offload_optimizer=true", "on a cluster whose GPUs have more memory"
    assert offload in remedy(BASES["narrow"], "1 GiB")
    assert offload not in remedy(BASES["offloaded"], "64 MiB")
    on_trn1 = BASES["narrow"].model_copy(update={"cluster": "trn1"})
    assert offload not in remedy(on_trn1, "64 MiB")
    said = remedy(BASES["narrow"], "1 GiB")
    limit = said.partition("--max-memory ")[2].partition(",")[0]
    assert search(BASES["narrow"], (4,), max_memory=limit).outcome.num_fitting == 1
    too_long = load_unchecked(file, ["model.seq_length=2000000"])
    assert "--max-memory" not in remedy(too_long, "1 GiB")
    assert remedy(too_long, "1 GiB").endswith(more)


def test_what_is_held_is_written_as_it_is() -> None:
    policy = {"strategy": "full", "method": "block", "num_layers": 8}
    held = holding(base(recompute=policy), ("recompute",))
    with pytest.raises(InputError) as caught:
        search(held, (4,))
    fix = "or without --set 'recompute={strategy: full, method: block, num_layers: 8}'"
    assert str(caught.value).endswith(fix)


def test_the_page_shows_how_experts_and_sequences_are_split() -> None:
    result = search(BASES["experts"], (4,), top=3, context=(1, 2), expert=(2,))
    best = result.to_json()["best"]["configuration"]
    assert best["expert"] == 2 and best["expert_tensor"] in (1, best["tensor"])
    headings = [str(one.header) for one in search_page(result).renderables[0].columns]  # type: ignore[attr-defined]
    assert {"ex-\npert", "expert\ntensor"} <= {*headings} and "con-\ntext" not in headings
    left_out = "overlap.align_gradient_reduction"
    assert f"Turned off where it cannot apply: {left_out}." in notes(result)
    result = search(BASES["long"], (4,), top=1, context=(2,))
    headings = [str(one.header) for one in search_page(result).renderables[0].columns]  # type: ignore[attr-defined]
    assert "con-\ntext" in headings and "ex-\npert" not in headings


def test_numbers_of_ranks_are_given_once(file: pathlib.Path) -> None:
    options = ("--gpus", "2", "--context", "2", "--set", "parallelism.context=1")
    said = call("search", str(file), *options)
    assert said.exit_code == 2
    assert "E834 parallelism.context is set by --set and by --context" in said.stderr
    assert '"x,2" is not a number of ranks' in call("search", str(file), *options[:3], "x,2").stderr


def test_one_gpu_is_one() -> None:
    assert num_gpus_in_words([1]) == "1 GPU"
    assert num_gpus_in_words((1, 2)) == "1 or 2 GPUs"


def test_the_command_writes_what_was_chosen(file: pathlib.Path) -> None:
    _, without = least_auto(file)
    options = ("--gpus", "1", "--set", "recompute=auto", "--max-memory", f"{without - 2**30}B")
    outcome = call("search", str(file), *options, "--top", "1", "--json")
    assert json.loads(outcome.stdout)["best"]["recompute"]["strategy"] != "auto"


def test_the_searched_scenario_is_not_written_over(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "small_02.yaml"
    path.write_text(FILE + "name: small\n")
    result = search(load_unchecked(path), (2,), top=2)
    with pytest.raises(InputError, match=r"small_02\.yaml: E113 .* the scenario that was searched"):
        write_scenarios(result, tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["small_02.yaml"]
    assert path.read_text().startswith("model:")


def test_what_cannot_be_written_is_named(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "out" / "small_01.yaml").mkdir(parents=True)
    with pytest.raises(InputError, match=r"small_01\.yaml: E113 .* Is a directory"):
        write_scenarios(search(load_unchecked(file), (2,), top=1), tmp_path / "out")


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("model.hidden_size=2050", "E302"),
        ("precision.gradients=fp16", "E315"),
        ("attention_backend=fused", "E330"),
    ],
)
def test_what_no_split_can_mend_is_told_as_in_a_scenario(
    file: pathlib.Path, field: str, code: str
) -> None:
    """A hidden size of 2048 in 2 heads has 1024 channels: no fused kernel takes them."""
    heads = "model.num_attention_heads=2" if code == "E330" else "model.num_layers=16"
    with pytest.raises(InputError) as caught:
        search(load_unchecked(file, [heads, field]), (2,))
    with pytest.raises(InputError) as of_run:
        simtrain.load_scenario(file, [heads, field])
    assert [problem.code for problem in caught.value.problems] == [code]
    assert caught.value.problems[0] in of_run.value.problems
