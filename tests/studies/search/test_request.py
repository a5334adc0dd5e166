"""What a search is asked for, what it refuses, what it changes in the best, and its files."""

import dataclasses
import inspect
import itertools
import json
import pathlib
import re
import signal
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import pytest

import simtrain
from simtrain.base.request import descriptions_of
from simtrain.commands.interrupts import first_interrupt
from simtrain.errors import DoesNotFitError, InputError
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.scenario import RecomputePolicy, Scenario, load_unchecked
from simtrain.schedules import NAMED
from simtrain.studies.evaluation import Evaluation, Evaluator, Run
from simtrain.studies.found_files import write_scenarios
from simtrain.studies.objectives import OBJECTIVES
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.request import SearchRequest, check_held, check_varied, read_vary
from simtrain.studies.search.result import Candidate, SearchResult, reason
from simtrain.studies.search.run import _refined_fields, search
from simtrain.studies.search.space import Space
from simtrain.studies.simulation import simulate_memory
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
    described = descriptions_of(SearchRequest)
    assert [*inspect.signature(search).parameters] == [*described]
    assert all(text in " ".join((search.__doc__ or "").split()) for text in described.values())


def test_a_request_reports_all_wrong_counts_at_once() -> None:
    request = SearchRequest(BASES["narrow"], (4, 0), top=0, context=(), expert=(0,))
    with pytest.raises(InputError) as caught:
        request.check()
    assert [problem.code for problem in caught.value.problems] == ["E834"] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpus": ()}, r"gpus is \(\)"),
        ({"gpus": (4, 0)}, "gpus is 0"),
        ({"gpus": (-8,)}, "gpus is -8"),
        ({"gpus": (8.0,)}, r"gpus is 8\.0"),
        ({"gpus": (True,)}, "gpus is True"),
        ({"gpus": (4,), "top": 0}, "top is 0"),
        ({"gpus": (4,), "objective": "speed"}, "objective is 'speed'"),
        ({"gpus": (4,), "context": (0,)}, "context is 0"),
        ({"gpus": (4,), "expert": ()}, r"expert is \(\)"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^E834 {message}"):
        search(BASES["narrow"], **arguments)


@pytest.mark.parametrize("gpus", ["8", b"8", None, 8.0])
def test_numbers_of_gpus_are_one_number_or_a_list(gpus: Any) -> None:
    with pytest.raises(InputError, match=r"E834 gpus is .*, not a list"):
        search(base(), gpus)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
def test_an_invalid_budget_is_an_error(seconds: float) -> None:
    with pytest.raises(InputError, match="E834 seconds is "):
        search(BASES["narrow"], (4,), seconds=seconds)


def test_set_and_context_together_are_an_error(file: pathlib.Path) -> None:
    options = ("--gpus", "2", "--context", "2", "--set", "parallelism.context=1")
    outcome = call("search", str(file), *options)
    assert outcome.exit_code == 2
    assert "E834 parallelism.context " in outcome.stderr
    assert '--context: E834 "x,2"' in call("search", str(file), *options[:3], "x,2").stderr


def test_more_gpus_than_the_cluster_has_are_an_error() -> None:
    with pytest.raises(InputError, match=r"E832 5000 GPUs .* 4480 .* \(560 nodes of 8\)"):
        search(BASES["plain"], (8, 5000))


def test_a_memory_limit_without_unit_is_an_error() -> None:
    with pytest.raises(InputError, match=r'--margin: E833 "4"'):
        search(BASES["narrow"], (4,), margin="4")
    with pytest.raises(
        InputError, match=r"--margin: E833 a margin of 2 GiB leaves nothing of 2.*GiB"
    ):
        search(BASES["narrow"], (4,), max_memory="2 GiB", margin="2 GiB")
    with pytest.raises(InputError, match=r'--max-memory: E833 "80"'):
        search(BASES["narrow"], (4,), max_memory="80")


def test_a_limit_above_the_gpus_memory_is_an_error() -> None:
    with pytest.raises(InputError, match=r"--max-memory: E833 1 TiB .* 80 GiB"):
        search(BASES["narrow"], (1,), max_memory="1 TiB")


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


def test_if_nothing_is_legal_the_error_names_the_rules() -> None:
    with pytest.raises(InputError) as caught:
        search(BASES["plain"], (7,))
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert re.match(r"E831 none of \d+ layouts on 7 GPUs is legal", message)
    assert "\n    E301, " in message and "6 or 8 GPUs" in message
    assert all(search(BASES["plain"], (number,), top=1).ranked for number in (6, 8))


def test_the_remedy_names_fixed_fields() -> None:
    policy = {"strategy": "full", "method": "block", "num_layers": 8}
    fixed = holding(base(recompute=policy), ("recompute",))
    with pytest.raises(InputError) as caught:
        search(fixed, (4,))
    option = "--set 'recompute={strategy: full, method: block, num_layers: 8}'"
    assert str(caught.value).endswith(option)


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


# ------------------------------------------------------------------------- recompute: auto


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


# ------------------------------------------------------------------------- fields


def varying(name: str, *options: str) -> Space:
    varied = check_varied(BASES[name], read_vary(options))
    return Space(BASES[name], (4,), vary=varied)


@pytest.mark.parametrize(
    ("options", "field", "values"),
    [
        (("batch.micro=1,4",), "batch.micro", {1, 4}),
        (("parallelism.tensor=2",), "parallelism.tensor", {2}),
        (("overlap.data_parallel",), "overlap.data_parallel", {False, True}),
        (
            ("overlap.data_parallel=true", "overlap.gradient_buckets"),
            "overlap.gradient_buckets",
            {"layer", "megatron"},
        ),
        (
            ("recompute.modules=[mlp],[core_attention]",),
            "recompute.modules",
            {("mlp",), ("core_attention",)},
        ),
        (("recompute=full",), "recompute.strategy", {"full"}),
        (("schedule=gpipe", "overlap.data_parallel"), "schedule", {"gpipe"}),
        (("model.seq_length=256,512",), "model.seq_length", {256, 512}),
    ],
)
def test_a_search_has_these_values_of_a_field(
    options: tuple[str, ...], field: str, values: set[object]
) -> None:
    searched = varying("narrow", *options)
    points = legal_points(searched).points
    scenarios = [searched.scenario(point) for point in points]
    assert {attrgetter(field)(scenario) for scenario in scenarios} == values
    assert not any(broken(scenario) for scenario in scenarios[::7])
    assert len({*points}) == len(points)


def test_a_schedule_without_values_is_every_named_one() -> None:
    """By default only those of Megatron-LM are searched."""
    flushing = tuple(name for name, family in NAMED.items() if family.flushes)
    assert check_varied(base(), {"schedule": None}) == {"schedule": flushing}
    assert {one.schedule for one in legal_points(varying("plain")).points} < {*NAMED}


def test_variants_are_the_searches_with_each_value_set() -> None:
    points = legal_points(varying("narrow", "overlap.data_parallel=true,false")).points
    alone = [
        legal_points(Space(BASES["narrow"].replace({"overlap.data_parallel": value}), (4,))).points
        for value in (True, False)
    ]
    assert [point._replace(settings=()) for point in points] == [*alone[0], *alone[1]]


def test_a_held_field_keeps_the_value_of_the_file() -> None:
    fields = check_held(["parallelism.tensor", "memory", "recompute"])
    points = legal_points(Space(base(parallelism={"tensor": 2}), (4,), hold=fields)).points
    assert {(one.tensor, one.zero_stage, one.recompute.strategy) for one in points} == {
        (2, 0, "none")
    }


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("overlap.userbufers", "E802 .*did you mean overlap.userbuffers"),
        ("cluster=h100_sxm", "E838 a search has one machine"),
        ("memory.zero_stage=1,2", "E838 memory.zero_stage is set by --set and varied"),
        ("memory.shard_over", "E838 memory.shard_over has no list of all its values"),
        ("recompute=auto", "E838 auto is a choice"),
        ("batch.micro=0", "E204 batch.micro is 0"),
    ],
)
def test_fields_that_cannot_be_varied(option: str, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        check_varied(
            load_unchecked("table5_22b_present", ["memory.zero_stage=1"]), read_vary([option])
        )


def test_a_varied_field_keeps_the_rules_of_the_cluster() -> None:
    """H100s of DGX machines have no NVMe: their layouts with it are counted as illegal."""
    hosts = {"zero_stage": 3, "offload_optimizer": True, "offload_parameters": True}
    scenario = base(memory=hosts, cluster="h100_sxm", software="deepspeed_2022")
    result = search(scenario, gpus=4, vary={"memory.nvme": ["none", "all"]}, only_best=True)
    assert result.exact and not result.failures
    assert result.num_illegal_by_rule["E978"] > 0
    assert {layout.point.settings for layout in result.ranked if layout.point} == {
        (("memory.nvme", "none"),)
    }


# ------------------------------------------------------------------------- refinement and front


def refined(**arguments: Any) -> Any:
    fields = ("parallelism.pipeline", "batch.micro", "memory.zero_stage")
    scenario = holding(base(batch={"global": 8}), ("parallelism", "sequence_parallel"))
    return search(scenario, (4,), top=3, hold=fields, refines=True, **arguments)


def test_a_refined_layout_is_legal_and_no_slower_than_the_best() -> None:
    result = refined()
    refinement, best = result.refinement, result.ranked[0]
    made = refinement.layout.scenario
    assert not broken(made) and refinement.layout.peak_bytes <= result.limit_bytes
    assert refinement.layout.iteration_time_s <= best.iteration_time_s
    assert refinement.changes and refinement.num_simulated <= refinement.num_tried
    data = result.to_dict()["refined"]
    assert set(data["changes"]) <= {*refinement.fields}
    assert not {*refinement.fields} & {*result.held}
    view = search_view(result, details=True)
    (said,) = (fact for name, fact in view.parts[1].rows if name == "Options that help")
    assert said.value == refinement.layout.iteration_time_s
    assert f"number {refinement.rank} with " in said.text
    assert any(line.startswith("Refined: ") for line in view.sentences)


def test_held_settings_are_not_refined() -> None:
    fields = ("overlap", "memory", "placement", "parallelism", "recompute", "batch", "schedule")
    result = search(base(), (1,), hold=fields, refines=True)
    assert not result.refinement.changes and not result.refinement.fields
    lines = [*map(str, search_view(result, details=True).sentences)]
    assert "None of 0 changes of single settings of the best layouts is better." in lines


@pytest.mark.parametrize(
    ("field", "num_legal"), [("overlap.align_parameter_gather", 1), ("overlap.gradient_buckets", 0)]
)
def test_the_value_that_a_layout_has_is_no_change_of_it(field: str, num_legal: int) -> None:
    """Both fields have two values, and the other one of the second is illegal here."""
    scenario = base(batch={"global": 8})
    held = [each for each in _refined_fields(Space(scenario, (4,)), ()) if each != field]
    refinement = search(scenario, (4,), top=2, hold=held, refines=True).refinement
    assert refinement and not refinement.changes
    assert refinement.num_tried == 2 * num_legal  # of the two best layouts
    assert refinement.fields == (field,) * num_legal


@pytest.mark.ci
@pytest.mark.slow
def test_a_front_needs_less_and_less_memory_for_more_time() -> None:
    result = search(load_unchecked("table5_22b_present"), (8,), top=2, refines=True)
    front = result.front
    assert front[0].evaluation == result.ranked[0].evaluation and len(front) > 1
    for first, second in itertools.pairwise(front):
        assert second.iteration_time_s >= first.iteration_time_s
        assert second.peak_bytes < first.peak_bytes - 0.01 * result.limit_bytes
    (line,) = (
        line
        for line in map(str, search_view(result, details=True).sentences)
        if line.startswith("With less memory than number 1: ")
    )
    assert line.count("% slower with ") == len(front) - 1


# ------------------------------------------------------------------------- the reason


def found(peak_bytes: int, num_gpus: int = 1, **parts: float) -> Candidate:
    scenario = BASES["plain"].model_copy(
        update={"parallelism": BASES["plain"].parallelism.model_copy(update={"data": num_gpus})}
    )
    breakdown = Breakdown(**parts)
    run = Run(breakdown.total_s, 1.0, 0.5, 0.5, breakdown)
    return Candidate(scenario, Evaluation(scenario, peak_bytes, 80 * GIB, run))


def test_the_reason_names_the_parts_that_differ() -> None:
    winner = found(GIB, compute_s=8.0, bubble_s=1.3, data_communication_s=0.24)
    other = found(GIB, compute_s=8.0, bubble_s=2.0, data_communication_s=0.0)
    text = reason(winner, other, OBJECTIVES["time"])
    assert re.findall(r"([\d.]+) % (less|more)", text) == [
        *(("4.6", "less"), ("7.0", "less"), ("2.4", "more")),
    ]
    assert text.index("bubble") < text.index("data-parallel")


def test_the_reason_of_equal_objectives_is_another_difference() -> None:
    small, large = found(GIB, compute_s=1.0), found(3 * GIB, compute_s=1.0)
    assert reason(small, large, OBJECTIVES["time"]) == "as fast, and 2 GiB less at the peak"
    assert reason(small, large, OBJECTIVES["memory"]) == "2 GiB less at the peak"
    assert reason(small, small, OBJECTIVES["cost"]) == "equal in every ranked figure"
    fast = found(GIB, compute_s=0.5)
    assert reason(fast, small, OBJECTIVES["memory"]).startswith(
        "as small, and 50 % less time: 50 % less compute ("
    )


def test_the_reason_names_different_numbers_of_gpus() -> None:
    few, many = found(GIB, 2, compute_s=1.5), found(GIB, 4, compute_s=1.0)
    assert reason(few, many, OBJECTIVES["cost"]).startswith(
        "2 GPUs instead of 4, 50 % more time: 50 % more compute ("
    )


# ------------------------------------------------------------------------- files and the command


def test_the_file_of_each_layout_has_the_same_iteration_time(
    tmp_path: pathlib.Path,
) -> None:
    result = search(BASES["offloaded"], (4,), top=4)
    paths = write_scenarios(result, tmp_path / "deep" / "folder")
    assert [path.name for path in paths] == [f"small_0{rank}.yaml" for rank in (1, 2, 3, 4)]
    for path, one in zip(paths, result.ranked, strict=True):
        loaded = simtrain.load_scenario(path)
        assert loaded.name == path.stem and loaded.description
        expected = one.scenario.model_dump(exclude={"name", "description"})
        assert loaded.model_dump(exclude={"name", "description"}) == expected
        assert simtrain.simulate(loaded).iteration_time_s == one.run.iteration_time_s


def test_the_profile_of_a_file_is_found_from_any_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = simtrain.base.resources.find_profile("a100_sxm4_80gb")
    (tmp_path / "mine.yaml").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    base = BASES["plain"].model_copy(update={"cluster": "mine.yaml"})
    (path,) = write_scenarios(search(base, (1,), top=1), tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    assert simtrain.simulate(simtrain.load_scenario(path)).iteration_time_s > 0


def test_the_base_scenario_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "small_02.yaml"
    path.write_text(FILE + "name: small\n")
    result = search(load_unchecked(path), (2,), top=2)
    with pytest.raises(InputError, match=r"small_02\.yaml: E113 "):
        write_scenarios(result, tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["small_02.yaml"]
    assert path.read_text().startswith("model:")


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


def test_a_folder_with_an_edited_file_is_refused_before_the_search(
    file: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.studies.search.run.search", None)
    (tmp_path / "small_01.yaml").write_text("mine", "utf-8")
    errors = refused("search", str(file), "--gpus", "2", "--out", str(tmp_path))
    assert "small_01.yaml: E113 the file exists, and no search wrote it" in errors


def test_the_command_prints_json(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    options = ("--gpus", "4", "--set", "memory.zero_stage=1", "--top", "2", "--out", str(out))
    outcome = call("search", str(file), *options, "--json")
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
        ran = json.loads(call("run", one["file"], "--json").stdout)
        assert ran["iteration_time_s"] == one["iteration_time_s"]
        assert ran["made_with"] == data["made_with"]
        head = "".join(pathlib.Path(one["file"]).read_text("utf-8").splitlines()[:3])
        assert all(words in head for words in data["made_with"].values())
        # `simtrain cost` rounds up to whole iterations; with 1T tokens the difference is small.
        cost = json.loads(call("cost", one["file"], "--tokens", "1T", "--json").stdout)
        assert data["currency"] == cost["currency"]
        assert one["price_of_million_tokens"] == pytest.approx(cost["price"] / 1e6, rel=1e-6)


def test_the_command_prints_a_table(file: pathlib.Path) -> None:
    options = ("--gpus", "2", "--gpus", "4", "--set", "recompute=none", "--top", "3")
    outcome = call("search", str(file), *options, "--objective", "cost")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    title, *lines = outcome.stdout.splitlines()
    assert "Number 1 compared" not in outcome.stdout
    for shown in ("small", "2 or 4 GPUs", "a100_sxm4_80gb", "cost", "80 GiB"):
        assert shown in title
    assert "…" not in outcome.stdout
    rows = [line.split() for line in lines if re.fullmatch(r"[123] .*", line)]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert all(row[1] in ("2", "4") for row in rows), "the column of GPUs"
    assert any("USD/" in line for line in lines)
    assert any(line.startswith("Exact among ") for line in lines)
    assert lines[1].startswith("Best that surely fits")
    more = call("search", str(file), *options, "--objective", "cost", "--details").stdout
    assert more.startswith(outcome.stdout)
    assert "\nNumber 1 compared with number 2: " in more and "\nHeld: " in more


@pytest.mark.parametrize(
    ("options", "exit_code", "code"),
    [
        (("--gpus", "37"), 2, "E831"),
        (("--gpus", "4", "--max-memory", "1GiB"), 3, "E830"),
        (("--gpus", "0"), 2, "--gpus"),
        (("--gpus", "4", "--set", "model.num_layers=none"), 2, "E203"),
    ],
)
def test_exit_codes(
    file: pathlib.Path, options: tuple[str, ...], exit_code: int, code: str
) -> None:
    outcome = call("search", str(file), *options)
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert code in outcome.stderr


def test_the_command_takes_a_budget(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = ("--gpus", "4", "--seconds", "0.000001", "--out", str(tmp_path / "out"))
    outcome = call("search", str(file), *options, "--json")
    data = json.loads(outcome.stdout)
    assert outcome.exit_code == 0
    assert (data["exact"], data["stopped"], len(data["ranked"])) == (False, "budget", 1)
    assert simtrain.load_scenario(data["best"]["file"]).num_gpus == 4


def test_an_interrupted_command_prints_the_best_so_far(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed = nullcontext(lambda: True)
    monkeypatch.setattr("simtrain.commands.interrupts.first_interrupt", lambda: pressed)
    outcome = call("search", str(file), "--gpus", "4")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert "Interrupted. Best found: simulated 1 layout of" in outcome.stdout


def test_the_first_ctrl_c_sets_a_flag_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with first_interrupt() as is_pressed:
        assert not is_pressed()
        signal.raise_signal(signal.SIGINT)
        assert is_pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
