"""Sections of the page, one for each step of the paper's argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simtrain.paper.explore.controls import (
    answer,
    bench,
    choice,
    figure,
    models,
    slider,
    sliders,
    switch,
)
from simtrain.paper.models import BASELINE, MODELS, PRESENT
from simtrain.render.html.document import HtmlSection
from simtrain.render.html.elements import Html, element, joined
from simtrain.render.html.view import view_html
from simtrain.views.kinds import COUNT, SHARE, TEXT, Kind
from simtrain.views.view import Column, Row, Table, View

RECOMPUTE = {"none": "nothing", "selective": "selective", "full": "full"}
STEPS = {
    "alone": "1 · One GPU",
    BASELINE: "2 · Tensor parallel",
    "sequence": "3 · + sequence parallel",
    PRESENT: "4 · + selective recompute",
    "full": "Or full recompute",
}
STRATEGIES = {
    BASELINE: "tensor parallel alone (baseline)",
    "sequence": "sequence parallel",
    "selective": "selective recompute",
    PRESENT: "both (present work)",
    "full": "full recompute",
}

Data = Mapping[str, Any]
"""The data of the page (`explore_data`)."""
_TOKENS, _MILLISECONDS = Kind("{:,.1f}".format), Kind(lambda time_s: f"{1e3 * time_s:.1f}")


def _table(name: str, title: str, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Html:
    return view_html(View([Table(name, title, columns, [*map(Row, rows)])]))


def _section(name: str, title: str, introduction: str, *parts: Html) -> HtmlSection:
    """Build a section that begins with HTML, and whose script has its name."""
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
    values, lengths = data["sliders"], data["crossings"]
    columns = (
        Column("model", "model", TEXT),
        Column("a", "a", COUNT, "attention heads"),
        Column("h", "h", COUNT, "the hidden size"),
        Column("sequence", "everything divided by t", _TOKENS, "with sequence parallelism"),
        Column("tensor", "tensor parallel alone", _TOKENS, "without sequence parallelism"),
    )
    rows = [
        (model, sizes["a"], sizes["h"], lengths[model]["sequence"], lengths[model]["tensor"])
        for model, sizes in data["models"].items()
    ]
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
        _table("crossings", "Sequence length at the crossing, in tokens", columns, rows),
    )


def ladder(data: Data) -> HtmlSection:
    """Build section 3: bytes of a layer for each strategy, relative to the baseline (Figure 7)."""
    shares, values = data["shares"], data["sliders"]
    columns = (
        Column("strategy", "strategy", TEXT),
        *(Column(model, model, SHARE, "bytes of a layer / the baseline's") for model in MODELS),
    )
    rows = [(text, *(shares[model][name] for model in MODELS)) for name, text in STRATEGIES.items()]
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
        _table("shares", "Figure 7: share of the baseline", columns, rows),
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
            figure(
                "growth",
                "Time relative to the baseline, by sequence length. Selective recompute adds "
                "almost nothing for short sequences. Full recompute adds about the same share at "
                "any length.",
            ),
        ),
        _table4(data),
    )


def _table4(data: Data) -> Html:
    """Build the times of a layer of the 22B model, simulated and measured."""
    paper, simulated = data["paper"]["table4_s"], data["tax"]["22B"]
    where = data["lengths"].index(data["models"]["22B"]["s"])
    columns = (
        Column("strategy", "strategy", TEXT),
        Column("forward_s", "forward", _MILLISECONDS),
        Column("paper_forward_s", "paper", _MILLISECONDS, "measured"),
        Column("backward_s", "backward", _MILLISECONDS),
        Column("recompute_s", "+ recompute", _MILLISECONDS),
        Column("paper_backward_s", "paper: both", _MILLISECONDS, "measured, with recompute"),
    )
    rows = []
    for name, text in STRATEGIES.items():
        strategy, measured = data["strategies"][name], paper[name]
        layer = simulated[strategy["split"]][strategy["recompute"]][where]
        backward = layer["backward_s"], layer["recompute_s"], measured["backward"]
        rows.append((text, layer["forward_s"], measured["forward"], *backward))
    title = "Table 4: one layer of the 22B model, simulated and measured, ms"
    return _table("table4", title, columns, rows)


def freed(data: Data) -> HtmlSection:
    """Build section 5: larger microbatches or fewer stages in the freed memory."""
    sizes = data["microbatches"]
    return _section(
        "freed",
        "5. Uses of the freed memory",
        """<p>Freed memory allows a <em>larger microbatch</em>, which uses the GPU better, or
<em>fewer GPUs</em> in fewer pipeline stages. More stages reduce the weights per GPU but hardly
its activations: the first stage holds one microbatch for each stage, so the activations of all
<var>L</var> layers for any number of stages (paper, Section 4.2.3). Doubling the microbatch does
not double the speed, because a sequence takes the same FLOPs. Only the utilization increases.
Each bar shows the fullest GPU in a simulated iteration, and each utilization is from the same
iteration.</p>""",
        bench(
            (
                models("freed"),
                slider("freed", "microbatch", sizes, "b", "microbatch size, simulated"),
            ),
            answer("freed"),
            figure(
                "freed",
                "Memory of the fullest GPU. The vertical line is the memory of an A100. MFU is the "
                "model FLOPs utilization. GPUs, stages and the number of microbatches are as in "
                "Table 3.",
            ),
            figure(
                "batch",
                "Model FLOPs utilization by microbatch size. Each line ends at the largest "
                "microbatch that fits.",
            ),
        ),
        element("h3", "Fewer GPUs"),
        bench(
            (element("div", id="pipeline-choice"),),
            answer("pipeline"),
            figure(
                "pipeline",
                "Memory of the fullest GPU for other numbers of stages, with the batch of Table 3 "
                "and 8 tensor-parallel ranks. Stages are interleaved as in Table 3 if the layers "
                "divide evenly.",
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


SECTIONS = (layer, crossing, ladder, tax, freed, sources)
