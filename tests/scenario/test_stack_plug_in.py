"""A software stack is added with a file of any installed package, nothing else."""

import json

import pytest

from tests.helpers.command_line import ROOT
from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

RUN = ("run", "llama3_8b", "--format=json", "--set")
FP8 = ("--set", "precision.compute=fp8")


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with two more stacks: `fork`, and `plain`, which has no fp8."""
    files = {}
    for name, base in (("fork", "megatron_core"), ("plain", "eager")):
        text = (ROOT / "software_stacks" / f"{base}.yaml").read_text("utf-8")
        files[f"stacks/{name}.yaml"] = text.replace(f"\nname: {base}\n", f"\nname: {name}\n")
    parts = {"software_stacks": {"ours": "stacks"}}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), files, parts)


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), FP8])
def test_a_stack_runs_as_its_entries_say(outsider: Outsider, options: tuple[str, ...]) -> None:
    new, copied = (
        json.loads(outsider.call(*RUN, f"software={name}", *options))
        for name in ("fork", "megatron_core")
    )
    assert new["software"] == "fork"
    assert new["iteration_time_s"] == copied["iteration_time_s"]
    assert new["memory"] == copied["memory"]


def test_rules_ask_the_entries_of_a_stack(outsider: Outsider) -> None:
    error = outsider.refused(*RUN, "software=plain", *FP8)
    assert "E394" in error and "software.stack is plain" in error
    graphs = ("software.cuda_graphs=true", "--set", "recompute=selective")
    assert "E338" in outsider.refused(*RUN, "software=fork", "--set", *graphs)
    outsider.call(*RUN, "software=plain", "--set", *graphs)


def test_errors_and_completion_list_a_stack(outsider: Outsider) -> None:
    assert "fork" in outsider.refused(*RUN, "software=for")
    code = "from simtrain.commands.completion import shipped_stacks; print(shipped_stacks('fo'))"
    assert "fork" in outsider.spawn("-c", code).stdout
