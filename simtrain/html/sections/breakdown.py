"""Breakdown of an iteration's time by cause, as a bar and a table."""

from __future__ import annotations

from simtrain.figures.breakdown import FILLS
from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined, swatch, table
from simtrain.html.figures import Figures
from simtrain.html.sections import of_each_run
from simtrain.report.breakdown import CAUSE_LABELS

_FILL_OF = {
    name.removesuffix("_s"): (label, fill)
    for (name, label), fill in zip(CAUSE_LABELS.items(), FILLS, strict=True)
}


def breakdown_section(runs: Figures) -> Section:
    """Build the section: the time of each iteration by cause."""
    body = of_each_run(runs, _breakdown)
    return Section("breakdown", "Where the time goes", body, styles=("breakdown.css",))


def _breakdown(run: Figures) -> Html:
    result = run.at("result")
    total, causes = result.at("iteration_time_s"), result.at("breakdown_s")
    shown = {name: causes.at(name) for name in _FILL_OF if causes.value[name]}
    bar = element(
        "div",
        *(
            element("span", style=f"--fill:{_FILL_OF[name][1]};flex-grow:{cause.value!r}")
            for name, cause in shown.items()
        ),
        class_="bar",
        aria_hidden="true",
    )
    rows: list[tuple[str, ...]] = [
        (_label(name), cause.seconds, cause.share_of(total), _range(result, name))
        for name, cause in shown.items()
    ]
    rows.append(("iteration", total.seconds, total.share_of(total), ""))
    headings = ("part", ">time", ">share", ">min to max over stages")
    caption = "Mean over the pipeline stages; the parts add up to the iteration time."
    return joined(bar, table(caption, headings, rows, class_="sums"))


def _label(name: str) -> Html:
    label, fill = _FILL_OF[name]
    return joined(swatch(fill), label)


def _range(result: Figures, name: str) -> Html:
    stages = result.at("stages_s")
    if len(stages.value) == 1:
        return Html()
    of_stages = sorted((stage.at(name) for stage in stages.each()), key=lambda one: one.value)
    return joined(of_stages[0].seconds, " to ", of_stages[-1].seconds)
