"""Parts of the main figures, and all profile entries that times on the page depend on."""

from __future__ import annotations

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined, table
from simtrain.html.figures import Figures
from simtrain.pages.origins_page import shown_value

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
    entries = entries_of_run(run)
    rows = [
        (
            element("code", one.at("entry").words, id=f"entry-{number}-{one.value['entry']}"),
            _entry_value(one, one.value["entry"]),
            one.at("source").words,
            one.at("fitted_on").words if one.value["fitted_on"] else "not fitted: published",
        )
        for one in entries
    ]
    headings = ("entry", "value", "source", "fitted on")
    name = [element("h3", run.at("name").words)] if is_named else []
    profile = run.at("profile", "name").words
    caption = joined(("Entries of the hardware profile ", profile, " that times depend on"))
    return joined((*name, *trees, table(caption, headings, rows, class_="entries")))


def entries_table(entries: Figures, anchor: str) -> Html:
    """Return a table of all entries of a profile (`simtrain profile show --json`)."""
    rows = [
        (
            element("code", one.key, id=f"{anchor}-{one.path[-1]}"),
            _entry_value(one, str(one.path[-1])),
            one.at("source").words,
            one.at("fitted_on").words if "fitted_on" in one.value else "not fitted: published",
        )
        for one in entries.each()
    ]
    headings = ("entry", "value", "source", "fitted on")
    return table("Entries of the hardware profile", headings, rows, class_="entries")


def entries_of_run(run: Figures) -> list[Figures]:
    """Return all profile entries in the operators and explained figures of a run, by name."""
    lists = [run.at("operators", "entries")]
    lists += [explained.at("sources") for explained in run.at("explained").each()]
    found = {str(entry.path[-1]): entry for entries in lists for entry in entries.each()}
    return [found[name] for name in sorted(found)]


def _entry_value(entry: Figures, name: str) -> Html:
    value = entry.at("value")
    if not isinstance(value.value, int | float):
        return joined(("listed by simtrain profile show",))
    return value.number(lambda number: shown_value(name, number))


def _tree(label: str, origin: Figures) -> Html:
    parts = element("ul", *(_part(part) for part in origin.at("parts").each()))
    summary = element("summary", label, " = ", _number(origin), *_remark(origin))
    return element("details", summary, parts)


def _part(origin: Figures) -> Html:
    record, run = origin.value, origin.path[1]
    entries = [
        joined(
            (
                element("a", share.key, href=f"#entry-{run}-{share.path[-1]}"),
                " ",
                share.percent,
            )
        )
        for share in (origin.at("entries").each() if "entries" in record else ())
    ]
    from_entries = [element("span", *_separated(entries), class_="soft")] if entries else []
    inner = record.get("parts")
    parts = [element("ul", *map(_part, origin.at("parts").each()))] if inner else []
    about = (
        (": ", origin.at("count").count, " × ", origin.at("shape").words)
        if "shape" in record
        else ()
    )
    title = element("strong", origin.at("name").words)
    text = (title, " = ", _number(origin), *about, *_remark(origin))
    return element("li", *text, " ", *from_entries, *parts)


def _separated(items: list[Html]) -> list[str]:
    words: list[str] = ["from "]
    for item in items:
        words += [item, ", "]
    return words[:-1]


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
