"""The summary of a sweep, and answers to queries: `simtrain sweep`, `simtrain sweep --query`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.values import dataclass
from simtrain.hardware.interval import Interval
from simtrain.iteration.memory.report import FitVerdict
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.headline import iteration_line
from simtrain.iteration.report.operators import Records
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.iteration.report.result import Result
from simtrain.scenario import REASONS
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.sweep.grid import MORE_IS_BETTER
from simtrain.studies.sweep.run import SweepRows, SweepRun, query
from simtrain.units import counted
from simtrain.views.answer import kind_of
from simtrain.views.kinds import COUNT, TEXT, Kind
from simtrain.views.view import Cell, Column, Headline, Paragraphs, Row, Table, View

_MAX_ROWS = 40
_MOST_NEXT, _MOST_NAMED = 10, 3
"""The points next to the best one that are held against it, and those of them that are named."""
_OF_TIME = frozenset({"iteration_time_s", "tokens_per_s", "mfu", "hfu"})
"""Objectives in proportion to time, or to its inverse."""


@dataclass(frozen=True)
class Summary(PlainData):
    """What a sweep's folder has when a run ends, `num_parts_found` of it from a run before."""

    json_fields: ClassVar = keys(
        """name=run.sweep.name out num_parts=run.sweep.num_parts num_parts_found
        num_points=run.sweep.num_points num_rows ok does_not_fit illegal excluded best
        interval_s=interval cannot_be_told_from_best=alike"""
    )

    run: SweepRun
    num_parts_found: int

    @property
    def out(self) -> str:
        return str(self.run.folder.path)

    @cached_property
    def _counts(self) -> dict[tuple[str, str | None], int]:
        sql = "select status, rule, count(*) from results group by all order by status, rule"
        return {(status, rule): n for status, rule, n in query(self.run.folder.path, sql).rows}

    @property
    def num_rows(self) -> int:
        """Points with a row in the results: all but the excluded ones."""
        return sum(self._counts.values())

    @property
    def ok(self) -> int:
        return self._counts.get(("ok", None), 0)

    @property
    def does_not_fit(self) -> int:
        return self._counts.get(("does_not_fit", None), 0)

    @property
    def illegal(self) -> dict[str, int]:
        return {rule: number for (_, rule), number in self._counts.items() if rule}

    @cached_property
    def excluded(self) -> int:
        missing = query(self.run.folder.path, "select 1 limit 0").num_missing
        return self.run.sweep.num_points - missing - self.num_rows

    @cached_property
    def _ranked(self) -> Records:
        """The best point and those next to it; of equal ones, the first."""
        objective = self.run.sweep.objective
        order = "desc" if objective in MORE_IS_BETTER else "asc"
        sql = f"""select "index", {objective} as "value", tokens_per_s, iteration_time_s, mfu
            from results where status = 'ok' and {objective} is not null
            order by {objective} {order}, "index" limit {1 + _MOST_NEXT}"""
        return query(self.run.folder.path, sql).records()

    @property
    def best(self) -> dict[str, Any] | None:
        """The index, the axes and the results of the best point."""
        if not self._ranked:
            return None
        best, sweep = self._ranked[0], self.run.sweep
        point = {"point": sweep.cells(best["index"]), "objective": sweep.objective}
        return {"index": best["index"]} | point | best

    @cached_property
    def alike(self) -> list[int] | None:
        """Indices of points next to the best one that cannot be told apart from it."""
        if self.run.sweep.objective not in _OF_TIME or not self._ranked:
            return None
        return [each["index"] for each in self._ranked[1:] if not self._can_be_told(each)]

    def _can_be_told(self, point: dict[str, Any]) -> bool:
        """Whether a point is worse than the best one in nine of ten pairs of runs."""
        best = self._ranked[0]
        first, other = (self._result(each["index"]) for each in (best, point))
        values = sorted((best["value"], point["value"]))
        # How far off the simulated ratio of times may be is how far off that of objectives may be.
        simulated = best["tokens_per_s"] / point["tokens_per_s"]
        return bool(values[1] / values[0] * Difference(first, other).ratio.p5 > simulated)

    @property
    def headline(self) -> str:
        """The answer in one line: the best point, and the number of points."""
        of = f"of {counted(self.num_rows, 'point')}"
        if (best := self.best) is None or self.interval is None:
            return f"none {of} ran and fits"
        sql = f'select peak_bytes, capacity_bytes from results where "index" = {best["index"]}'
        fit = FitVerdict(*query(self.run.folder.path, sql).rows[0])
        scenario = self.run.sweep.scenario(best["index"])
        line = iteration_line(scenario, SimpleNamespace(**best), self.interval, fit)
        point, objective = self.words(best["index"]), self.run.sweep.objective
        named = "" if objective in best else f" {kind_of(objective, 0.0).text(best['value'])}"
        return f"{line}; best {objective}{named} {of} ({point})"

    def words(self, index: int) -> str:
        """Return the axes of a point with their values; of another than the best, what differs."""
        cells, best = (self.run.sweep.cells(each) for each in (index, self._ranked[0]["index"]))
        differ = {name: value for name, value in cells.items() if value != best[name]} or cells
        return ", ".join(f"{name}: {as_scalar(value)}" for name, value in differ.items())

    @cached_property
    def interval(self) -> Interval | None:
        return self._result(self._ranked[0]["index"]).interval if self._ranked else None

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator()

    def _result(self, index: int) -> Result:
        result = self._evaluator.evaluate(self.run.sweep.scenario(index)).run
        assert result is not None, "a point with an objective fits"
        return result


def summary_view(summary: Summary) -> View:
    """The summary: how many points there are of each kind, the best, and where results are."""
    sweep = summary.run.sweep
    points, parts = counted(sweep.num_points, "point"), counted(sweep.num_parts, "part")
    head = Paragraphs([f"{sweep.name}: {points} in {parts}"], style=None)
    columns = Column("num_points", "", COUNT), Column("kind", "", TEXT)
    lines = [(summary.ok, "ok"), (summary.does_not_fit, "do not fit in memory")]
    for code, number in summary.illegal.items():
        lines.append((number, f"illegal, {code}: {REASONS.get(code, 'see simtrain show errors')}"))
    lines += [(summary.excluded, "excluded by constraints")] if summary.excluded else []
    counts = Table("counts", "", columns, [Row(line) for line in lines], layout="list")
    notes = Paragraphs([*_remarks(summary)], style=None)
    return View([head, counts, notes, Headline(summary.headline)])


def _remarks(summary: Summary) -> Iterator[str]:
    sweep, folder = summary.run.sweep, summary.run.folder.path
    if best := summary.best:
        yield from mfu_remarks([sweep.scenario(best["index"])])
    if summary.interval:
        yield summary.interval.sentence
    if alike := summary.alike:
        points = "; ".join(summary.words(index) for index in alike[:_MOST_NAMED])
        others = f"; and {len(alike) - _MOST_NAMED} more" if alike[_MOST_NAMED:] else ""
        yield f"The best point cannot be told apart from the points with {points}{others}."
    if summary.num_parts_found:
        yield f"{counted(summary.num_parts_found, 'part')} found on disk"
    yield f"Results are in {folder}. Query them with:"
    yield f'  simtrain sweep {folder} --query "select * from results limit 5"'


def rows_view(answer: SweepRows) -> View:
    """The first rows of an answer; CSV and JSON have them all."""
    columns = []
    for place, name in enumerate(answer.columns):
        is_number = any(isinstance(row[place], int | float) for row in answer.rows)
        columns.append(Column(name, name, Kind(_shown, is_number=is_number)))
    rows = [
        Row([Cell(None, "-") if value is None else value for value in row])
        for row in answer.rows[:_MAX_ROWS]
    ]
    table = Table("answer", "", columns, rows, layout="dense", data=answer.records())
    hidden = len(answer.rows) - _MAX_ROWS
    more = f"and {hidden:,} more rows: --format csv or json prints them all"
    return View([table, Paragraphs([more] * (hidden > 0), style=None)])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else as_scalar(value)
