"""Scenarios that once ended in a traceback, a deadlock or a wrong time: files of `corpus/`.

The first line of a file says what is expected: `evaluated`, or the code of an error. Whoever mends
a fault that a scenario shows adds the scenario here.
"""

import re
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.scenario.check import load_scenario
from simtrain.studies.evaluation import Evaluator

FILES = sorted((Path(__file__).parent / "corpus").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_that_once_failed(file: Path) -> None:
    match = re.match(r"# expected: (evaluated|E\d{3})\n", file.read_text())
    assert match, "the first line says what is expected"
    if match[1] != "evaluated":
        with pytest.raises(InputError) as error:
            load_scenario(file)
        assert match[1] in {problem.code for problem in error.value.problems}
        assert all(problem.fix for problem in error.value.problems)
        return
    scenario = load_scenario(file)
    one, other = (
        Evaluator(allow_oom=True, engine=engine).evaluate(scenario) for engine in ("auto", "simpy")
    )
    assert one.run and other.run and one.iteration_time_s == other.iteration_time_s
