"""A search proves nothing for a schedule that does not declare a proved bound."""

from collections.abc import Iterator

import pytest

from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.schedules import NAMED, Action, Schedule, ScheduleFamily, one_f_one_b
from simtrain.schedules.registry import FAMILIES
from simtrain.studies.search import search
from simtrain.studies.search.bounds import Bounds
from simtrain.studies.search.iteration_bound import iteration_bound_s
from simtrain.studies.search.legality import legal_points
from simtrain.studies.search.space import Space
from simtrain.views.search import search_view
from tests.helpers.search_spaces import EVALUATOR, base, holding

NAME = "zero_bubble_h1"


class ZeroBubble(ScheduleFamily):
    """1F1B whose weight gradients fill the bubbles: stage s runs them s passes later."""

    name = NAME
    splits_backwards = True
    blocks = False

    def build(self, p: int, m: int, n: int) -> Schedule:
        ranks = []
        for stage, actions in enumerate(one_f_one_b(p, n).ranks):
            line, waiting = list[Action](), list[Action]()
            for action in actions:
                is_forward = action.kind == "F"
                line.append(action if is_forward else action._replace(kind="I"))
                if not is_forward:
                    waiting.append(action._replace(kind="W"))
                    line += [waiting.pop(0)] if len(waiting) > stage else []
            ranks.append(line + waiting)
        return Schedule.of(self.name, p, m, n, ranks)


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scenario]:
    """Add a schedule by name; yield a scenario with it."""
    for families in (FAMILIES, NAMED):
        monkeypatch.setitem(families, NAME, ZeroBubble())
    # The type of the field lists the shipped names.
    monkeypatch.setattr("simtrain.studies.search.run.check_values", lambda scenario: None)
    fields = ("schedule",), ("parallelism", "interleave"), ("memory", "zero_stage")
    scenario = base(
        model={"num_layers": 8, "hidden_size": 1024, "tied_embeddings": False},
        batch={"global": 8},
        overlap={"pipeline": True},
    )
    yield holding(scenario.model_copy(update={"schedule": NAME}), *fields)


def test_the_closed_form_does_not_hold_for_split_backward_passes(scenario: Scenario) -> None:
    """So a schedule must not be taken for proved by default."""
    split = scenario.parallelism.model_copy(update={"pipeline": 4})
    one = scenario.model_copy(update={"parallelism": split})
    run = EVALUATOR.evaluate(one).run
    assert run is not None
    machine = EVALUATOR.machine_of(one)
    as_1f1b = one.model_copy(update={"schedule": "1f1b"})
    assert iteration_bound_s(Plan.of(as_1f1b, 8), machine) > run.iteration_time_s
    assert 0 < Bounds(one, machine).iteration_s(one) <= run.iteration_time_s


def test_a_search_of_an_unproved_schedule_equals_enumeration(scenario: Scenario) -> None:
    space = Space(scenario, (4,))
    bounds = Bounds(scenario, EVALUATOR.machine_of(scenario))
    expected = []
    for layout in map(space.scenario, legal_points(space).points):
        evaluation = EVALUATOR.evaluate(layout)
        assert evaluation.run is not None
        assert bounds.peak_bytes(layout) <= evaluation.peak_bytes
        assert bounds.iteration_s(layout) <= evaluation.run.iteration_time_s
        expected.append((evaluation.run.iteration_time_s, evaluation.peak_bytes))
    result = search(scenario, (4,), top=5)
    found = [(one.run.iteration_time_s, one.evaluation.peak_bytes) for one in result.ranked]
    assert found == sorted(expected)[:5]


def test_a_search_of_an_unproved_schedule_is_never_exact(scenario: Scenario) -> None:
    result = search(scenario, (4,), top=2)
    assert not result.exact and result.gap is None
    data = result.to_json()
    assert (data["exact"], data["unproved_schedules"]) == (False, [NAME])
    assert data["lower_bound_iteration_time_s"] is None
    last = search_view(result).sentences[-1]
    assert last.startswith("Best found.") and "Exact" not in last and NAME in last


def test_schedules_have_no_proved_bound_by_default() -> None:
    assert not ZeroBubble.has_proved_bound
    assert all(family.has_proved_bound for family in NAMED.values())
