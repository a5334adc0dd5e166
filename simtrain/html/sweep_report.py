"""Build the report on a sweep: best points, heat map, Pareto front and scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simtrain.figures import style
from simtrain.figures.sweep.draw import compared_column
from simtrain.figures.sweep.heat_map import draw_heat_map, heat_map
from simtrain.figures.sweep.pareto import draw_pareto, pareto
from simtrain.figures.sweep.quantities import label_of, shown, title_of
from simtrain.figures.sweep.results import LARGER_IS_BETTER, Results
from simtrain.figures.sweep.scaling import Scaling, draw_scaling, scaling
from simtrain.html.document import Document, Section
from simtrain.html.elements import Html, element, joined, table
from simtrain.html.figures import Figures
from simtrain.strict_yaml import as_scalar
from simtrain.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 200
"""Largest number of points that the page lists per panel."""
_STATUS = {"ok": "ran", "does_not_fit": "do not fit in memory", "illegal": "are illegal"}
_BYTES, _COUNTS = ("peak_bytes", "capacity_bytes"), ("num_gpus",)


def sweep_document(results: Results) -> Document:
    """Build the report on a sweep."""
    column, header = compared_column(results), results.header
    fronts, curves = pareto(results), scaling(results)
    status = results.table["status"].value_counts().to_pylist()
    data = {
        "sweep": header.name,
        "objective": column,
        "num_points": {one["values"]: one["counts"] for one in status},
        "panels": [
            {"name": as_scalar(panel), "points": _best_points(results, panel, column)}
            for panel in results.panels
        ],
        "fronts": fronts.to_json() if fronts else {},
        "scaling": curves.to_json() if curves else {},
        "made_with": {"simtrain": header.version, "profiles": dict(header.profiles)},
    }
    figures = Figures(data)
    origin = style.footer(f"sweep {header.name}", header.profiles, header.version)

    def picture(name: str, draw: Callable[[], Figure]) -> Html:
        svg = Html(style.svg_text(draw, origin, name))
        return element("figure", svg, class_="picture", tabindex="0", role="img", aria_label=name)

    sections = [_winners(figures, results, column)]
    if heat := heat_map(results, column, None, None):
        body = picture("heat-map", lambda: draw_heat_map(heat))
        sections.append(_section("heat-map", f"Heat map of {title_of(column)}", body))
    if fronts:
        body = joined(
            (
                picture("pareto", lambda: draw_pareto(fronts)),
                *(_front(one, results, fronts.unit) for one in _named(figures.at("fronts"))),
            )
        )
        sections.append(_section("pareto-front", "Pareto front of time and memory", body))
    if curves:
        body = joined(
            (picture("scaling", lambda: draw_scaling(curves)), _scaling_table(figures, curves))
        )
        sections.append(_section("scaling-curves", "Scaling", body))
    sections.append(_points(figures, results))
    return Document(f"Sweep {header.name}", _lead(figures), sections, data, _foot(figures))


def _section(anchor: str, title: str, body: Html) -> Section:
    return Section(anchor, title, body, styles=("sweep.css",))


def _best_points(results: Results, panel: Any, column: str) -> list[dict[str, Any]]:
    """Return the best points of a panel that ran, the best first; ties in the grid's order."""
    order = "descending" if column in LARGER_IS_BETTER else "ascending"
    rows = results.of_panel(panel, results.ran)
    rows = rows.sort_by([(column, order), ("index", "ascending")]).slice(0, MOST_POINTS)
    rows = rows.drop_columns(["status", "rule"])
    return list(rows.to_pylist())


def _named(part: Figures) -> list[Figures]:
    return [part.at(name) for name in part.value]


def _lead(figures: Figures) -> Html:
    counts = figures.at("num_points")
    words: list[str] = []
    for name in counts.value:
        words += [counts.at(name).count, f" {_STATUS.get(name, name)}, "]
    words[-1] = words[-1].removesuffix(", ")
    return element("p", "Points of the sweep: ", *words, ".")


def _foot(figures: Figures) -> Html:
    made = figures.at("made_with").value
    profiles = joined(
        element("p", f"hardware profile {name} · SHA-256 ", element("code", digest))
        for name, digest in made["profiles"].items()
    )
    return joined((element("p", f"simtrain {made['simtrain']}"), profiles))


def _winners(figures: Figures, results: Results, column: str) -> Section:
    """Build the section with the best point of each panel."""
    cards = []
    for panel in figures.at("panels").each():
        if not panel.value["points"]:
            continue
        best = panel.at("points", 0)
        where = ", ".join(
            f"{label_of(name)} {as_scalar(best.value[name])}" for name in results.varying()
        )
        label = " ".join(word for word in (panel.value["name"], title_of(column)) if word)
        cards.append(
            element(
                "div",
                element("div", label, class_="label"),
                element("div", _number(best.at(column), column), class_="value"),
                element("div", where, class_="remark"),
                class_="card",
            )
        )
    body = element("div", *cards, class_="cards")
    return Section("winners", "Best point", body, styles=("answer.css", "sweep.css"))


def _points(figures: Figures, results: Results) -> Section:
    names = results.table.column_names
    reported = names[names.index("rule") + 1 :]
    blocks: list[Html] = []
    for panel in figures.at("panels").each():
        name = panel.value["name"]
        blocks += [element("h3", name)] if name else []
        headings = [*results.varying(), *(f">{name}" for name in reported)]
        rows = [_point(point, results, headings) for point in panel.at("points").each()]
        caption = f"Best points that ran, at most {MOST_POINTS}. Select a heading to sort."
        blocks.append(table(caption, headings or ["point"], rows, class_="sortable points"))
    styles, scripts = ("operators.css", "sweep.css"), ("sort.js",)
    return Section("points", "Best points", joined(blocks), styles, scripts)


def _point(point: Figures, results: Results, headings: list[str]) -> tuple[str, ...]:
    names = [heading.removeprefix(">") for heading in headings]
    return tuple(
        as_scalar(point.value[name])
        if name in results.axes or not isinstance(point.value[name], int | float)
        else _number(point.at(name), name)
        for name in names
    )


def _number(figure: Figures, column: str) -> Html:
    if column in _BYTES:
        return figure.number(format_bytes)
    if column in _COUNTS:
        return figure.count
    if column.endswith("_s") and column != "tokens_per_s":
        return figure.seconds
    return figure.number(lambda value: shown(column, value))


def _front(front: Figures, results: Results, unit: str) -> Html:
    headings = (">number", ">peak memory", f">{unit}", *results.varying())
    rows = [
        (
            str(number),
            point.at("peak_bytes").bytes,
            point.at("time").number(lambda value: f"{value:.4g}"),
            *(as_scalar(point.value[name]) for name in results.varying()),
        )
        for number, point in enumerate(front.each(), start=1)
    ]
    name = front.path[-1]
    caption = f"Points on the front{f' of {name}' if name else ''}, numbered as in the picture"
    return table(caption, headings, rows)


def _scaling_table(figures: Figures, curves: Scaling) -> Html:
    blocks = []
    for curve, efficiency in zip(
        _named(figures.at("scaling")), map(Scaling.efficiency, curves.curves.values()), strict=True
    ):
        rows = [
            (count, curve.at(count).count, f"{share:.1%}")
            for count, share in zip(curve.value, efficiency.values(), strict=True)
        ]
        name = curve.path[-1]
        caption = f"Best tokens per second{f' of {name}' if name else ''}"
        headings = (">GPUs", ">tokens per second", ">of linear scaling")
        blocks.append(table(caption, headings, rows))
    return joined(blocks)
