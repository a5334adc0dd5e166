"""Build the report on a sweep: best points, heat map, Pareto front and scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from simtrain.base.provenance import profile_sha256
from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError
from simtrain.render.figures.sweep.draw import compared_column
from simtrain.render.figures.sweep.heat_map import heat_map
from simtrain.render.figures.sweep.pareto import Pareto, pareto
from simtrain.render.figures.sweep.quantities import shown, title_of
from simtrain.render.figures.sweep.results import LARGER_IS_BETTER, Results
from simtrain.render.figures.sweep.scaling import scaling
from simtrain.render.html.document import Document, Section
from simtrain.render.html.elements import Html, card, element, joined, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.number_sources import SWEEP_SOURCES
from simtrain.render.html.sections.sources import entries_table
from simtrain.render.html.sweep_pictures import heat_map_panel, pareto_panel, scaling_picture
from simtrain.units import four_digits
from simtrain.views.profile import load_page

MOST_POINTS = 200
"""Largest number of points that the page lists per panel."""
_STATUS = {"ok": "ran", "does_not_fit": "do not fit in memory", "illegal": "are illegal"}
_BYTES, _COUNTS = ("peak_bytes", "capacity_bytes"), ("num_gpus",)


def sweep_document(
    results: Results, point_of: Callable[[int], dict[str, Any]] | None = None
) -> Document:
    """Build the report on a sweep.

    Args:
        results: the results.
        point_of: returns the base, settings, profile and extrapolated share of the point of an
            index (`RecordedSweep.point`); None if the folder does not have them.
    """
    column = compared_column(results)
    data = _data(results, column)
    if point_of:
        parts = [data[name] for name in ("panels", "fronts", "heat_map", "scaling_points")]
        data["points"] = {str(index): point_of(index) for index in sorted({*_indices(parts)})}
    figures = Figures(data)
    sections = [_winners(figures, results, column)]
    if data["heat_map"]:
        sections.append(_heat_map(figures, column))
    if fronts := pareto(results):
        sections.append(_fronts(figures, results, fronts))
    if data["scaling"]:
        sections.append(_scaling(figures))
    sections += [_points(figures, results), _sources(figures)]
    title = joined("Sweep ", figures.at("sweep").words)
    return Document(title, _lead(figures), sections, data, _foot(figures))


def _data(results: Results, column: str) -> dict[str, Any]:
    header, heat = results.header, heat_map(results, column, None, None)
    fronts, curves = pareto(results), scaling(results)
    return {
        "sweep": header.name,
        "folder": str(results.folder),
        "objective": column,
        "num_points": results.counts_by_status(),
        "most_points": MOST_POINTS,
        "panels": [
            {
                "name": as_scalar(panel),
                "points": results.ranked(panel, column)
                .slice(0, MOST_POINTS)
                .drop_columns(["status", "rule"])
                .to_pylist(),
            }
            for panel in results.panels
        ],
        "heat_map": heat.to_dict() if heat else None,
        "fronts": fronts.fronts if fronts else {},
        "scaling": curves.throughput if curves else {},
        "scaling_efficiency": curves.efficiency if curves else {},
        "scaling_points": _fastest(results) if curves else {},
        "points": {},
        "profiles": _profiles(results),
        "made_with": {"simtrain": header.version, "profiles": dict(header.profiles)},
        "number_sources": [*map(asdict, SWEEP_SOURCES)],
    }


def _fastest(results: Results) -> dict[str, dict[str, dict[str, int]]]:
    """Return the index of the fastest point of each panel and number of GPUs."""
    fastest_of = {}
    for panel in results.panels:
        rows = results.ranked(panel, "tokens_per_s").select(["num_gpus", "index"]).to_pylist()
        # The last of equal keys stays, so the fastest point comes last.
        fastest = {str(row["num_gpus"]): {"index": row["index"]} for row in reversed(rows)}
        fastest_of[as_scalar(panel)] = fastest
    return fastest_of


def _indices(part: Any) -> Iterator[int]:
    """Yield the index of each point in a part of the data."""
    if isinstance(part, dict) and isinstance(part.get("index"), int):
        yield part["index"]
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _indices(inner)


def _profiles(results: Results) -> dict[str, Any]:
    """Return the sweep's hardware profiles with their entries, if their files are unchanged."""
    pages: dict[str, Any] = {}
    for name, digest in results.header.profiles.items():
        try:
            if profile_sha256(name) == digest:
                pages[name] = load_page(name).to_dict()
        except (InputError, OSError):
            continue
    return pages


def _section(anchor: str, title: str, body: Html) -> Section:
    return Section(anchor, title, body, ("chart.css", "sweep.css"))


def _lead(figures: Figures) -> Html:
    counts = figures.at("num_points")
    shown = (
        joined(counts.at(status).count, f" {_STATUS.get(status, status)}")
        for status in counts.value
    )
    return element(
        "p",
        "Points of the sweep: ",
        joined(*shown, separator=", "),
        ". Select a number to see its exact value, its source and its point.",
    )


def _foot(figures: Figures) -> Html:
    made = figures.at("made_with")
    profiles = (
        element(
            "p", "hardware profile ", profile.key, " · SHA-256 ", element("code", profile.words)
        )
        for profile in made.at("profiles").each()
    )
    return joined(element("p", "simtrain ", made.at("simtrain").words), *profiles)


def _title(panel: Figures) -> str:
    """Return the heading of a panel, if it has a name."""
    name = panel.at("name")
    return element("h3", name.words) if name.value else ""


def _winners(figures: Figures, results: Results, column: str) -> Section:
    """Build the section with the best point of each panel."""
    cards = []
    for panel in figures.at("panels").each():
        if not panel.value["points"]:
            continue
        best = panel.at("points", 0)
        axes = [best.at(name) for name in results.varying()]
        place = joined(*(joined(axis.key, " ", axis.setting) for axis in axes), separator=", ")
        label = joined(panel.at("name").words, " ", title_of(column))
        cards.append(card(label, _number(best.at(column), column), place))
    body = element("div", *cards, class_="cards")
    return Section("winners", "Best point", body, ("answer.css", "sweep.css"))


def _heat_map(figures: Figures, column: str) -> Section:
    heat, is_larger = figures.at("heat_map"), column in LARGER_IS_BETTER
    blocks: list[str] = []
    for panel, cells in zip(figures.at("panels").each(), heat.at("panels").each(), strict=True):
        drawn = heat_map_panel(heat, cells, lambda cell: _number(cell, column), is_larger)
        blocks += [_title(panel), drawn]
    over = joined(*(axis.words for axis in heat.at("best_over").each()), separator=", ")
    best = element("p", "Each cell has the best over ", over, ".", class_="soft") if over else ""
    better = "Higher" if is_larger else "Lower"
    note = element("p", f"{better} is better. The best cell is bold.", class_="soft")
    title = f"Heat map of {title_of(column)}"
    return _section("heat-map", title, joined(note, best, *blocks))


def _fronts(figures: Figures, results: Results, fronts: Pareto) -> Section:
    blocks: list[str] = []
    panels = zip(
        results.panels, figures.at("panels").each(), figures.at("fronts").each(), strict=True
    )
    for panel, about, front in panels:
        if front.value:
            picture = pareto_panel(fronts, panel, front)
            blocks += [_title(about), picture, _front(front, results, fronts.unit)]
    return _section("pareto-front", "Pareto front of time and memory", joined(*blocks))


def _front(front: Figures, results: Results, unit: str) -> Html:
    axes = [front.at(0, name).key for name in results.varying()]
    headings = (">number", ">peak memory", f">{unit}", *axes)
    rows = [
        (
            element("span", str(number), class_="ordinal"),
            point.at("peak_bytes").bytes,
            point.at("time").number(four_digits),
            *(point.at(name).setting for name in results.varying()),
        )
        for number, point in enumerate(front.each(), start=1)
    ]
    return table("Points on the front, numbered as in the picture", headings, rows)


def _scaling(figures: Figures) -> Section:
    curves = figures.at("scaling")
    of_name = {panel.value["name"]: panel.at("name").words for panel in figures.at("panels").each()}
    names = [of_name[str(name)] for name in curves.value]
    blocks = [scaling_picture(curves, names)]
    shares = figures.at("scaling_efficiency").each()
    for curve, efficiency, name in zip(curves.each(), shares, names, strict=True):
        rows = [
            (rate.key, rate.count, share.percent)
            for rate, share in zip(curve.each(), efficiency.each(), strict=True)
        ]
        caption = joined("Best tokens per second", *((" of ", name) if name else ()))
        blocks.append(table(caption, (">GPUs", ">tokens per second", ">of linear scaling"), rows))
    return _section("scaling-curves", "Scaling", joined(*blocks))


def _points(figures: Figures, results: Results) -> Section:
    names = results.table.column_names
    reported = names[names.index("rule") + 1 :]
    columns = [*results.varying(), *reported]
    most = figures.at("most_points").count
    caption = joined("Best points that ran, at most ", most, ". Select a heading to sort.")
    blocks: list[str] = []
    for panel in figures.at("panels").each():
        blocks.append(_title(panel))
        rows = [_point(point, results, columns) for point in panel.at("points").each()]
        first = panel.at("points", 0)
        headings = [joined(">" if name in reported else "", first.at(name).key) for name in columns]
        if rows:
            blocks.append(table(caption, headings, rows, class_="sortable"))
    return Section("points", "Best points", joined(*blocks), ("operators.css",), ("sort.js",))


def _point(point: Figures, results: Results, columns: list[str]) -> tuple[str, ...]:
    return tuple(
        point.at(name).setting
        if name in results.axes or not isinstance(point.value[name], int | float)
        else _number(point.at(name), name)
        for name in columns
    )


def _sources(figures: Figures) -> Section:
    """Build the section: the entries of each hardware profile, with their sources."""
    blocks: list[Html] = []
    caption = "Entries of the hardware profile"
    for profile in figures.at("profiles").each():
        entries = entries_table(caption, profile.at("entries").each(), f"entries-{len(blocks)}")
        summary = element(
            "summary", profile.at("name").words, ": ", profile.at("description").words
        )
        blocks.append(element("details", summary, entries))
    words = "Times depend on the entries of hardware profiles, and these on their sources."
    if not blocks:
        words = "The hardware profiles of the sweep are not here, or have changed since it ran."
    body = joined(element("p", words), *blocks)
    return Section("sources", "Sources", body, ("sources.css",), ("sources.js",))


def _number(figure: Figures, column: str) -> Html:
    if column in _BYTES:
        return figure.bytes
    if column in _COUNTS:
        return figure.count
    if column.endswith("_s") and column != "tokens_per_s":
        return figure.seconds
    return figure.number(lambda value: shown(column, value))
