"""The report on a sweep: best points, heat map, Pareto front and scaling."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from simtrain.base.resources import profile_sha256
from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError
from simtrain.render.figures.sweep.draw import compared_column
from simtrain.render.figures.sweep.heat_map import draw_heat_map, heat_map
from simtrain.render.figures.sweep.listing import (
    MOST_POINTS,
    front_table,
    is_seconds,
    points_table,
    scaling_table,
)
from simtrain.render.figures.sweep.pareto import Pareto, draw_pareto, pareto
from simtrain.render.figures.sweep.quantities import shown, title_of
from simtrain.render.figures.sweep.results import LARGER_IS_BETTER, Cell, Results
from simtrain.render.figures.sweep.scaling import draw_scaling, scaling
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.drawing import drawing
from simtrain.render.html.elements import Html, card, element, joined, number
from simtrain.render.html.view import printed_by, view_html
from simtrain.units import format_seconds
from simtrain.views.profile import load_page, profile_view
from simtrain.views.view import Table, View

_STATUS = {"ok": "ran", "does_not_fit": "do not fit in memory", "illegal": "are illegal"}
_STYLES = ("sweep.css",)


def sweep_document(
    results: Results, extrapolated: Callable[[int], float | None] = lambda index: None
) -> HtmlDocument:
    """Build the report on a sweep.

    Args:
        results: the results.
        extrapolated: returns the extrapolated share of the kernel time of the point of an index
            (`RecordedSweep.extrapolated_compute`); None if it is unknown.
    """
    counts = results.counts_by_status().items()
    points = ", ".join(f"{count:,} {_STATUS.get(status, status)}" for status, count in counts)
    lead = f"Points of the sweep: {points}. Select a number to see its exact value and its source."
    sections = [*_sections(results, extrapolated)]
    return HtmlDocument(f"Sweep {results.name}", element("p", lead), sections, foot=_foot(results))


def _foot(results: Results) -> Html:
    profiles = (
        element("p", f"hardware profile {name} · SHA-256 ", element("code", digest))
        for name, digest in results.header.profiles.items()
    )
    return joined(element("p", f"simtrain {results.header.version}"), *profiles)


def _sections(
    results: Results, extrapolated: Callable[[int], float | None]
) -> Iterator[HtmlSection]:
    column, plot = compared_column(results), f"simtrain plot {shlex.quote(str(results.folder))}"
    yield HtmlSection("winners", "Best point", _winners(results, column), ("answer.css", *_STYLES))
    if heat := heat_map(results, column, None, None):
        title = f"Heat map of {title_of(column)}"
        picture = drawing(draw_heat_map(heat), "heat", f"{title}; the table of points lists them.")
        better = "Higher" if column in LARGER_IS_BETTER else "Lower"
        note = element("p", f"{better} is better. The best cell is bold.", class_="soft")
        yield HtmlSection("heat-map", title, joined(note, picture), _STYLES)
    if fronts := pareto(results):
        title = "Pareto front of time and memory"
        picture = drawing(draw_pareto(fronts), "pareto", f"{title}; the table lists it.")
        tables = view_html(View(_fronts(fronts)), plot)
        yield HtmlSection("pareto-front", title, joined(picture, tables), _STYLES)
    if curves := scaling(results):
        label = "Best tokens per second by number of GPUs; the table lists them."
        picture = drawing(draw_scaling(curves), "scaling", label)
        table = view_html(View([scaling_table(curves)]), plot)
        yield HtmlSection("scaling-curves", "Scaling", joined(picture, table), _STYLES)
    points = joined(*_points(results, column, extrapolated))
    yield HtmlSection("points", "Best points", points, scripts=("sort.js",))
    sources = joined(*_sources(results))
    yield HtmlSection("sources", "Sources", sources, ("sources.css",), ("sources.js",))


def _fronts(fronts: Pareto) -> list[Table]:
    panels = enumerate(fronts.results.panels)
    return [front_table(fronts, panel, number) for number, panel in panels if fronts.front(panel)]


def _heading(panel: Cell) -> Html:
    """Return the heading of a panel, if it has a name."""
    return element("h3", as_scalar(panel)) if panel != "" else Html()


def _winners(results: Results, column: str) -> Html:
    """Build a card with the best point of each panel."""
    cards = []
    for panel in results.panels:
        for best in results.ranked(panel, column).slice(0, 1).to_pylist():
            place = ", ".join(f"{name} {as_scalar(best[name])}" for name in results.varying())
            label = " ".join(filter(None, (as_scalar(panel), title_of(column))))
            text = (format_seconds if is_seconds(column) else _shown(column))(best[column])
            command = printed_by(_query(results, panel, column, 1), number(best[column], text))
            cards.append(card(label, command, place))
    return element("div", *cards, class_="cards")


def _shown(column: str) -> Callable[[float], str]:
    return lambda value: shown(column, value)


def _query(results: Results, panel: Cell, column: str, limit: int) -> str:
    """Return the command that prints the best points of a panel."""
    order = "desc" if column in LARGER_IS_BETTER else "asc"
    where = "status = 'ok'"
    if axis := results.panel_axis:
        name = axis if axis.isidentifier() else f'"{axis}"'
        text = str(panel).replace("'", "''")
        where += f" and {name} is null" if panel is None else f" and {name} = '{text}'"
    sql = f"select * from results where {where} order by {column} {order}, index limit {limit}"
    # A shell reads $ and ` inside double quotes.
    quoted = shlex.quote(sql) if set(sql) & set('"$`\\') else f'"{sql}"'
    return f"simtrain query {shlex.quote(str(results.folder))} {quoted}"


def _points(
    results: Results, column: str, extrapolated: Callable[[int], float | None]
) -> Iterator[Html]:
    for panel in results.panels:
        table = points_table(results, panel, column, extrapolated)
        if table.rows:
            yield _heading(panel)
            yield view_html(View([table]), _query(results, panel, column, MOST_POINTS))


def _sources(results: Results) -> Iterator[Html]:
    """Show each hardware profile of the sweep whose file is unchanged, with its sources."""
    yield element("p", "Times depend on the entries of hardware profiles, and these on sources.")
    for place, (name, digest) in enumerate(results.header.profiles.items()):
        try:
            is_unchanged = profile_sha256(name) == digest
        except (InputError, OSError):
            is_unchanged = False
        if is_unchanged:
            shown_profile = view_html(
                profile_view(load_page(name)), f"simtrain profile show {name}", f"{place}-"
            )
            yield element("details", element("summary", name), shown_profile)
        else:
            yield element("p", f"{name} is not here, or has changed since the sweep ran.")
