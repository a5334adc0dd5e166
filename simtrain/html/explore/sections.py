"""The sections of the page: the paper's argument, a figure each."""

from __future__ import annotations

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined, table
from simtrain.html.explore.controls import (
    answer,
    bench,
    choice,
    figure,
    models,
    slider,
    sliders,
    switch,
)
from simtrain.html.figures import Figures
from simtrain.paper.models import BASELINE, MODELS, PRESENT

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


def _section(name: str, title: str, *parts: Html) -> Section:
    scripts = ("explore/state.js", "explore/draw.js", f"explore/{name}.js")
    return Section(name, title, joined(parts), ("explore/explore.css",), scripts)


def layer(figures: Figures) -> Section:
    """The bytes of a layer, tensor by tensor (Section 4)."""
    values = figures.at("sliders").value
    return _section(
        "layer",
        "1. What one layer keeps",
        Html(
            """<p>An <em>activation</em> is a tensor that the forward pass makes and the
backward pass reads. A matrix product keeps its input, a softmax its output, a GeLU its input, a
dropout its mask. An element takes two bytes, in a mask one (paper, Section 4.1). Go through the
four steps and watch the bars. Tensor parallelism divides the tensors inside attention and MLP
by <var>t</var> (Equation 2), but leaves layer norms, dropouts and the inputs of both blocks
<mark>whole on every rank</mark>. Sequence parallelism divides these too, along the sequence
(Equation 4). Selective recompute drops the tensors that grow with <var>s</var><sup>2</sup>:
large to keep, cheap to compute again (Equation 6).</p>"""
        ),
        bench(
            (
                choice("layer", "step", "Step", STEPS),
                models("layer"),
                element("div", sliders("layer", "sbhat", values), class_="sliders"),
                choice("layer", "recompute", "Recompute", RECOMPUTE),
                switch("layer", "sequence", "sequence parallelism"),
            ),
            answer("layer", element("data", id="layer-bytes", class_="big")),
            element("p", id="layer-note", class_="note", role="status", hidden=True),
            figure(
                "layer",
                "Each row is a tensor that one GPU still holds after the forward pass of a layer. "
                "A dashed outline is what tensor parallelism alone keeps there. simtrain reads "
                "the formulas off its engine: it records the layer, doubles one variable after "
                "another, and records it again.",
            ),
        ),
    )


def crossing(figures: Figures) -> Section:
    """The length at which the attention core passes the rest (Section 5)."""
    values, lengths = figures.at("sliders").value, figures.at("crossings")
    rows = [
        (
            model,
            figures.at("models", model, "a").count,
            figures.at("models", model, "h").count,
            lengths.at(model, "sequence").number(_tenths),
            lengths.at(model, "tensor").number(_tenths),
        )
        for model in MODELS
    ]
    return _section(
        "crossing",
        "2. Where attention overtakes",
        Html(
            """<p>A layer has two halves. Most tensors grow with <var>s</var>. The attention
core (softmax, its dropout and the mask) has an <var>s</var> × <var>s</var> matrix for each head
and grows with <var>s</var><sup>2</sup>. On logarithmic axes its line is twice as steep. It
overtakes where 5<var>as</var>/<var>h</var> = 34 (Equation 1). Beyond this length, selective
recompute drops more than half of the layer (paper, Section 5). More heads move the crossing to
the left, a wider model moves it to the right.</p>"""
        ),
        bench(
            (
                models("crossing"),
                element("div", sliders("crossing", "sah", values), class_="sliders"),
            ),
            answer("crossing"),
            figure(
                "crossing",
                "Bytes of one layer on one GPU, by sequence length; both axes are logarithmic. "
                "Circles mark the crossings. Tensor parallelism alone leaves part of the layer "
                "undivided (dashed), so there the attention core overtakes later.",
            ),
        ),
        table(
            "Sequence length at the crossing, in tokens",
            ("model", ">a", ">h", ">everything divided by t", ">tensor parallel alone"),
            rows,
        ),
    )


def ladder(figures: Figures) -> Section:
    """Bytes of a layer under each strategy, as a share of the baseline (Figure 7)."""
    shares, values = figures.at("shares"), figures.at("sliders").value
    rows = [
        (STRATEGIES[name], *(shares.at(model, name).percent for model in MODELS))
        for name in STRATEGIES
    ]
    return _section(
        "ladder",
        "3. The ladder",
        Html(
            """<p>Sequence parallelism and selective recompute each nearly halve what a layer
keeps. Together they leave about a fifth of the tensor-parallel baseline. That is only twice
what full recompute leaves, which keeps nothing but the input of each layer (paper, Section 6.1,
Figure 7).</p>"""
        ),
        bench(
            (models("ladder"), element("div", sliders("ladder", "st", values), class_="sliders")),
            answer("ladder"),
            figure(
                "ladder",
                "Bytes that one layer keeps on one GPU. 100% is tensor parallelism alone.",
            ),
        ),
        table("Figure 7: share of the baseline", ("strategy", *(f">{m}" for m in MODELS)), rows),
    )


def tax(figures: Figures) -> Section:
    """Time of a layer with and without recompute (Table 4, Figure 8)."""
    lengths = figures.at("lengths").value
    return _section(
        "tax",
        "4. The recompute tax",
        Html(
            """<p>Recompute buys memory with time. Full recompute runs the whole forward pass
again: a third more arithmetic. Selective recompute runs only the attention core again, a few
percent of a forward pass (paper, Section 5). The core grows with the sequence, and so does this
tax. The times are simulated, kernel by kernel, on the paper's A100s. Diamonds are the paper's
measurements: Table 4 for the 22B model, to which the hardware profile was fitted, and Section
6.2 for 530B and 1T.</p>"""
        ),
        bench(
            (
                models("tax"),
                slider("tax", "length", lengths, _label("s", "sequence length, simulated")),
                switch("tax", "sequence", "sequence parallelism"),
            ),
            answer("tax"),
            figure(
                "tax",
                "Time of one layer, forward and backward. Percentages are against the baseline: "
                "tensor parallelism alone, nothing recomputed.",
            ),
            figure(
                "growth",
                "Time added to the baseline, by sequence length. Selective recompute is nearly "
                "free for short sequences. Full recompute costs about the same at any length.",
            ),
        ),
        _table4(figures),
    )


def _table4(figures: Figures) -> Html:
    paper, ours = figures.at("paper", "table4_s"), figures.at("tax", "22B")
    where = figures.at("lengths").value.index(figures.at("models", "22B", "s").value)
    rows = []
    for name, text in STRATEGIES.items():
        strategy = figures.at("strategies", name).value
        simulated = ours.at(strategy["split"], strategy["recompute"], where)
        numbers = (
            simulated.at("forward_s"),
            paper.at(name, "forward"),
            simulated.at("backward_s"),
            simulated.at("recompute_s"),
            paper.at(name, "backward"),
        )
        rows.append((text, *(one.number(_milliseconds) for one in numbers)))
    headings = ("strategy", ">forward", ">paper", ">backward", ">+ recompute", ">paper: both")
    return table("Table 4: one layer of the 22B model, simulated and measured, ms", headings, rows)


def freed(figures: Figures) -> Section:
    """What the freed memory buys: larger microbatches, or fewer stages."""
    return _section(
        "freed",
        "5. What memory buys",
        Html(
            """<p>Memory was the obstacle, not the goal. Freed memory holds a <em>larger
microbatch</em>, which fills the GPU better, or lets <em>fewer GPUs</em> hold the model, in
fewer pipeline stages. More stages free weights but hardly any activations: the first stage
holds a microbatch for each stage, so <var>L</var> layers' worth whatever the number of stages
(paper, Section 4.2.3). Twice the
microbatch is not twice the speed: a sequence costs the same FLOPs in either. What rises is the
utilization. Each bar is the fullest GPU of a whole iteration, replayed action by
action. Each utilization is a simulated iteration.</p>"""
        ),
        bench(
            (
                models("freed"),
                slider(
                    "freed",
                    "microbatch",
                    figures.at("microbatches").value,
                    _label("b", "microbatch size, simulated"),
                ),
            ),
            answer("freed"),
            figure(
                "freed",
                "Memory of the fullest GPU. The vertical line is what an A100 has. MFU is the "
                "model FLOPs utilization. GPUs, stages and the number of microbatches are those "
                "of Table 3.",
            ),
            figure(
                "batch",
                "Model FLOPs utilization by microbatch size. A line ends where the memory ends.",
            ),
        ),
        element("h3", "Or fewer GPUs"),
        bench(
            (element("div", id="pipeline-choice"),),
            answer("pipeline"),
            figure(
                "pipeline",
                "The same for other numbers of stages, with Table 3's batch, on 8 tensor-parallel "
                "ranks. Stages are interleaved as in Table 3 if the layers divide evenly.",
            ),
        ),
    )


def sources(figures: Figures) -> Section:
    """Where the numbers come from."""
    return Section(
        "sources",
        "Sources",
        Html(
            """<p>All bytes and times come from simtrain's engine; the page has no formula of
its own. simtrain records a transformer layer op by op, as Megatron-LM of 2022 ran it. The
tensors that are still held after the forward pass are the activations. Their bytes follow the
sliders exactly: each formula is measured on the engine when the page is written, and tests
compare the sums with the engine's bytes at random sizes. Times cannot be computed in a page.
They are simulated beforehand for the positions that you can choose. <code>simtrain reproduce
all</code> compares them with the paper.</p>
<p>Two numbers that readers meet elsewhere need a remark. The paper says that selective
recompute adds 2.7% (GPT-3) and 1.6% (MT-NLG) of FLOPs: these are shares of the forward pass;
of forward and backward together they are a third. And a crossing at about 870 tokens, quoted in
explanations of the paper, is that of the 175B model; each model has its own.</p>"""
        ),
        ("explore/explore.css",),
        ("explore/start.js",),
    )


def _label(name: str, words: str) -> Html:
    return joined((element("var", name), f" {words}"))


def _tenths(value: float) -> str:
    return f"{value:,.1f}"


def _milliseconds(time_s: float) -> str:
    return f"{1e3 * time_s:.1f}"


SECTIONS = (layer, crossing, ladder, tax, freed, sources)
