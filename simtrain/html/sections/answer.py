"""The answer of a report: how long the iteration takes, how well it uses the GPUs, does it fit."""

from __future__ import annotations

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined
from simtrain.html.figures import Figures


def answer_section(runs: Figures) -> Section:
    """The main figures of each iteration, and how far to trust them."""
    blocks = [_answer(run, is_named=len(runs.value) > 1) for run in runs.each()]
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
    return _card("Peak memory of a GPU", fullest.bytes, remark)
