"""Breakdown of an iteration's time by cause, as a bar and a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.render.figures.breakdown import FILLS
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, element, joined, swatch, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run

CAUSES = {
    name.removesuffix("_s"): (label, fill)
    for (name, label), fill in zip(CAUSE_LABELS.items(), FILLS, strict=True)
}
"""Label and colour of each cause, by its name in the JSON."""


def breakdown_section(runs: Figures) -> Section:
    """Build the section: the time of each iteration by cause."""
    body = of_each_run(runs, _breakdown)
    return Section("breakdown", "Where the time goes", body, styles=("breakdown.css",))


def _breakdown(run: Figures) -> Html:
    result = run.at("result")
    total, causes = result.at("iteration_time_s"), result.at("breakdown_s")
    shown = {name: causes.at(name) for name in CAUSES if causes.value[name]}
    bar = bar_of_causes(shown, causes.value, aria_hidden="true")
    rows: list[tuple[str, ...]] = [
        (label_of_cause(name), cause.seconds, cause.share_of(total), _range(result, name))
        for name, cause in shown.items()
    ]
    rows.append(("iteration", total.seconds, total.share_of(total), ""))
    headings = ("part", ">time", ">share", ">min to max over stages")
    caption = "Mean over the pipeline stages; the parts add up to the iteration time."
    return joined(bar, table(caption, headings, rows, class_="sums"))


def bar_of_causes(names: Iterable[str], seconds: Mapping[str, float], **attributes: str) -> Html:
    """Return a bar of causes, each as wide as its time."""
    parts = (
        element(
            "span",
            style=f"--fill:{CAUSES[name][1]};flex-grow:{seconds[name]!r}",
            data_part=name,
            hidden=not seconds[name],
        )
        for name in names
    )
    return element("div", *parts, **{"class_": "bar"} | attributes)


def label_of_cause(name: str) -> Html:
    """Return the label of a cause, with its colour."""
    label, fill = CAUSES[name]
    return joined(swatch(fill), label)


def _range(result: Figures, name: str) -> Html:
    stages = result.at("stages_s")
    if len(stages.value) == 1:
        return Html()
    of_stages = sorted(
        (stage.at(name) for stage in stages.each()), key=lambda seconds: seconds.value
    )
    return joined(of_stages[0].seconds, " to ", of_stages[-1].seconds)
