"""Values that plans share. Caches compare them by identity."""

import pickle

from hypothesis import given

from simtrain.scenario import Scenario
from simtrain.workload.hashing import shared
from tests.helpers.toys import layer_scenarios, plan_of


@given(layer_scenarios())
def test_plans_of_equal_scenarios_share_their_values(scenario: Scenario) -> None:
    again = Scenario.model_validate(scenario.model_dump(by_alias=True), by_alias=True)
    one, other = plan_of(scenario), plan_of(again)
    assert one.model is other.model
    assert one.options is other.options
    assert one.step_options is other.step_options
    assert one.stage_parameters is other.stage_parameters
    for key, pass_ in one.passes.items():
        assert other.passes[key] is pass_


@given(layer_scenarios())
def test_a_value_from_another_process_is_replaced_by_the_shared_one(scenario: Scenario) -> None:
    """Hashes of strings differ between processes, so pickles do not contain them."""
    options = plan_of(scenario).options
    copy = pickle.loads(pickle.dumps(options))
    assert "_hash" not in vars(copy)
    assert copy is not options
    assert shared(copy) is options
