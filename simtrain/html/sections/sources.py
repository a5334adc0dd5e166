"""Parts of the main figures, and all profile entries that times on the page depend on."""

from __future__ import annotations

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined, table
from simtrain.html.figures import Figures
from simtrain.pages.origins_page import shown_value
from simtrain.units import with_micro_sign

_LABELS = {
    "iteration_time": "Iteration time",
    "mfu": "MFU",
    "hfu": "HFU",
    "peak_memory": "Peak memory",
}


def sources_section(runs: Figures) -> Section:
    """Build the section: a tree of parts per main figure, and a table of entries with sources."""
    blocks = [
        _sources(number, run, is_named=len(runs.value) > 1)
        for number, run in enumerate(runs.each())
    ]
    return Section("sources", "Sources", joined(blocks), ("sources.css",), ("sources.js",))


def _sources(number: int, run: Figures, *, is_named: bool) -> Html:
    trees = [_tree(label, run.at("explained", name)) for name, label in _LABELS.items()]
    entries = entries_of_run(run.value)
    rows = [
        (
            element("code", name, id=f"entry-{number}-{name}"),
            with_micro_sign(shown_value(name, one["value"])),
            one["source"],
            one["fitted_on"] or "not fitted: published",
        )
        for name, one in entries.items()
    ]
    headings = ("entry", "value", "source", "fitted on")
    name = [element("h3", run.at("name").value)] if is_named else []
    caption = (
        f"Entries of the hardware profile {run.at('profile', 'name').value} that times depend on"
    )
    return joined((*name, *trees, table(caption, headings, rows, class_="entries")))


def entries_of_run(run: dict[str, dict[str, object]]) -> dict[str, dict[str, str]]:
    """Return all profile entries in the operators and explained figures of a run, by name."""
    found: dict[str, dict[str, str]] = dict(run["operators"]["entries"])  # type: ignore[call-overload]
    for explained in run["explained"].values():
        found |= explained["sources"]  # type: ignore[index]
    return dict(sorted(found.items()))


def _tree(label: str, origin: Figures) -> Html:
    parts = element("ul", *(_part(part) for part in origin.at("parts").each()))
    summary = element("summary", label, " = ", _number(origin), _remark(origin))
    return element("details", summary, parts)


def _part(origin: Figures) -> Html:
    record, run = origin.value, origin.path[1]
    entries = [
        joined(
            (
                element("a", name, href=f"#entry-{run}-{name}"),
                " ",
                origin.at("entries", name).percent,
            )
        )
        for name in record.get("entries", {})
    ]
    from_entries = [element("span", *_separated(entries), class_="soft")] if entries else []
    inner = record.get("parts")
    parts = [element("ul", *map(_part, origin.at("parts").each()))] if inner else []
    about = f": {record['count']:,} × {record['shape']}" if "shape" in record else ""
    text = (element("strong", record["name"]), " = ", _number(origin), about, _remark(origin))
    return element("li", *text, " ", *from_entries, *parts)


def _separated(items: list[Html]) -> list[str]:
    words: list[str] = ["from "]
    for item in items:
        words += [item, ", "]
    return words[:-1]


def _remark(origin: Figures) -> str:
    remark = origin.value.get("remark")
    return f": {remark}" if remark else ""


def _number(origin: Figures) -> Html:
    value = origin.at("value")
    match origin.value["unit"]:
        case "s":
            return value.seconds
        case "B":
            return value.bytes
        case "":
            return value.percent if value.value < 1 else value.count
        case unit:
            return value.number(lambda number: f"{number:.4g} {unit}")
