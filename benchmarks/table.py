"""Print how fast simtrain is, in units that a busy machine hardly changes.

An addition is one round of `for i in range(n): total += i`, timed just before each measured call.
`python -m benchmarks.table WORDS` prints the rows whose names contain one of the words. A speed
that users feel is a row of `ROWS`; to add one, write how it is measured.
"""

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import simtrain
from simtrain.engine import Engine, simulate
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate as run

Calls = Iterable[Callable[[], object]]
_UNIT = 100_000
"""Additions that are timed before a call."""
_NOT_COUNTED = 3
"""Calls that come first: they fill caches and load numba's machine code."""


class Row(NamedTuple):
    """A speed: its name, a function that measures it, and the unit."""

    name: str
    measure: Callable[[], float]
    unit: str = "additions"


def additions(
    calls: Calls, times: int = 1, clock: Callable[[], float] = time.process_time
) -> float:
    """Return the median time of calls in additions; each is timed `times` times in a row."""
    ratios = []

    for call in calls:
        start_s = clock()
        _add()
        middle_s = clock()

        for _ in range(times):
            call()

        ratios.append(_UNIT / times * (clock() - middle_s) / (middle_s - start_s))

    return statistics.median(ratios[_NOT_COUNTED:])


def _add() -> int:
    total = 0

    for number in range(_UNIT):
        total += number

    return total


# A command in a process of its own, in bare imports: `import numpy, pydantic, typer, rich`.

BARE = ("-c", "import numpy, pydantic, typer, rich")
STARTS = ("--version", "--help", "show E310", "show scenarios", "run llama3_70b")
COMPLETION = {"_SIMTRAIN_COMPLETE": "bash"}
_NUM_STARTS = 15


def start(arguments: Iterable[str], changes: Mapping[str, str] = {}) -> float:
    """Return the median processor time of `simtrain ARGUMENTS`, in bare imports beside it."""
    line = ("-m", "simtrain", *arguments)
    ratios = [_processor_s(line, changes) / _processor_s(BARE) for _ in range(_NUM_STARTS + 1)]
    return statistics.median(ratios[1:])  # the first writes bytecode


def _processor_s(line: Sequence[str], changes: Mapping[str, str] = {}) -> float:
    environment = {**os.environ, **changes}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *line], env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# A scenario in a warm process: one that was simulated before, and one that differs in numbers.


def _run(scenario: simtrain.Scenario) -> object:
    result = run(scenario)
    return result.iteration_time_s, result.memory.fit, result.mfu


def _evaluate(evaluator: Evaluator, scenario: simtrain.Scenario) -> object:
    run = evaluator.evaluate(scenario).run
    return run and run.breakdown


Ask = Callable[[simtrain.Scenario], object]
ANSWERS: dict[str, Callable[[], Ask]] = {
    "run": lambda: _run,
    "evaluate": lambda: Evaluator().evaluate,
    "evaluate with breakdown": lambda: partial(_evaluate, Evaluator()),
}
MODELS = {"175B": "table5_175b_present", "1T": "table5_1t_present"}
_NUM_CHANGED, _LONGEST = 12, 2048
_numbers = itertools.count(1)


def seen(model: str, answer: str) -> float:
    """Measure the same scenario again."""
    scenario = simtrain.load_scenario(MODELS[model])
    ask = ANSWERS[answer]()
    return additions([lambda: ask(scenario)] * 25, times=10)


def changed(model: str, answer: str, field: str) -> float:
    """Measure scenarios with other names, or with sequences of lengths that no row has had."""
    scenario, ask = simtrain.load_scenario(MODELS[model]), ANSWERS[answer]()
    ask(scenario)

    def calls() -> Iterator[Callable[[], object]]:
        for number in itertools.islice(_numbers, _NUM_CHANGED):
            value = f"number {number}" if field == "name" else _LONGEST - 8 * number
            yield partial(ask, scenario.replace({field: value}))

    return additions(calls())


def _engine(engine: Engine) -> float:
    """Measure an engine on the tasks of the largest model, without building them."""
    program = run(simtrain.load_scenario(MODELS["1T"])).timeline.program
    return additions([lambda: simulate(program, engine)] * 8)


def _rows() -> Iterator[Row]:
    for model, answer in itertools.product(MODELS, ANSWERS):
        yield Row(f"{model} again, {answer}", partial(seen, model, answer))
        yield Row(f"{model} renamed, {answer}", partial(changed, model, answer, "name"))
        yield Row(f"{model} unseen, {answer}", partial(changed, model, answer, "model.seq_length"))

    for engine in ("simpy", "compiled"):
        yield Row(f"1T, 198,850 tasks, {engine}", partial(_engine, engine))

    for words in STARTS:
        yield Row(f"simtrain {words}", partial(start, words.split()), "bare imports")

    yield Row(
        "completion of simtrain run", partial(start, ("run", "llama"), COMPLETION), "bare imports"
    )


ROWS = [*_rows()]


def main() -> None:
    """Print the table, or JSON of the rows after the path of simtrain."""
    words = [word for word in sys.argv[1:] if word != "--json"]
    chosen = [row for row in ROWS if not words or any(word in row.name for word in words)]
    with suppress(ImportError):
        import numba  # noqa: F401 (loops run compiled from the first row on)

    if "--json" in sys.argv:
        print(simtrain.__file__)
        print(json.dumps({row.name: row.measure() for row in chosen}))
        return

    print("| row | unit | today |\n|---|---|---|")

    for row in chosen:
        value = row.measure()
        text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        print(f"| {row.name} | {row.unit} | {text} |", flush=True)


if __name__ == "__main__":
    main()
