"""Tables and figures of docs/what_ifs.md, such as the table `fp8` and its figure `fp8 faster`."""

import dataclasses
import functools
import io

import pyarrow.parquet

from docs.update.request import Generator, Request, table
from docs.update.what_if_figures import FIGURES
from docs.update.what_if_tables import TABLES, Row
from simtrain.studies.sweep.load import load_plan
from simtrain.studies.sweep.part import run_part


@functools.cache
def rows_of(name: str, overrides: tuple[str, ...] = (), only: str | None = None) -> list[Row]:
    """Return the results of a sweep, or of its points that satisfy the constraint `only`."""
    plan = load_plan(name, overrides)
    more = (only,) if only else ()
    plan = dataclasses.replace(plan, constraints=(*plan.constraints, *more))
    parts = (run_part(plan, number).content for number in range(plan.num_parts))
    return [row for one in parts for row in pyarrow.parquet.read_table(io.BytesIO(one)).to_pylist()]


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
