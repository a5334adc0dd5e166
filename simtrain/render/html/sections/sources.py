"""Parts of the main figures, and all profile entries that times on the page depend on."""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, element, joined, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run
from simtrain.views.origins import shown_value

_LABELS = {
    "iteration_time": "Iteration time",
    "mfu": "MFU",
    "hfu": "HFU",
    "peak_memory": "Peak memory",
}


def sources_section(runs: Figures) -> Section:
    """Build the section: a tree of parts per main figure, and a table of entries with sources."""
    body = of_each_run(runs, _sources)
    return Section("sources", "Sources", body, ("sources.css",), ("sources.js",))


def _sources(run: Figures) -> Html:
    trees = [_tree(label, run.at("explained", name)) for name, label in _LABELS.items()]
    profile = run.at("profile", "name").words
    caption = joined("Entries of the hardware profile ", profile, " that times depend on")
    entries = entries_table(caption, entries_of_run(run), f"entry-{run.path[-1]}")
    return joined(*trees, entries)


def entries_table(caption: str, entries: Iterable[Figures], anchor: str) -> Html:
    """Return a table of profile entries. The id of an entry is its name after `anchor`."""
    rows = [
        (
            element("code", entry.key, id=f"{anchor}-{entry.path[-1]}"),
            _entry_value(entry),
            entry.at("source").words,
            entry.at("fitted_on").words
            if entry.value.get("fitted_on")
            else "not fitted: published",
        )
        for entry in entries
    ]
    headings = ("entry", "value", "source", "fitted on")
    return table(caption, headings, rows, class_="entries")


def entries_of_run(run: Figures) -> list[Figures]:
    """Return all profile entries in the operators and explained figures of a run, by name."""
    lists = [run.at("operators", "entries")]
    lists += [explained.at("sources") for explained in run.at("explained").each()]
    entry_of = {str(entry.path[-1]): entry for entries in lists for entry in entries.each()}
    return [entry_of[name] for name in sorted(entry_of)]


def _entry_value(entry: Figures) -> str:
    value = entry.at("value")
    if not isinstance(value.value, int | float):
        return "listed by simtrain profile show"
    return value.number(lambda number: shown_value(str(entry.path[-1]), number))


def _tree(label: str, origin: Figures) -> Html:
    parts = element("ul", *(_part(part) for part in origin.at("parts").each()))
    summary = element("summary", label, " = ", _number(origin), *_remark(origin))
    return element("details", summary, parts)


def _part(origin: Figures) -> Html:
    record, run = origin.value, origin.path[1]
    words: list[str] = [element("strong", origin.at("name").words), " = ", _number(origin)]
    if "shape" in record:
        words += [": ", origin.at("count").count, " × ", origin.at("shape").words]
    words += [*_remark(origin), " "]
    if "entries" in record:
        entries = (
            joined(
                element("a", entry.key, href=f"#entry-{run}-{entry.path[-1]}"), " ", entry.percent
            )
            for entry in origin.at("entries").each()
        )
        words.append(element("span", "from ", joined(*entries, separator=", "), class_="soft"))
    if "parts" in record:
        words.append(element("ul", *map(_part, origin.at("parts").each())))
    return element("li", *words)


def _remark(origin: Figures) -> tuple[str, ...]:
    return (": ", origin.sentence("remark")) if origin.value.get("remark") else ()


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
