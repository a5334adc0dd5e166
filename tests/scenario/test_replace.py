"""Scenarios built and changed in Python, and their errors."""

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simtrain
from simtrain.base.strict_yaml import data_of
from simtrain.errors import InputError, Problem
from simtrain.scenario import (
    Batch,
    Model,
    Parallelism,
    Scenario,
    Software,
    check,
    check_scenario,
    load_scenario,
    load_unchecked,
)
from simtrain.scenario.rule import Rule
from simtrain.studies.advice import simulate_fitting
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.search.run import search
from simtrain.studies.simulation import simulate, simulate_memory
from tests.helpers.scenario_texts import MINIMAL, scenario_of

NAME = "table5_175b_present"
VALUES: dict[str, list[Any]] = {
    "description": ["a: b", None],
    "model.hidden_size": [6144, 0],
    "model.ffn_hidden_size": [1024, "1024"],
    "parallelism.tensor": [1, 4, -1, 2.0],
    "parallelism.sequence_parallel": [True, False, "yes"],
    "parallelism.scatter_gather": [True, False],
    "parallelism.interleave": [1, 3],
    "parallelism.first_stage_layers": [None, 9],
    "parallelism.tensr": [1],
    "batch.global": [32, 128],
    "batch.global_": [32],
    "recompute": ["full", "none", "ful"],
    "recompute.strategy": ["full", "auto"],
    "recompute.num_layers": [2],
    "memory.zero_stage": [1, 4],
    "schedule": ["gpipe", "1f1b"],
    "schedule.name": ["gpipe"],
    "cluster": ["h100_sxm"],
    "hardware.gpu.memory_capacity": ["40 GiB"],
    "hardware.gpu.num_sms": [[1, 2]],
}
CHANGES = st.lists(
    st.sampled_from(list(VALUES)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name]))
    ),
    unique_by=lambda change: change[0],
    max_size=6,
).map(dict)


def python_built() -> Scenario:
    model = Model(num_layers=4, hidden_size=512, num_attention_heads=8, seq_length=512)
    return Scenario(model=model, batch=Batch(micro=1, global_=4))


def problems_of(action: Callable[[], object]) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        action()
    return caught.value.problems


def with_split(scenario: Scenario, **update: Any) -> Scenario:
    """Return the scenario with another parallelism, which pydantic does not check."""
    split = scenario.parallelism.model_copy(update=update)
    return scenario.model_copy(update={"parallelism": split})


# ------------------------------------------------------------------------------------------- laws


def outcome(build: Callable[[], Scenario]) -> object:
    try:
        return data_of(build(), only_set=True)
    except InputError as error:
        return sorted(
            (problem.code, problem.message.replace("the scenario", "the file"), problem.fix)
            for problem in error.problems
        )


@given(CHANGES)
def test_replacing_values_equals_loading_with_overrides(changes: Mapping[str, Any]) -> None:
    """Wrong values raise the same errors."""
    overrides = [f"{name}={json.dumps(value)}" for name, value in changes.items()]
    loaded = outcome(lambda: load_unchecked(NAME, overrides))
    assert outcome(lambda: load_unchecked(NAME).replace(changes)) == loaded


@pytest.mark.parametrize("scenario", [scenario_of(MINIMAL), load_scenario(NAME), python_built()])
def test_replacing_nothing_changes_nothing(scenario: Scenario) -> None:
    same = scenario.replace({})
    assert same == scenario
    assert same.positions == scenario.positions
    assert data_of(same, only_set=True) == data_of(scenario, only_set=True)


def test_defaults_are_derived_anew_unless_they_were_written() -> None:
    scenario = scenario_of(MINIMAL + "parallelism: {tensor: 8, pipeline: 4}\n")
    changed = scenario.replace(
        {
            "parallelism.interleave": 3,
            "parallelism.sequence_parallel": True,
            "model.hidden_size": 1024,
        }
    )
    assert changed.schedule == "interleaved"
    assert changed.parallelism.scatter_gather is False
    assert changed.model.ffn_hidden_size == 4096
    written = changed.replace({"schedule": "1f1b", "model.ffn_hidden_size": 2048})
    again = written.replace({"parallelism.interleave": 2, "model.hidden_size": 2048})
    assert (again.schedule, again.model.ffn_hidden_size) == ("1f1b", 2048)


@pytest.mark.parametrize(
    "section", [{"tensor": 2, "pipeline": 4}, Parallelism(tensor=2, pipeline=4)]
)
def test_a_section_replaces_the_whole_section(section: object) -> None:
    scenario = load_scenario(NAME).replace({"parallelism": section, "parallelism.data": 2})
    assert scenario.parallelism == Parallelism(tensor=2, pipeline=4, data=2)
    assert scenario.schedule == "1f1b"


# ---------------------------------------------------------------------------------------- errors


def test_an_error_of_a_replaced_value_is_not_at_its_old_line() -> None:
    scenario = scenario_of(MINIMAL + "parallelism: {tensor: 8}\nrecompute: full\n")
    (problem,) = problems_of(lambda: check_scenario(scenario.replace({"batch.global": 66})))
    assert str(problem).startswith(
        "changed in Python: E306 batch.global is 66, not a multiple of batch.micro"
    )
    changed = scenario.replace({"recompute": "none", "recompute.num_layers": 2})
    (problem,) = problems_of(lambda: check_scenario(changed))
    assert str(problem.location) == "changed in Python"


@pytest.mark.parametrize(
    ("changes", "head", "fix"),
    [
        (
            {"parallelism.tensor": -1},
            "E204 parallelism.tensor is -1, but must be greater than or equal to 1",
            "write a number greater than or equal to 1, such as 8",
        ),
        (
            {"batch.globl": 4},
            'E201 unknown key "globl" in batch',
            "did you mean batch.global? The keys of batch are micro, global",
        ),
        (
            {"paralelism": {"tensor": 4}},
            'E201 unknown key "paralelism" in the scenario',
            "did you mean parallelism? The keys of the scenario are name, description,",
        ),
        ({"batch": {"micro": 1}}, "E202 batch.global is missing", "add global: 64 under batch"),
        (
            {"model.num_layers.x": 1},
            "E112 model.num_layers is the value 48, not a section",
            "set model.num_layers itself",
        ),
        (
            {"parallelism": Batch(micro=1, global_=2)},
            'E201 unknown key "micro" in parallelism',
            "did you mean batch.micro? The keys of parallelism are",
        ),
    ],
)
def test_wrong_changes_are_refused(changes: Mapping[str, Any], head: str, fix: str) -> None:
    problem = problems_of(lambda: scenario_of(MINIMAL).replace(changes))[0]
    assert str(problem).startswith(f"changed in Python: {head}")
    assert problem.fix is not None and problem.fix.startswith(fix)


# ------------------------------------------------------------------------------------- model_copy


@pytest.mark.parametrize("run", [simulate, simulate_fitting, simulate_memory])
def test_values_that_model_copy_did_not_check_are_refused(run: Callable[..., object]) -> None:
    scenario = load_scenario(NAME)
    (problem,) = problems_of(lambda: run(with_split(scenario, tensor=-1)))
    assert str(problem).startswith(
        "changed in Python: E204 parallelism.tensor is -1, but must be greater than"
    )
    for update, says in (
        ({"tensor": 4}, 'E201 unknown key "tensor" in the scenario'),
        ({"recompute": "full"}, "E203 recompute is 'full', not a valid RecomputePolicy"),
        ({"parallelism": {"tensor": 4}}, "E203 parallelism is {'tensor': 4}, not a valid"),
        ({"cluster": {"name": "x"}}, "E203 cluster must be text, not a section"),
    ):
        (problem,) = problems_of(lambda update=update: run(scenario.model_copy(update=update)))
        assert str(problem).startswith(f"changed in Python: {says}")
    (problem,) = problems_of(lambda: run(with_split(scenario, tensr=4)))
    assert problem.message == 'unknown key "tensr" in parallelism'
    alias = scenario.batch.model_copy(update={"global": 32})
    (problem,) = problems_of(lambda: run(scenario.model_copy(update={"batch": alias})))
    assert problem.message.endswith("not a valid Batch")


def test_a_replaced_value_has_no_position_in_the_file() -> None:
    scenario = load_scenario(NAME)
    plain = scenario.model_copy(update={"parallelism": Parallelism()})
    assert str(plain.positions.of_value(("parallelism", "tensor"))) == "changed in Python"
    assert str(plain.positions.of_value(("model", "num_layers"))).endswith(".yaml:4:15")
    one = with_split(scenario, sequence_parallel=1)
    place = one.positions.of_value(("parallelism", "sequence_parallel"))
    assert str(place) == "changed in Python"


def test_only_scenarios_are_simulated() -> None:
    (problem,) = problems_of(lambda: simtrain.run("table5_22b_present"))
    assert str(problem) == (
        'E114 "table5_22b_present" is a name, not a Scenario\n'
        '  fix: load the scenario, as in simulate(load_scenario("table5_22b_present"))'
    )
    (problem,) = problems_of(lambda: search("table5_22b_present", (8,)))
    assert problem.code == "E114"
    (problem,) = problems_of(lambda: Evaluator().evaluate("table5_22b_present"))
    assert problem.code == "E114"
    (problem,) = problems_of(lambda: simulate_memory({"model": {}}))
    assert problem.message == "an object of type dict is not a Scenario"


@pytest.mark.parametrize(
    ("section", "name", "value", "change"),
    [
        (None, "cluster", "h100_sxm", "{\"cluster\": 'h100_sxm'}"),
        ("batch", "global_", 8, '{"SECTION.global": 8}'),
    ],
)
def test_an_assignment_says_how_to_make_a_changed_copy(
    section: str | None, name: str, value: object, change: str
) -> None:
    scenario = load_scenario(NAME)
    target = getattr(scenario, section) if section else scenario
    (problem,) = problems_of(lambda: setattr(target, name, value))
    assert problem.code == "E120"
    assert problem.fix == f"make a changed copy: changed = scenario.replace({change})"
    assert scenario == load_scenario(NAME)


# ----------------------------------------------------------------------------------- constructors


def test_constructors_accept_keywords_and_their_own_repr() -> None:
    assert Batch(micro=1, global_=4) == Batch(**{"micro": 1, "global": 4})
    assert eval(repr(Batch(micro=1, global_=4))) == Batch(micro=1, global_=4)
    scenario = load_scenario(NAME)
    names = {type(section).__name__: type(section) for _, section in scenario}
    written = {name: eval(repr(section), names) for name, section in scenario}
    assert Scenario.model_validate(written) == scenario
    assert simulate(python_built()).iteration_time_s > 0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: Parallelism(tensor=-1),
            "Parallelism(...): E204 tensor is -1, but must be greater than or equal to 1\n"
            "  fix: write a number greater than or equal to 1, such as 8",
        ),
        (
            lambda: Parallelism(tensr=1),
            'Parallelism(...): E201 unknown key "tensr" in Parallelism\n'
            "  fix: did you mean tensor? The keys of Parallelism are tensor, sequence_parallel,",
        ),
        (
            lambda: Batch(micro=1),
            "Batch(...): E202 global_ is missing\n  fix: write Batch(global_=64, ...)",
        ),
        (
            lambda: Batch(micro=1, global_=2, globl=2),
            'Batch(...): E201 unknown key "globl" in Batch\n'
            "  fix: did you mean global_? The keys of Batch are micro, global_",
        ),
        (
            lambda: Scenario(model=python_built().model),
            "Scenario(...): E202 batch is missing\n  fix: write Scenario(batch=..., ...)",
        ),
        (
            lambda: Scenario(model={"num_layers": 0}, batch=Batch(micro=1, global_=4)),
            "Scenario(...): E204 model.num_layers is 0, but must be greater than or equal to 1",
        ),
    ],
)
def test_constructors_refuse_values_that_files_may_not_have(
    build: Callable[[], object], says: str
) -> None:
    assert str(problems_of(build)[0]).startswith(says)


def test_a_changed_copy_derives_facts_again() -> None:
    scenario, stack = load_scenario(NAME), Software(stack="megatron_core")
    before, changed = scenario.facts, scenario.model_copy(update={"software": stack})
    assert changed.facts == scenario.replace({"software": "megatron_core"}).facts != before


def test_a_scenario_is_checked_once_and_its_copies_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(NAME)
    simulate(scenario)
    copies = [copy.copy(scenario), copy.deepcopy(scenario), pickle.loads(pickle.dumps(scenario))]
    rules: list[object] = []
    counting = Rule("E399", "a test", "", rules.append)
    monkeypatch.setattr(check, "RULES", [counting, counting])
    check_scenario(scenario, check.RULES)
    assert not rules
    for copied in copies:
        check_scenario(copied, check.RULES)
        assert rules and all(subject is copied for subject in rules)
        rules.clear()
    monkeypatch.undo()
    split = scenario.parallelism.model_copy(update={"tensor": 3})
    with pytest.raises(InputError, match="E3"):
        simulate(scenario.model_copy(update={"parallelism": split}))
    with pytest.raises(InputError, match="E2"):
        simulate(scenario.model_copy(update={"attention_backend": 3}))
