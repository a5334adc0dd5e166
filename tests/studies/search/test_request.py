"""What a search is asked for, what it refuses, what it changes in the best, and its files."""

import inspect
import json
import pathlib
import re
import signal
from operator import attrgetter
from typing import Any

import pytest

import simtrain
from simtrain.base.request import described_in
from simtrain.commands.printing import first_interrupt
from simtrain.errors import InputError
from simtrain.scenario import load_unchecked
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.request import SearchRequest
from simtrain.studies.search.run import SearchResult, search, write_scenarios
from simtrain.studies.search.space import Space, check_held, check_varied, read_vary
from simtrain.views.search import search_view
from tests.helpers.command_line import call, refused
from tests.helpers.search_spaces import BASES, base, broken, holding

GIB = 2**30
FILE = """\
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 16, seq_length: 2048}
batch: {micro: 4, global: 32}
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return path


def notes(result: SearchResult) -> list[str]:
    return [*map(str, search_view(result, details=True).sentences)]


def test_every_argument_is_described_where_it_is_declared() -> None:
    described = described_in(inspect.getdoc(SearchRequest) or "")
    assert [*inspect.signature(search).parameters] == [*described]
    assert all(text in " ".join((search.__doc__ or "").split()) for text in described.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": ()}, r"gpus is \(\)"),
        ({"gpus": (4, 0)}, "gpus is 0"),
        ({"gpus": (-8,)}, "gpus is -8"),
        ({"gpus": (8.0,)}, r"gpus is 8\.0"),
        ({"gpus": (True,)}, "gpus is True"),
        ({"gpus": 4, "top": 0}, "top is 0"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^E834 {message}"):
        search(BASES["narrow"], **arguments)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
def test_an_invalid_budget_is_an_error(seconds: float) -> None:
    with pytest.raises(InputError, match="E834 seconds is "):
        search(BASES["narrow"], 4, seconds=seconds)


def test_a_recompute_that_is_open_is_refused(file: pathlib.Path) -> None:
    """A search tries the policies. An open recompute of the file is not held."""
    with pytest.raises(InputError, match="E838 auto is a choice among policies"):
        search(load_unchecked(file, ["recompute=auto"]), 4)
    file.write_text(f"{FILE}recompute: {{strategy: full, keep_microbatches: auto}}\n")
    result = search(load_unchecked(file), 2, top=1, refines=True)
    assert result.exact and not result.failures


def test_more_gpus_than_the_cluster_has_are_an_error() -> None:
    with pytest.raises(InputError, match=r"E832 5000 GPUs .* 4480 .* \(560 nodes of 8\)"):
        search(BASES["plain"], 5000)


def test_if_nothing_is_legal_the_error_names_the_rules() -> None:
    with pytest.raises(InputError) as caught:
        search(BASES["plain"], 7)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert re.match(r"E831 none of \d+ layouts on 7 GPUs is legal", message)
    assert "\n    E301, " in message


# ------------------------------------------------------------------------- fields


@pytest.mark.parametrize(
    ("option", "field", "values"),
    [
        ("batch.micro=1,4", "batch.micro", {1, 4}),
        ("parallelism.tensor=2", "parallelism.tensor", {2}),
        ("recompute=full", "recompute.strategy", {"full"}),
        ("schedule=gpipe", "schedule", {"gpipe"}),
    ],
)
def test_a_search_has_these_values_of_a_field(option: str, field: str, values: set[object]) -> None:
    searched = Space(BASES["narrow"], 4, check_varied(BASES["narrow"], read_vary([option])))
    points = legal_points(searched).points
    scenarios = [searched.scenario(point) for point in points]
    assert {attrgetter(field)(scenario) for scenario in scenarios} == values
    assert not any(broken(scenario) for scenario in scenarios[::7])
    assert len({*points}) == len(points)


def test_a_held_field_keeps_the_value_of_the_file() -> None:
    fields = check_held(["parallelism.tensor", "memory", "recompute"])
    points = legal_points(Space(base(parallelism={"tensor": 2}), 4, hold=fields)).points
    values = {(one.tensor, one.zero_stage, one.recompute.strategy) for one in points}
    assert values == {(2, 0, "none")}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("overlap.userbufers", "E802 .*did you mean overlap.userbuffers"),
        ("cluster=h100_sxm", "E838 a search has one machine"),
        ("memory.zero_stage=1,2", "E838 memory.zero_stage is set by --set and varied"),
        ("memory.shard_over=2", "E838 memory.shard_over is not of a layout"),
        ("recompute=auto", "E838 auto is a choice"),
        ("batch.micro=", "E838 batch.micro has no values"),
        ("batch.micro=0", "E204 batch.micro is 0"),
    ],
)
def test_fields_that_cannot_be_varied(option: str, message: str) -> None:
    scenario = load_unchecked("table5_22b_present", ["memory.zero_stage=1"])
    with pytest.raises(InputError, match=f"(?s){message}"):
        check_varied(scenario, read_vary([option]))


# ------------------------------------------------------------------------- refinement


def refined(**arguments: Any) -> Any:
    fields = ("parallelism.pipeline", "parallelism.sequence_parallel", "batch.micro")
    fields += ("memory.zero_stage",)
    scenario = holding(base(batch={"global": 8}), *(tuple(each.split(".")) for each in fields))
    return search(scenario, 4, top=3, refines=True, **arguments)


def test_a_refined_layout_is_legal_and_no_slower_than_the_best() -> None:
    result = refined()
    refinement, best = result.refinement, result.ranked[0]
    made = refinement.layout.scenario
    assert not broken(made) and refinement.layout.peak_bytes <= result.limit_bytes
    assert refinement.layout.iteration_time_s <= best.iteration_time_s
    assert refinement.changes and refinement.num_simulated <= refinement.num_tried
    data = result.to_dict()["refined"]
    assert set(data["changes"]) <= {*refinement.fields}
    view = search_view(result, details=True)
    said = dict(view.parts[1].rows)
    assert said["Best that surely fits"].value == refinement.layout.iteration_time_s
    assert said["Without changed options"].value == best.iteration_time_s
    assert result.headline.startswith(str(view.parts[-1].text).partition(" (")[0])
    assert any(line.startswith("Refined: ") for line in view.sentences)
    assert not {*refinement.fields} & {*result.held}


def test_held_settings_are_not_refined() -> None:
    fields = ("overlap", "memory", "placement", "parallelism", "recompute", "batch", "schedule")
    result = search(base(), 1, hold=fields, refines=True)
    assert result.refinement and not result.refinement.changes and not result.refinement.fields
    data = result.to_dict()
    assert {*fields} <= {*data["held"]} and not data["varied"]


# ------------------------------------------------------------------------- files and the command


def test_the_file_of_each_layout_has_the_same_iteration_time(tmp_path: pathlib.Path) -> None:
    result = search(BASES["offloaded"], 4, top=4)
    paths = write_scenarios(result, tmp_path / "deep" / "folder")
    assert [path.name for path in paths] == [f"small_0{rank}.yaml" for rank in (1, 2, 3, 4)]
    for path, one in zip(paths, result.ranked, strict=True):
        loaded = simtrain.load_scenario(path)
        assert loaded.name == path.stem and loaded.description
        expected = one.scenario.model_dump(exclude={"name", "description"})
        assert loaded.model_dump(exclude={"name", "description"}) == expected
        assert simtrain.run(loaded).iteration_time_s == one.run.iteration_time_s


def test_an_existing_file_is_refused_before_the_search(
    file: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.studies.planning.search", None)
    (tmp_path / "small_01.yaml").write_text("mine", "utf-8")
    errors = refused("search", str(file), "--gpus", "2", "-o", str(tmp_path))
    assert "small_01.yaml: E113 the file exists" in errors


def test_the_command_prints_json(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    options = ("--gpus", "4", "--set", "memory.zero_stage=1", "--top", "2", "-o", str(out))
    outcome = call("search", str(file), *options, "--format=json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    data = json.loads(outcome.stdout)
    assert data["best"] == data["ranked"][0]
    assert data["num_configurations"] > data["num_legal"] >= data["num_fitting"] > 0
    removed = sum(data["num_illegal_by_rule"].values())
    assert removed + data["num_legal"] == data["num_configurations"]
    assert data["exact"] is True
    for one in data["ranked"]:
        assert one["configuration"]["zero_stage"] == 1
        assert sum(one["breakdown_s"].values()) == pytest.approx(one["iteration_time_s"])
        ran = json.loads(call("run", one["file"], "--format=json").stdout)
        assert ran["iteration_time_s"] == one["iteration_time_s"]
        assert ran["made_with"] == data["made_with"]
        head = pathlib.Path(one["file"]).read_text("utf-8").partition("\n")[0]
        assert all(words in head for words in data["made_with"].values())


def test_the_command_prints_a_table(file: pathlib.Path) -> None:
    options = ("--gpus", "2", "--set", "recompute=none", "--top", "3")
    outcome = call("search", str(file), *options)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert "small on 2 GPUs of a100_sxm4_80gb, within 80 GiB per GPU" in lines
    assert "…" not in outcome.stdout
    rows = [line.split() for line in lines if re.fullmatch(r"[123] .*", line)]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert any(line.startswith("Exact among ") for line in lines)
    assert any(line.startswith("Best that surely fits") for line in lines)
    more = call("search", str(file), *options, "--details").stdout
    assert "are legal" in more


@pytest.mark.parametrize(
    ("options", "exit_code", "code"),
    [
        (("--gpus", "37"), 2, "E831"),
        (("--gpus", "4", "--set", "model.seq_length=2000000"), 3, "E830"),
        (("--gpus", "0"), 2, "--gpus"),
        (("--gpus", "2,4"), 2, "--gpus: E834"),
        (("--gpus", "4", "--set", "model.num_layers=none"), 2, "E203"),
    ],
)
def test_exit_codes(
    file: pathlib.Path, options: tuple[str, ...], exit_code: int, code: str
) -> None:
    outcome = call("search", str(file), *options)
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert code in outcome.stderr


def test_the_first_ctrl_c_sets_a_flag_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with first_interrupt() as is_pressed:
        assert not is_pressed()
        signal.raise_signal(signal.SIGINT)
        assert is_pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
