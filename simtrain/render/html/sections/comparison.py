"""Comparison of iterations: causes of the difference, critical paths, and what to buy first."""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.hardware.upgrades import RESOURCES
from simtrain.iteration.report.breakdown import CAUSE_LABELS, KIND_LABELS
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, element, joined, table
from simtrain.render.html.figures import Figures
from simtrain.units import format_seconds, four_digits


def comparison_section(compared: Figures) -> Section:
    """Build the section: causes of differences, critical paths, and what to buy first."""
    scenarios = [*compared.at("scenarios").each()]
    parts = [_difference(difference) for difference in compared.at("differences").each()]
    parts.append(_critical_paths(scenarios))
    if scenarios[0].value["with_more"]:
        parts.append(_resources(scenarios))
    title = "Comparison" if len(scenarios) > 1 else "What the time depends on"
    return Section("comparison", title, joined(*parts), ("comparison.css",))


def _difference(difference: Figures) -> Html:
    record = difference.value
    causes, whole = difference.at("causes_s"), difference.at("difference_s")
    largest = max(*map(abs, record["causes_s"].values()), 1e-12)
    rows: list[tuple[str, ...]] = [
        (CAUSE_LABELS[f"{name}_s"], _signed(causes.at(name)), _bar(value / largest))
        for name, value in record["causes_s"].items()
        if abs(value) > 1e-12
    ]
    rows.append(("iteration", _signed(whole), ""))
    fields = [
        (element("code", both.key), *(value.setting for value in both.each()))
        for both in difference.at("changed_fields").each()
    ]
    base_name, other_name = difference.at("base").words, difference.at("other").words
    words = [difference.sentence("reason"), "."]
    if not record["has_same_model"]:
        words.append(" These are different models: their iterations do different work.")
    if record["tokens_ratio"] != 1:
        ratio = difference.at("tokens_ratio").number(four_digits)
        words += [" An iteration trains ", ratio, " times as many tokens as the first."]
    caption = "Causes of the difference, mean over the stages; they add up to the difference."
    return joined(
        element("h3", other_name, " against ", base_name),
        element("p", *words),
        table(caption, ("part", ">difference", ""), rows, class_="sums causes"),
        table("Fields that differ", ("field", base_name, other_name), fields)
        if fields
        else element("p", "The scenarios are the same."),
    )


def _signed(figure: Figures) -> Html:
    return figure.number(lambda seconds: ("+" if seconds > 0 else "") + format_seconds(seconds))


def _bar(share: float) -> Html:
    """Build a bar to the right for more time, to the left for less."""
    side = "more" if share > 0 else "less"
    width = f"width:{50 * abs(share):.3f}%"
    return element(
        "div", element("span", class_=side, style=width), class_="diverging", aria_hidden="true"
    )


def _critical_paths(scenarios: Sequence[Figures]) -> Html:
    kinds = dict.fromkeys(
        kind for scenario in scenarios for kind in scenario.value["critical_path_s"]
    )
    ranked = sorted(
        kinds,
        key=lambda kind: (
            -max(scenario.value["critical_path_s"].get(kind, 0) for scenario in scenarios)
        ),
    )
    rows: list[tuple[str, ...]] = [
        (KIND_LABELS[kind], *(_seconds_of(kind, scenario) for scenario in scenarios))
        for kind in ranked
    ]
    rows.append(("iteration", *(scenario.at("iteration_time_s").seconds for scenario in scenarios)))
    headings = ("kind of task", *_names(scenarios))
    caption = "Time of the tasks on the critical path, by kind; they run one after another"
    title = element("h3", "Critical path")
    return joined(title, table(caption, headings, rows, class_="sums"))


def _seconds_of(kind: str, scenario: Figures) -> str:
    """Show the time of a kind of task on the critical path; nothing if it has none."""
    path = scenario.at("critical_path_s")
    return path.at(kind).seconds if kind in path.value else ""


def _names(scenarios: Sequence[Figures]) -> list[Html]:
    """Return a heading of a column of numbers for each scenario."""
    return [joined(">", scenario.at("name").words) for scenario in scenarios]


def _resources(scenarios: Sequence[Figures]) -> Html:
    saved = [scenario.at("with_more", "saved") for scenario in scenarios]
    rows = [
        (RESOURCES[name].label, *(shares.at(name).number("{:.2%}".format) for shares in saved))
        for name in saved[0].value
    ]
    factor = scenarios[0].at("with_more", "factor").number("{:g}".format)
    headings = ("resource", *_names(scenarios))
    caption = joined("Share of the iteration time saved by ", factor, " times one resource")
    return joined(element("h3", "What to buy first"), table(caption, headings, rows))
