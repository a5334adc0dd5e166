"""Operators of the slowest stage, with the profile entries that give their times."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, element, joined, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run
from simtrain.units import four_digits

_HEADINGS = (
    *("op", "phase", "shape", ">count", ">exposed", ">share", ">hidden", ">FLOPs", ">bytes"),
    *(">rate", "limit", "entries of the hardware profile", "basis"),
)


def operators_section(runs: Figures) -> Section:
    """Build the section: a table of operators for each iteration, with time and limit."""
    body = of_each_run(runs, _operators)
    title = "Operators and their sources"
    return Section("operators", title, body, ("operators.css",), ("sort.js",))


def _operators(run: Figures) -> Html:
    operators = run.at("operators")
    total = operators.at("iteration_time_s")
    rows = [
        _row(number, operator, total)
        for number, operator in enumerate(operators.at("operators").each())
    ]
    stage = operators.at("stage").count
    caption = joined(
        "Operators of one rank of stage ", stage, ", the slowest. Select a heading to sort."
    )
    shown = table(caption, _HEADINGS, rows, class_="sortable operators")
    return joined(_remainder(operators), shown)


def _remainder(operators: Figures) -> Html:
    """State the parts of the stage's time that no op takes: launches and the bubble."""
    parts = operators.at("breakdown_s")
    words: list[str] = []
    for name in ("launch", "bubble"):
        words += [" + ", parts.at(name).seconds, f" {CAUSE_LABELS[name + '_s']}"]
    return element(
        "p",
        "Sum of exposed times",
        *words,
        " = ",
        operators.at("iteration_time_s").seconds,
        class_="soft",
    )


def _row(number: int, operator: Figures, total: Figures) -> tuple[str, ...]:
    record = operator.value
    hidden = operator.at("hidden_s").seconds if record["hidden_s"] > 0.001 * total.value else ""
    return (
        operator.at("op").words,
        operator.at("phase").words,
        operator.at("shape").words,
        operator.at("count").count,
        operator.at("exposed_s").seconds,
        operator.at("share").percent,
        hidden,
        operator.at("flops").number("{:.4g}".format) if record["flops"] else "",
        operator.at("bytes").bytes if record["bytes"] else "",
        _rate(operator),
        record["limit"] or "",
        joined(*_entries(operator)),
        record["basis"],
    )


def _rate(operator: Figures) -> Html:
    record = operator.value
    if record["flops"]:
        return operator.at("flops_per_s").number(lambda rate: f"{four_digits(rate / 1e12)} TFLOP/s")
    if record["bytes"]:
        return operator.at("bytes_per_s").number(lambda rate: f"{four_digits(rate / 1e9)} GB/s")
    return Html()


def _entries(operator: Figures) -> Iterator[Html]:
    """Yield the profile entries and their shares of the time, with links to their sources."""
    run = operator.path[1]
    for share in operator.at("entries").each():
        name = share.path[-1]
        if share.value >= 0.005 or name == operator.value["entry"]:
            link = element("a", share.key, href=f"#entry-{run}-{name}")
            yield element("span", link, " ", share.percent, " ", class_="entry")
