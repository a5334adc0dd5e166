"""Build the controls of the page. Controls of the same setting move together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simtrain.paper.models import MODELS
from simtrain.render.html.elements import Html, element, joined

_SLIDERS = {
    "s": "sequence length",
    "b": "microbatch size",
    "h": "hidden size",
    "a": "attention heads",
    "t": "tensor-parallel ranks",
}


def sliders(figure: str, names: str, values: Mapping[str, Sequence[int]]) -> Html:
    """Build sliders for some of the paper's variables; `names` "sah" means s, a and h."""
    built = (slider(figure, name, values[name], name, _SLIDERS[name]) for name in names)
    return element("div", *built, class_="sliders")


def slider(figure: str, name: str, values: Sequence[int], variable: str, words: str) -> Html:
    """Build a slider over a list of values. The script writes the chosen value in its output."""
    label = joined(element("var", variable), f" {words}")
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


def models(figure: str) -> Html:
    """Build radio buttons for the paper's models."""
    return choice(figure, "model", "Model", {model: model for model in MODELS})


def switch(figure: str, name: str, text: str) -> Html:
    """Build a switch that is on or off."""
    identifier = f"{figure}-{name}"
    return element(
        "div",
        element("input", type="checkbox", role="switch", id=identifier, data_switch=name),
        element("label", text, for_=identifier),
        class_="switch",
    )


def bench(controls: Sequence[Html], *shown: Html) -> Html:
    """Place controls next to the text and figures that they change; print omits the controls."""
    return element(
        "div",
        element("div", *controls, class_="controls screen-only"),
        element("div", *shown),
        class_="bench",
    )


def answer(name: str, number: str = "") -> Html:
    """Build the paragraph for the sentence that the script writes.

    A screen reader announces it only while the user moves controls of the same figure.
    """
    words = element("span", id=f"{name}-words")
    return element("p", number, words, class_="answer", aria_live="off")


def figure(name: str, caption: str) -> Html:
    """Build the place of a figure that the script draws, with its caption."""
    return element(
        "figure",
        element("div", id=f"{name}-plot", class_="plot"),
        element("figcaption", caption),
        class_="moving",
    )
