"""A software stack is added with a file, nothing else."""

import json

import pytest

from tests.helpers.checkout import Checkout
from tests.helpers.command_line import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.ci]

RUN = ("run", "llama3_8b", "--json", "--set")
FP8 = ("--set", "precision.compute=fp8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project with two more stacks: `nemo`, and `plain`, which has no fp8."""
    copy = Checkout.copy(tmp_path_factory.mktemp("checkout"))
    for name, base in (("nemo", "megatron_core"), ("plain", "eager")):
        text = (ROOT / "software_stacks" / f"{base}.yaml").read_text("utf-8")
        copy.add(
            f"software_stacks/{name}.yaml", text.replace(f"\nname: {base}\n", f"\nname: {name}\n")
        )
    return copy


@pytest.mark.parametrize("options", [(), FP8])
def test_a_stack_runs_as_its_entries_say(checkout: Checkout, options: tuple[str, ...]) -> None:
    new, copied = (
        json.loads(checkout.call(*RUN, f"software={name}", *options))
        for name in ("nemo", "megatron_core")
    )
    assert new["software"] == "nemo"
    assert new["iteration_time_s"] == copied["iteration_time_s"]
    assert new["memory"] == copied["memory"]


def test_rules_ask_the_entries_of_a_stack(checkout: Checkout) -> None:
    error = checkout.refused(*RUN, "software=plain", *FP8)
    assert "E394" in error and "software.stack is plain" in error
    graphs = ("software.cuda_graphs=true", "--set", "recompute=selective")
    assert "E338" in checkout.refused(*RUN, "software=nemo", "--set", *graphs)
    checkout.call(*RUN, "software=plain", "--set", *graphs)


def test_errors_completion_and_documents_list_a_stack(checkout: Checkout) -> None:
    assert "nemo" in checkout.refused(*RUN, "software=nem")
    code = "from simtrain.commands.shared import settable_fields; print(settable_fields('soft'))"
    assert "software=nemo" in checkout.spawn("-c", code).stdout
    code = "from docs.update.stacks import stacks; print(stacks(None))"
    header = checkout.spawn("-c", code).stdout.splitlines()[0]
    assert "nemo" in header and "plain" in header


def test_a_remedy_names_a_stack_that_states_what_it_supports(checkout: Checkout) -> None:
    code = "from simtrain.scenario.software import stacks_with as s; print(s('fp8_library', "
    outcome = checkout.spawn("-c", f"{code}'transformer_engine'))").stdout
    # The paper's stack assumes its fp8.
    assert outcome == "['megatron_core', 'nemo', 'llm_foundry', 'megatron_2022']\n"
