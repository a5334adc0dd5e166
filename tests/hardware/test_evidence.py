"""The evidence for a profile follows from its entries and from its file of errors."""

import pathlib

import pytest

from simtrain.base.resources import find_profile
from simtrain.hardware.evidence import Evidence, evidence_of
from simtrain.hardware.load import load_profile, profile_of
from simtrain.scenario import load_scenario
from tests.helpers.command_line import call

RUNS = """
  - {runs: ours, errors: [-0.05, 0.0, 0.01], software: eager, remark: none, source: us}
  - {runs: others, errors: [0.1], software: eager, remark: none, source: us}"""


def profile(folder: pathlib.Path, name: str, runs: str | None = None, doubt: str = "") -> str:
    """Write a copy of a shipped profile, with a file of errors unless `runs` is None."""
    path = folder / f"{name}.yaml"
    path.write_text(find_profile("a100_sxm4_80gb").read_text("utf-8"), "utf-8")
    if runs is not None:
        errors = folder / "validated_on" / path.name
        errors.parent.mkdir(exist_ok=True)
        text = f"version: 2\nsummary: ours\n{doubt}\nmeasured_runs: {runs or '[]'}\n"
        errors.write_text(text, "utf-8")
    return str(path)


def evidence(cluster: str) -> Evidence:
    return evidence_of(load_profile(cluster), cluster)


def test_a_profile_is_judged_if_its_file_of_errors_has_runs(tmp_path: pathlib.Path) -> None:
    one = evidence(profile(tmp_path, "judged", RUNS))
    assert (one.level, one.num_runs, one.judged) == ("judged", 4, True)
    # The mean is over runs: (3 × 2 % + 10 %) / 4.
    assert one.text == "judged on 4 measured iterations, mean |error| 4.0%, worst 10%"


@pytest.mark.parametrize("runs", [None, ""])
def test_a_users_own_profile_without_runs_is_not_judged(
    runs: str | None, tmp_path: pathlib.Path
) -> None:
    one = evidence(profile(tmp_path, "mine", runs))
    assert (one.level, one.judged) == ("fitted on kernels", False)
    assert "18 of 57 entries" in one.text and "not yet compared" in one.text


def test_a_doubt_makes_a_profile_uncertain_also_if_it_was_judged(tmp_path: pathlib.Path) -> None:
    one = evidence(profile(tmp_path, "doubtful", RUNS, "doubt: sources disagree"))
    assert one.level == "uncertain" and one.judged
    assert one.text.startswith("uncertain, sources disagree; judged on 4 measured iterations")


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ((), True),
        (("hardware.running_costs.price=2 USD/h",), True),
        (("hardware.cluster.num_nodes=600",), True),
        (("hardware.gpu.memory_capacity=60 GiB",), True),
        (("hardware.inter_node.num_adapters=4",), False),
    ],
)
def test_a_changed_entry_that_time_depends_on_voids_the_judgement(
    changes: tuple[str, ...], is_judged: bool
) -> None:
    scenario = load_scenario("gpt2_1_5b", ("cluster=a100_sxm4_80gb", *changes))
    one = evidence_of(profile_of(scenario), scenario.cluster)
    assert one.judged is is_judged
    name = changes[0].partition("=")[0] if changes else ""
    assert is_judged or one.text.endswith(f"with the scenario's {name}")


def test_a_scenario_with_experts_is_not_judged_by_dense_runs() -> None:
    page = " ".join(call("run", "mixtral_8x7b").stdout.split())
    assert "none like this one was compared; 52 others were, mean |error|" in page
    dense = " ".join(call("run", "llama3_8b").stdout.split())
    assert "judged on 46 measured iterations like this one, mean |error| 3.1%" in dense
