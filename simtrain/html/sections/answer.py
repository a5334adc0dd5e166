"""First section of a report: iteration time, utilization, peak memory, and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined
from simtrain.html.figures import Figures

_ITERATIONS_NEVER = (
    "No measured iteration of this machine. Its profile is fitted on published microbenchmarks; "
    "docs/validation.md states its errors for kernels and layers."
)
_NOT_VALIDATED = "No measured iteration: this profile does not come with simtrain."
_VALIDATED_ON = {
    "a100_sxm4_80gb": "Measured iterations that were not used for fitting: Table 5 of Korthikanti "
    "et al. 2022 (8 to 512 GPUs), the same paper's 530B run on 2,240 GPUs, and published runs on "
    "one and on several nodes. docs/validation.md lists each error.",
    **dict.fromkeys(("h100_sxm", "h200_sxm", "b200_sxm"), _ITERATIONS_NEVER),
}
"""Measurements with which the iteration times of each shipped profile were compared."""


def answer_section(runs: Figures) -> Section:
    """Build the section: the main figures of each iteration, and how accurate they are."""
    blocks = [_answer(run, is_named=len(runs.value) > 1) for run in runs.each()]
    blocks.append(_trust([*runs.each()]))
    return Section("answer", "Answer", joined(blocks), styles=("answer.css",))


def _answer(run: Figures, *, is_named: bool) -> Html:
    result = run.at("result")
    cards = (
        _card("Iteration time", result.at("iteration_time_s").seconds),
        _card("Tokens per second", result.at("tokens_per_s").count),
        _card("MFU", result.at("mfu").percent, joined(("HFU ", result.at("hfu").percent))),
        _memory_card(run),
        _card("GPUs", result.at("num_gpus").count, result.at("cluster").value),
    )
    name = [element("h3", run.at("name").value)] if is_named else []
    return joined((*name, element("div", *cards, class_="cards")))


def _trust(runs: list[Figures]) -> Html:
    """Build the list of what profiles were fitted on and validated on, and of remarks."""
    items: dict[tuple[str, Html], None] = {}
    for run in runs:
        name = f"{run.at('name').value}: " if len(runs) > 1 else ""
        for term, *words in _trust_of(run):
            # A statement about a profile is shown once for all runs with this profile.
            is_of_profile = term in ("Fitted on", "Validated on")
            items[term, joined(words if is_of_profile else (name, *words))] = None
    terms = [*dict.fromkeys(term for term, _ in items)]
    ordered = sorted(items, key=lambda item: terms.index(item[0]))
    listed = (joined((element("dt", term), element("dd", words))) for term, words in ordered)
    return joined((element("h3", "Accuracy"), element("dl", *listed, class_="trust")))


def _trust_of(run: Figures) -> Iterator[tuple[str, ...]]:
    result, profile = run.at("result"), run.at("profile")
    shapes = result.at("extrapolated").value
    listed = f": {', '.join(shapes)}" if shapes else ""
    name, kind = profile.value["name"], "" if profile.value["calibrated"] else " (not calibrated)"
    yield (
        "Extrapolated",
        result.at("extrapolated_compute").percent,
        f" of kernel time is for shapes outside the range that the profile was fitted on{listed}.",
    )
    entries, fitted = profile.value["num_entries"], profile.value["num_fitted"]
    yield (
        "Fitted on",
        f"{name}{kind}: {profile.value['description']}. Of its {entries} entries, {fitted} were "
        "fitted to measurements; the others are copied from the sources that they cite.",
    )
    yield "Validated on", f"{name}: {_VALIDATED_ON.get(name, _NOT_VALIDATED)}"
    for remark in run.at("remarks").value:
        yield "Note", remark


def _card(label: str, number: Html, remark: str = "") -> Html:
    return element(
        "div",
        element("div", label, class_="label"),
        element("div", number, class_="value"),
        element("div", remark, class_="remark"),
        class_="card",
    )


def _memory_card(run: Figures) -> Html:
    memory = run.at("result", "memory")
    fullest = memory.at("stages", run.at("fullest_stage").value, "peak_bytes")
    fits = memory.at("fits").value
    remark = joined(
        (
            element("strong", "fits" if fits else "does not fit", class_="good" if fits else "bad"),
            " in ",
            memory.at("capacity_bytes").bytes,
        )
    )
    return _card("Peak memory", fullest.bytes, remark)
