"""Build the page of `simtrain reproduce explore`: the paper's argument in figures with sliders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simtrain.paper.entries import Progress
from simtrain.paper.explore.data import explore_data
from simtrain.paper.layer import LENGTHS
from simtrain.paper.models import BASELINE, MODELS, PRESENT
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import Html, element, joined

_ASSETS = Path(__file__).parent / "assets"
TITLE = "Explore: reducing activation recomputation"
RECOMPUTE = {"none": "nothing", "selective": "selective", "full": "full"}
STEPS = {
    "alone": "1 · One GPU",
    BASELINE: "2 · Tensor parallel",
    "sequence": "3 · + sequence parallel",
    PRESENT: "4 · + selective recompute",
    "full": "Or full recompute",
}
_SLIDERS = {
    "s": "sequence length",
    "b": "microbatch size",
    "h": "hidden size",
    "a": "attention heads",
    "t": "tensor-parallel ranks",
}

Data = Mapping[str, Any]
"""The data of the page (`explore_data`)."""


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
    sections = [section(data) for section in SECTIONS]
    return HtmlDocument(
        TITLE,
        _LEAD,
        sections,
        data,
        _foot(data),
        styles=(_ASSETS / "explore.css",),
        scripts=(_ASSETS / "explore.js",),
    )


_LEAD = Html(
    """<p>Training keeps, for every layer, the tensors that its backward pass will read: the
activations. In the models below, activations take more memory than weights and optimizer states.
The usual remedy is recompute: drop them, and run the forward pass again. Korthikanti et al.,
<a href="https://arxiv.org/abs/2205.05198"><cite>Reducing Activation Recomputation in Large
Transformer Models</cite></a> (2022), show that most of this recompute is unnecessary. This page
presents their argument in figures. Move the sliders to see how memory and time change.</p>"""
)


def _foot(data: dict[str, Any]) -> Html:
    made = data["made_with"]
    return element(
        "p",
        f"simtrain reproduce explore, simtrain {made['simtrain']}, "
        f"hardware profile {made['profile']} (SHA-256 {made['profile_sha256'][:8]}). "
        "The page loads nothing from the network.",
    )


def _section(name: str, title: str, introduction: str, *parts: Html) -> HtmlSection:
    return HtmlSection(name, title, joined(Html(introduction), *parts))


def layer(data: Data) -> HtmlSection:
    """Build section 1: the bytes of a layer, tensor by tensor (paper, Section 4)."""
    values = data["sliders"]
    return _section(
        "layer",
        "1. Activations of one layer",
        """<p>An <em>activation</em> is a tensor that the forward pass creates and the
backward pass reads. A matrix product saves its input, a softmax its output, a GeLU its input, a
dropout its mask. An element takes two bytes, in a mask one byte (paper, Section 4.1). Choose the
four steps in turn. Tensor parallelism divides the tensors inside attention and MLP
by <var>t</var> (Equation 2), but the inputs of layer norms and of both blocks and the masks of
dropouts stay <mark>whole on every rank</mark>. Sequence parallelism divides these tensors too,
along the sequence (Equation 4). Selective recompute drops the tensors that grow with
<var>s</var><sup>2</sup>, which are large to save and cheap to compute again
(Equation 6).</p>""",
        bench(
            (
                choice("layer", "step", "Step", STEPS),
                models("layer"),
                sliders("layer", "sbhat", values),
                choice("layer", "recompute", "Recompute", RECOMPUTE),
                switch("layer", "sequence", "sequence parallelism"),
            ),
            answer("layer", element("data", id="layer-bytes", class_="big")),
            element("p", id="layer-note", class_="note", role="status", hidden=True),
            figure(
                "layer",
                "Each row is a tensor that one GPU saves in the forward pass of a layer. A dashed "
                "outline is its size under tensor parallelism alone. simtrain derives the formula "
                "of each tensor from the recorded layer: it doubles one variable at a time and "
                "records the layer again.",
            ),
        ),
    )


def crossing(data: Data) -> HtmlSection:
    """Build section 2: the length at which the attention core exceeds the rest (Section 5)."""
    values = data["sliders"]
    return _section(
        "crossing",
        "2. When attention dominates",
        """<p>Most tensors of a layer grow with <var>s</var>. The attention
core (softmax, its dropout and the mask) has an <var>s</var> × <var>s</var> matrix for each head
and grows with <var>s</var><sup>2</sup>. On logarithmic axes its line is twice as steep. The
lines cross at 5<var>as</var>/<var>h</var> = 34 (Equation 1). Beyond this length, selective
recompute drops more than half of the layer's bytes (paper, Section 5). More heads move the
crossing to the left, a larger hidden size moves it to the right.</p>""",
        bench(
            (models("crossing"), sliders("crossing", "sah", values)),
            answer("crossing"),
            figure(
                "crossing",
                "Bytes of one layer on one GPU, by sequence length; both axes are logarithmic. "
                "Circles mark the crossings. Tensor parallelism alone leaves part of the layer "
                "undivided (dashed line), so the crossing is at a longer sequence.",
            ),
        ),
    )


def ladder(data: Data) -> HtmlSection:
    """Build section 3: bytes of a layer for each strategy, relative to the baseline (Figure 7)."""
    values = data["sliders"]
    return _section(
        "ladder",
        "3. Memory of each strategy",
        """<p>Sequence parallelism and selective recompute each nearly halve the activations
of a layer. Together they leave about a fifth of the tensor-parallel baseline. That is only twice
as much as full recompute, which saves only the input of each layer (paper, Section 6.1,
Figure 7).</p>""",
        bench(
            (models("ladder"), sliders("ladder", "st", values)),
            answer("ladder"),
            figure(
                "ladder",
                "Activations of one layer on one GPU. 100% is tensor parallelism alone.",
            ),
        ),
    )


def tax(data: Data) -> HtmlSection:
    """Build section 4: time of a layer with and without recompute (Table 4, Figure 8)."""
    lengths = data["lengths"]
    return _section(
        "tax",
        "4. Time of recompute",
        """<p>Recompute saves memory and takes time. Full recompute runs the whole forward
pass again, which adds a third to the FLOPs. Selective recompute runs only the attention core
again, a few percent of a forward pass (paper, Section 5). The core grows with the square of the
sequence length, so the overhead of selective recompute grows too. The times are simulated, kernel
by kernel, on the paper's A100s. Diamonds are the paper's measurements: Table 4 for the 22B model,
to which the hardware profile was fitted, and Section 6.2 for 530B and 1T.</p>""",
        bench(
            (
                models("tax"),
                slider("tax", "length", lengths, "s", "sequence length, simulated"),
                switch("tax", "sequence", "sequence parallelism"),
            ),
            answer("tax"),
            figure(
                "tax",
                "Time of one layer, forward and backward. Percentages are relative to the "
                "baseline: tensor parallelism alone, without recompute.",
            ),
        ),
    )


def sources(data: Data) -> HtmlSection:
    """Build the last section: the sources of the numbers."""
    return HtmlSection(
        "sources",
        "Sources",
        Html(
            """<p>All bytes and times come from simtrain; no formula is written into the page.
simtrain records a transformer layer op by op, as Megatron-LM of 2022 ran it. The activations are
the tensors that exist after the forward pass. Their bytes are exact at every position of the
sliders: each tensor's formula is derived from recorded layers when the page is written, and tests
compare the sums with recorded layers of random sizes. Times are simulated when the page is
written, for the positions that you can choose. <code>simtrain reproduce all</code> compares them
with the paper.</p>
<p>Two numbers that are quoted elsewhere need an explanation. The paper says that selective
recompute adds 2.7% (GPT-3) and 1.6% (MT-NLG) of FLOPs. These are shares of the forward pass;
relative to forward and backward together, they are a third of that. And the crossing at about 870
tokens, which explanations of the paper quote, belongs to the 175B model; it differs for each
model.</p>"""
        ),
    )


SECTIONS = (layer, crossing, ladder, tax, sources)


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
