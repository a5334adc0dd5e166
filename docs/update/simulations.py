"""Figures of one simulated iteration, or of two iterations in comparison.

Arguments are a scenario and assignments, as after `simtrain run`:
`time table5_175b_present schedule=1f1b parallelism.interleave=1`. To compare two scenarios, write
`against` between them. If the second has assignments only, they apply to the first scenario.
"""

import functools
import pathlib
import tempfile

from docs.update.documents import write_files
from docs.update.request import Request, percent, seconds
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.evaluation import Evaluation, Evaluator, Run

_EVALUATOR = Evaluator(allow_oom=True)


@functools.cache
def written_files() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with the files that documents tell readers to write."""
    folder = tempfile.TemporaryDirectory()
    write_files(pathlib.Path(folder.name))
    return folder


@functools.cache
def scenario_of(words: tuple[str, ...]) -> Scenario:
    """Load a scenario by name, or from a file that a document shows, with assignments."""
    name, *assignments = words
    path = pathlib.Path(written_files().name) / name if name.endswith(".yaml") else name
    return load_scenario(path, assignments)


@functools.cache
def evaluation(words: tuple[str, ...]) -> Evaluation:
    """Simulate an iteration of a scenario, even if it does not fit in memory."""
    return evaluation_of(scenario_of(words))


def evaluation_of(scenario: Scenario) -> Evaluation:
    """Simulate an iteration of a scenario, even if it does not fit in memory."""
    return _EVALUATOR.evaluate(scenario)


def run_of(words: tuple[str, ...]) -> Run:
    """Return the times of the simulated iteration."""
    run = evaluation(words).run
    assert run is not None
    return run


def _scenarios(request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    words = request.words
    place = words.index("against")
    first, second = words[:place], words[place + 1 :]
    if not second or "=" in second[0]:
        second = [first[0], *second]
    return tuple(first), tuple(second)


def time(request: Request) -> str:
    """Return the iteration time: `time SCENARIO ...`."""
    return seconds(run_of(tuple(request.words)).iteration_time_s)


def part_time(request: Request) -> str:
    """Return the time of a part of the breakdown: `part_time bubble SCENARIO ...`."""
    name, *words = request.words
    return seconds(getattr(run_of(tuple(words)).breakdown, f"{name}_s"))


def mfu(request: Request) -> str:
    """Return the model FLOPs utilization."""
    return percent(run_of(tuple(request.words)).mfu)


def less_time(request: Request) -> str:
    """Return the reduction in time: `less_time SCENARIO ... against SCENARIO ...`."""
    first, second = (run_of(words).iteration_time_s for words in _scenarios(request))
    return percent(1 - first / second)
