"""Scenarios: defaults, derived quantities, overrides, positions and shipped files."""

import re
from pathlib import Path

import pytest

from simtrain.base.resources import find_profile, find_scenario, list_scenarios
from simtrain.base.strict_yaml import parse_document
from simtrain.errors import InputError
from simtrain.scenario import Scenario, load_scenario, load_unchecked
from tests.helpers.scenario_texts import MINIMAL

LONG = "recompute: {strategy: full, method: block, num_layers: 2}\n"


@pytest.mark.parametrize("written", ["", "recompute: selective\n", LONG])
@pytest.mark.parametrize("override", ["recompute=full", "recompute.strategy=full"])
def test_overrides_reach_recompute_in_either_form(
    tmp_path: Path, written: str, override: str
) -> None:
    """A word replaces the whole section. A path changes one field of it."""
    path = tmp_path / "x.yaml"
    path.write_text(MINIMAL + written, "utf-8")
    recompute = load_scenario(path, [override]).recompute
    stays = written == LONG and override.startswith("recompute.")
    assert recompute.strategy == "full"
    assert (recompute.method, recompute.num_layers) == (("block", 2) if stays else ("uniform", 1))


def test_every_shipped_scenario_loads_and_cites_its_source() -> None:
    names = list_scenarios()
    assert len(names) == 42
    for name in names:
        assert load_scenario(name).name == name
        first = find_scenario(name).read_text("utf-8").splitlines()[0]
        assert re.match(r"# .*[a-zA-Z.] 20\d\d, ", first)
        if name.startswith(("table", "dp")):
            assert first.startswith("# Korthikanti et al. 2022, ")


def test_a_scenario_is_named_after_its_file_unless_it_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "what-if.yaml"
    path.write_text(MINIMAL, "utf-8")
    assert load_scenario(path).name == "what-if"
    assert load_scenario(str(path), ["name=other"]).name == "other"
    assert load_scenario(path, ["name="]).name == "what-if"


def test_a_path_wins_over_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_scenario("dp530b").is_absolute()
    assert find_scenario("dp530b.yaml") == Path("dp530b.yaml")
    assert find_scenario("./dp530b") == Path("dp530b")
    (tmp_path / "dp530b").write_text(MINIMAL, "utf-8")
    assert find_scenario("dp530b") == Path("dp530b")


def test_an_unknown_name_suggests_a_shipped_one() -> None:
    with pytest.raises(InputError) as caught:
        find_scenario("table5_175b_presnt")
    (problem,) = caught.value.problems
    assert problem.message == 'there is no scenario named "table5_175b_presnt"'
    assert problem.fix is not None
    assert problem.fix.startswith(
        "did you mean table5_175b_present? simtrain show scenarios lists the names; "
    )
    with pytest.raises(InputError, match='there is no hardware profile named "b200"'):
        find_profile("b200")


def test_an_installed_package_finds_its_data_inside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "simtrain" / "_data" / "scenarios"
    folder.mkdir(parents=True)
    (folder / "only.yaml").write_text(MINIMAL, "utf-8")
    monkeypatch.setattr("simtrain.base.resources._PACKAGE", tmp_path / "simtrain")
    assert list_scenarios() == ["only"]
    assert load_scenario("only").model.num_layers == 48


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("(" * 100_000, "at most 10000 characters"),
        ("(t*1000|)*1000" * 9, "more than 100000 letters"),
        ("t*1001", "*1001 repeats more than 1000 times"),
    ],
)
def test_a_layout_is_limited_before_it_is_written_out(layout: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_scenario("llama3_8b").replace({"parallelism.layout": layout})


def test_many_errors_are_counted_instead_of_listed() -> None:
    keys = "".join(f"key{number}: 1\n" for number in range(20_000))
    with pytest.raises(InputError) as caught:
        Scenario.from_document(parse_document(MINIMAL + keys, "x.yaml"))
    assert len(caught.value.problems) == 50
    assert "19950 more errors" in str(caught.value.problems[-1])


@pytest.mark.parametrize(
    ("field", "most"), [("model.seq_length", 2**31 - 1), ("parallelism.data", 2**20)]
)
def test_counts_have_limits(field: str, most: int) -> None:
    assert load_unchecked("llama3_8b", [f"{field}={most}"])
    with pytest.raises(InputError, match=f"E204 {field} is {most + 1}, but must be less than"):
        load_unchecked("llama3_8b", [f"{field}={most + 1}"])
