"""First section of a report: iteration time, utilization, peak memory, and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.hardware.validated_on import error_text
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, card, element, joined, plain_text
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run

_NOT_VALIDATED = "compared with no measured iteration that simtrain knows of."


def answer_section(runs: Figures) -> Section:
    """Build the section: the main figures of each iteration, and how accurate they are."""
    body = joined(of_each_run(runs, _answer), _trust([*runs.each()]))
    return Section("answer", "Answer", body, styles=("answer.css",))


def _answer(run: Figures) -> Html:
    result = run.at("result")
    cards = (
        card("Iteration time", result.at("iteration_time_s").seconds, _interval(result)),
        card("Tokens per second", result.at("tokens_per_s").count),
        card("MFU", result.at("mfu").percent, joined(*_utilization(result))),
        _memory_card(run),
        card("GPUs", result.at("num_gpus").count, result.at("cluster").words),
    )
    return element("div", *cards, class_="cards")


def _interval(result: Figures) -> Html:
    """Say where the measured time lies, as far as comparisons with other runs tell."""
    interval = result.at("interval_s")
    return joined(
        "nine of ten runs: ", interval.at("p5").seconds, " to ", interval.at("p95").seconds
    )


def _trust(runs: list[Figures]) -> Html:
    """Build the list of what profiles were fitted on and validated on, and of remarks."""
    items: dict[str, dict[str, Html]] = {}
    for run in runs:
        name = joined(run.at("name").words, ": ") if len(runs) > 1 else ""
        for term, *words in _trust_of(run):
            # A statement about a profile is shown once for all runs with this profile.
            is_of_profile = term in ("Fitted on", "Evidence", "Validated on")
            html = joined("" if is_of_profile else name, *words)
            items.setdefault(term, {}).setdefault(plain_text(html), html)
    listed = (
        joined(element("dt", term), element("dd", words))
        for term, statements in items.items()
        for words in statements.values()
    )
    return joined(element("h3", "Accuracy"), element("dl", *listed, class_="trust"))


def _trust_of(run: Figures) -> Iterator[tuple[str, ...]]:
    result, profile = run.at("result"), run.at("profile")
    shapes = joined(*(shape.words for shape in result.at("extrapolated").each()), separator=", ")
    name = profile.at("name")
    yield (
        "Extrapolated",
        result.at("extrapolated_compute").percent,
        " of kernel time is for shapes outside the range that the profile was fitted on",
        *((": ", shapes) if shapes else ()),
        ".",
    )
    yield (
        "Fitted on",
        name.words,
        ": ",
        profile.at("description").words,
        ". Of its ",
        profile.at("num_entries").count,
        " entries, ",
        profile.at("num_fitted").count,
        " were fitted to measurements; the others are copied from the sources that they cite.",
    )
    yield "Evidence", name.words, ": ", result.at("evidence", "text").words, "."
    yield "Validated on", name.words, ": ", _validated_on(result.at("validated_on"))
    for remark in result.at("remarks").each():
        yield "Note", remark.sentence("text")


def _validated_on(validated: Figures) -> Html:
    """State the errors of predicted iteration times against measured ones."""
    if not validated.value:
        return joined(_NOT_VALIDATED)
    runs = [
        element("li", *_measured_runs(measured))
        for measured in validated.at("measured_runs").each()
    ]
    return joined(validated.at("summary").words, element("ul", *runs) if runs else "")


def _measured_runs(runs: Figures) -> Iterator[str]:
    yield from (runs.at("runs").words, ". Runs: ", runs.at("num_runs").count)
    yield from (", mean |error| ", runs.at("mean_error").number(error_text))
    yield from (", worst ", runs.at("worst_error").number(error_text))
    yield from (", with ", runs.at("software").words, ". ", runs.at("remark").words)
    yield from (". Source: ", runs.at("source").words, ".")


def _utilization(result: Figures) -> Iterator[str]:
    """State HFU and, if products also run in another data type than bf16, the peaks."""
    by_peak = result.at("mfu_by_peak").value
    others = [result.at("mfu_by_peak", name) for name in by_peak if name != "bf16"]
    yield from ("of the bf16 peak, " if others else "", "HFU ", result.at("hfu").percent)
    for mfu in others:
        yield from ("; MFU ", mfu.percent, f" of the {mfu.path[-1]} peak")


def _memory_card(run: Figures) -> Html:
    memory = run.at("result", "memory")
    fullest = memory.at("stages", run.at("fullest_stage").value, "peak_bytes")
    words, class_ = ("fits", "good") if memory.at("fits").value else ("does not fit", "bad")
    limits = ", by less than memory predictions can tell" if memory.at("is_close").value else ""
    remark = joined(
        element("strong", words, class_=class_), " in ", memory.at("capacity_bytes").bytes, limits
    )
    return card("Peak memory", fullest.bytes, remark)
