"""Run random programs with SimPy, compiled loops and plain loops, which must agree.

`python -m benchmarks.random_programs 10000` draws that many programs with links and shared
bandwidth, and compares all starts and ends to the last bit.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simtrain.engine import LinkLoads, Program, Task, simulate
from simtrain.engine.compiled import Floats
from simtrain.engine.program import starts_of
from simtrain.engine.run import run_loops

SEED = 20_261_121


@dataclass(frozen=True)
class Link:
    """A resource that concurrent tasks share, and its capacity."""

    name: str
    capacity: float


@dataclass(frozen=True)
class LinkedTask:
    """A task, with its load of each link at full speed and its claim to links that are full."""

    name: str
    stream: str
    duration_s: float
    after: tuple[int, ...] = ()
    loads: tuple[tuple[Link, float], ...] = ()
    weight: float = 1.0


def linked_program(tasks: Sequence[LinkedTask]) -> Program:
    """Build a program whose tasks share links."""
    plain = (Task(task.name, task.stream, task.duration_s, task.after) for task in tasks)
    program, pairs = Program.of(plain), [pair for task in tasks for pair in task.loads]
    links = [*dict.fromkeys(link for link, _ in pairs)]
    link_loads = LinkLoads(
        np.array([link.capacity for link in links]),
        starts_of([len(task.loads) for task in tasks]),
        np.array([links.index(link) for link, _ in pairs], np.int32),
        np.array([load for _, load in pairs]),
        np.array([task.weight for task in tasks]),
    )
    return replace(program, link_loads=link_loads) if pairs else program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("programs", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    number, totals, started_s = random.Random(arguments.seed), Counter[str](), time.perf_counter()
    for index in range(arguments.programs):
        program = random_program(number)
        times = times_by_engine(program)
        totals["programs"] += 1
        totals["tasks"] += program.num_tasks
        for engine, found in times.items():
            if not all(map(np.array_equal, times["simpy"], found)):
                raise SystemExit(f"program {index} of seed {arguments.seed}: {engine} differs")
    counts = ", ".join(f"{name} {count:,}" for name, count in totals.items())
    print(f"{counts}: all equal to the last bit in {time.perf_counter() - started_s:.0f} s")


def times_by_engine(program: Program) -> dict[str, tuple[Floats, Floats]]:
    """Return starts and ends of tasks by engine."""
    timeline = simulate(program, "simpy")
    times = {"simpy": (timeline.start_s, timeline.end_s)}
    for name, is_compiled in (("compiled loops", True), ("plain loops", False)):
        timeline = run_loops(program, is_compiled=is_compiled)
        times[name] = timeline.start_s, timeline.end_s
    return times


def random_program(number: random.Random) -> Program:
    """Draw a program: up to 200 tasks, six streams and four links."""
    streams = "abcdef"[: number.randint(1, 6)]
    num_links = number.choice([0, 1, 1, 2, 3, 4])
    links = [
        Link(f"link {i}", number.choice([1.0, number.uniform(0.1, 3)])) for i in range(num_links)
    ]
    tasks = []
    for index in range(number.randint(0, number.choice([10, 40, 40, 200]))):
        after = {number.randrange(index) for _ in range(number.randint(0, 2)) if index}
        loads = number.sample(links, min(num_links, number.choice([0, 1, 1, 2, 3])))
        load = number.choice([0.25, 1.0, number.uniform(0.01, 3.0)])
        tasks.append(
            LinkedTask(
                f"t{index}",
                number.choice(streams),
                _duration_s(number),
                tuple(after),
                loads=tuple((link, number.choice([load, 0.5])) for link in loads),
                weight=number.choice([1.0, 1 / load, number.uniform(0.1, 10)]),
            )
        )
    if number.random() < 0.5:
        tasks = _by_stream(tasks)
    return linked_program(tasks)


def _duration_s(number: random.Random) -> float:
    """Draw a duration, often zero or a whole number, to let many tasks end at the same time."""
    return number.choice([0.0, 1.0, float(number.randint(0, 3)), 3 * number.random() ** 4])


def _by_stream(tasks: list[LinkedTask]) -> list[LinkedTask]:
    """Sort tasks by stream. Some then wait for tasks that are later in the list."""
    order = sorted(range(len(tasks)), key=lambda index: tasks[index].stream)
    places = {index: place for place, index in enumerate(order)}
    return [
        replace(tasks[index], after=tuple(places[other] for other in tasks[index].after))
        for index in order
    ]


if __name__ == "__main__":
    main()
