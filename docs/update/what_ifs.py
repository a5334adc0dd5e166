"""Tables and figures of docs/what_ifs.md, such as the table `fp8` and its figure `fp8 faster`."""

import dataclasses
import functools

from docs.update.request import Generator, Request, table
from docs.update.what_if_figures import FIGURES
from docs.update.what_if_tables import TABLES, Row
from simtrain.studies.sweep.fields import Condition
from simtrain.studies.sweep.grid import load_sweep
from simtrain.studies.sweep.run import run_part


@functools.cache
def rows_of(name: str, overrides: tuple[str, ...] = (), only: str | None = None) -> list[Row]:
    """Return the results of a sweep, or of its points that satisfy the constraint `only`."""
    sweep = load_sweep(name, overrides)
    more = (Condition(only),) if only else ()
    sweep = dataclasses.replace(sweep, conditions=(*sweep.conditions, *more))
    return [row for number in range(sweep.num_parts) for row in run_part(sweep, number).to_pylist()]


@functools.cache
def _figures(sweep: str) -> dict[str, str]:
    return dict(FIGURES[sweep](functools.partial(rows_of, sweep)))


def what_if(request: Request) -> str:
    """Return the table of a sweep, or one of its figures by name."""
    if request.text:
        return _figures(request.name)[request.text]
    head, *lines = TABLES[request.name](rows_of(request.name))
    return table(head, lines)


GENERATORS: dict[str, Generator] = dict.fromkeys(TABLES, what_if)
