"""The page of `simtrain reproduce explore`: the paper's argument in figures with sliders.

Bytes follow from the terms of a layer; times are simulated when the page is written."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simtrain.base.resources import provenance
from simtrain.base.values import asdict
from simtrain.guests.paper.entries import Progress, published
from simtrain.guests.paper.layer import LENGTHS, RECOMPUTES, layer_terms, recompute_tax, sizes_of
from simtrain.guests.paper.models import MODELS, STRATEGIES, paper_scenario
from simtrain.guests.paper.targets import PASSES
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import Html, element, joined

SPLITS = {"tensor": False, "sequence": True}
"""Whether sequence parallelism is on, by name in the data."""
_ASSETS = Path(__file__).parent / "assets"
PAGE = tomllib.loads((_ASSETS / "explore.toml").read_text(encoding="utf-8"))
"""The words of the page, its controls, and the saved tensors of a layer."""

Data = Mapping[str, Any]
"""The data of the page (`explore_data`)."""


def explore_data(
    models: Sequence[str],
    lengths: Sequence[int],
    on_progress: Progress | None,
) -> dict[str, Any]:
    """Simulate all times, and return the data of the page for `explore_document`'s arguments."""
    table3 = {model: paper_scenario(model, "full") for model in MODELS}
    terms = {
        split: {name: _terms(sequence_parallel, name) for name in RECOMPUTES}
        for split, sequence_parallel in SPLITS.items()
    }
    return {
        "models": {model: sizes_of(scenario) for model, scenario in table3.items()},
        "sliders": slider_values(),
        "tensors": {
            name: dict(zip(("kind", "block", "role"), words, strict=True))
            for name, words in PAGE["tensors"].items()
        },
        "terms": terms,
        "strategies": {name: _strategy(name) for name in STRATEGIES},
        "lengths": list(lengths),
        "tax": _tax(models, lengths, on_progress),
        "paper": _paper(),
        "made_with": provenance(table3["22B"].cluster),
    }


def slider_values() -> dict[str, list[int]]:
    """Return the values of each slider. The page rounds h to a multiple of a."""
    return {
        "s": _octaves(256, 131072, 8),
        "b": list(range(1, 17)),
        "h": _octaves(1024, 32768, 16),
        "a": list(range(8, 257, 8)),
        "t": [1, 2, 4, 8, 16, 32],
    }


def _octaves(first: int, last: int, steps: int) -> list[int]:
    """Return integers from first to last, with `steps` equal steps in each doubling."""
    values: list[int] = []
    while first < last:
        values += range(first, 2 * first, first // steps)
        first *= 2
    return [*values, last]


def _terms(sequence_parallel: bool, recompute: str) -> list[dict[str, Any]]:
    """Return the terms in the order in which a layer creates its tensors."""
    layer = layer_terms(sequence_parallel=sequence_parallel, recompute=recompute)
    terms = {term.tensor: term for term in layer}
    return [
        {
            "tensor": name,
            "coefficient": terms[name].coefficient,
            "powers": {variable: power for variable, power in terms[name].powers.items() if power},
        }
        for name in PAGE["tensors"]
        if name in terms
    ]


def _strategy(name: str) -> dict[str, str]:
    scenario = paper_scenario("22B", name)
    split = "sequence" if scenario.parallelism.sequence_parallel else "tensor"
    return {"split": split, "recompute": scenario.recompute.strategy}


def _tax(
    models: Sequence[str], lengths: Sequence[int], on_progress: Progress | None
) -> dict[str, Any]:
    times = recompute_tax(models, lengths, on_progress)
    return {
        model: {
            split: {
                recompute: [
                    asdict(times[model, sequence_parallel, recompute, length]) for length in lengths
                ]
                for recompute in RECOMPUTES
            }
            for split, sequence_parallel in SPLITS.items()
        }
        for model in models
    }


def _paper() -> dict[str, Any]:
    """Return the paper's measurements: Table 4, and the overheads of Section 6.2."""
    overheads = published("fig8")["sections"]["overheads"]["paper"]
    return {
        "table4_s": {
            name: {pass_: ms / 1e3 for pass_, ms in zip(PASSES, times, strict=True)}
            for name, times in published("table4")["rows"].items()
        },
        "overheads": {
            model: {
                name: share["value"] if isinstance(share, dict) else share
                for name, share in of_model.items()
            }
            for model, of_model in overheads.items()
        },
    }


def explore_document(
    models: Sequence[str] = MODELS,
    lengths: Sequence[int] = LENGTHS,
    on_progress: Progress | None = None,
) -> HtmlDocument:
    """Build the page.

    Args:
        models: models of Table 3 whose times are simulated.
        lengths: sequence lengths for which a layer is simulated.
        on_progress: called after each simulated model.
    """
    data = explore_data(models, lengths, on_progress)
    sections = [_section(about, data) for about in PAGE["sections"]]
    return HtmlDocument(
        PAGE["title"],
        Html(PAGE["lead"]),
        sections,
        data,
        _foot(data),
        styles=(_ASSETS / "explore.css",),
        scripts=(_ASSETS / "explore.js",),
    )


def _foot(data: dict[str, Any]) -> Html:
    made = data["made_with"]
    return element(
        "p",
        f"simtrain reproduce explore, simtrain {made['simtrain']}, "
        f"hardware profile {made['profile']} (SHA-256 {made['profile_sha256'][:8]}). "
        "The page loads nothing from the network.",
    )


def _section(about: Mapping[str, Any], data: Data) -> HtmlSection:
    """Build a section: its text, and the figure that its controls change."""
    name, parts = about["name"], [Html(about["text"])]
    if "controls" in about:
        built = [_control(name, each, data) for each in about["controls"]]
        big = element("data", id=f"{name}-bytes", class_="big") if "note" in about else ""
        # A screen reader announces the words only while the user moves controls of the figure.
        words = element("span", id=f"{name}-words")
        shown = [element("p", big, words, class_="answer", aria_live="off")]
        if "note" in about:
            shown.append(element("p", id=about["note"], class_="note", role="status", hidden=True))
        plot = element("div", id=f"{name}-plot", class_="plot")
        caption = element("figcaption", about["caption"])
        shown.append(element("figure", plot, caption, class_="moving"))
        controls = element("div", *built, class_="controls")
        parts.append(element("div", controls, element("div", *shown), class_="bench"))
    return HtmlSection(name, about["title"], joined(*parts))


def _control(figure: str, words: str, data: Data) -> Html:
    """Build a control of a figure, such as "sliders sah": those of s, a and h."""
    kind, _, name = words.partition(" ")
    match kind:
        case "choice":
            options = PAGE[name]
            return choice(figure, name, name.capitalize(), options)
        case "models":
            return choice(figure, "model", "Model", {model: model for model in MODELS})
        case "sliders":
            sliders = (slider(figure, each, data["sliders"][each], each) for each in name)
            return element("div", *sliders, class_="sliders")
        case "length":
            return slider(figure, "length", data["lengths"], "s")
        case _:
            return switch(figure, "sequence", "sequence parallelism")


def slider(figure: str, name: str, values: Sequence[int], variable: str) -> Html:
    """Build a slider over a list of values. The script writes the chosen value in its output."""
    label = joined(element("var", variable), f" {PAGE['sliders'][name]}")
    identifier = f"{figure}-{name}"
    return element(
        "div",
        element("label", label, for_=identifier),
        element("output", "", for_=identifier, aria_live="off"),
        element(
            "input",
            type="range",
            id=identifier,
            min="0",
            max=str(len(values) - 1),
            step="1",
            data_slider=name,
        ),
        class_="slider",
    )


def choice(figure: str, name: str, title: str, options: Mapping[str, str]) -> Html:
    """Build radio buttons. `options` maps each value to its text."""
    buttons = (
        element(
            "label",
            element("input", type="radio", name=f"{figure}-{name}", value=value, data_choice=name),
            element("span", text),
        )
        for value, text in options.items()
    )
    return element("fieldset", element("legend", title), *buttons, class_="choice")


def switch(figure: str, name: str, text: str) -> Html:
    """Build a switch that is on or off."""
    identifier = f"{figure}-{name}"
    return element(
        "div",
        element("input", type="checkbox", role="switch", id=identifier, data_switch=name),
        element("label", text, for_=identifier),
        class_="switch",
    )
