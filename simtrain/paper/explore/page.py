"""The page of `simtrain reproduce explore`: the paper's argument in figures with sliders.

Bytes follow from the terms of a layer; times are simulated when the page is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simtrain.base.resources import provenance
from simtrain.paper.entries import Progress, published
from simtrain.paper.layer import LENGTHS, RECOMPUTES, layer_terms, recompute_tax, sizes_of
from simtrain.paper.models import BASELINE, MODELS, PRESENT, STRATEGIES, paper_scenario
from simtrain.paper.targets import PASSES, TABLE4_MS
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import Html, element, joined

SPLITS = {"tensor": False, "sequence": True}
"""Whether sequence parallelism is on, by name in the data."""
TENSORS = {
    "block input": ("norm", "Layer norm", "input of the layer norm"),
    "attention layer norm output": ("attention", "Attention", "input of the Q, K and V products"),
    "query and key": ("attention", "Attention", "queries and keys, for QKᵀ"),
    "value": ("attention", "Attention", "values, for attention over V"),
    "softmax output": ("scores", "Attention", "softmax output"),
    "softmax dropout mask": ("scores", "Attention", "mask of the softmax dropout"),
    "softmax dropout output": ("scores", "Attention", "dropout output, for attention over V"),
    "attention output": ("attention", "Attention", "input of the projection"),
    "attention dropout mask": ("mask", "Attention", "mask of the dropout"),
    "attention output with residual": ("norm", "Layer norm", "input of the layer norm"),
    "MLP layer norm output": ("mlp", "MLP", "input of the h → 4h product"),
    "GeLU input": ("mlp", "MLP", "input of the GeLU"),
    "GeLU output": ("mlp", "MLP", "input of the 4h → h product"),
    "MLP dropout mask": ("mask", "MLP", "mask of the dropout"),
}
"""Kind, block and role of each saved tensor, in the order of the layer (paper, Section 4.1)."""


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
            name: {"kind": kind, "block": block, "role": role}
            for name, (kind, block, role) in TENSORS.items()
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
        for name in TENSORS
        if name in terms
    ]


def _strategy(name: str) -> dict[str, str]:
    """Return the split and the recompute of a strategy of Table 2."""
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
            for name, times in TABLE4_MS.items()
        },
        "overheads": {
            model: {
                name: share["value"] if isinstance(share, dict) else share
                for name, share in of_model.items()
            }
            for model, of_model in overheads.items()
        },
    }


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
        element("div", *controls, class_="controls"),
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
