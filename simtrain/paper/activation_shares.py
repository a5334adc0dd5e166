"""Figure 7: activations memory as a percentage of the tensor-parallel baseline."""

from __future__ import annotations

import math
from dataclasses import replace

from simtrain.memory.working import pass_memory
from simtrain.paper.comparison import Progress
from simtrain.paper.entries import NUMBER, PERCENT, Entry, Limit, Reproduction, Section
from simtrain.paper.formulas import Formulas
from simtrain.paper.layer_work import saved_bytes
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_plan, paper_scenario
from simtrain.workload.passes import Pass

TECHNIQUES = ("sequence", "selective", PRESENT, "full")
SHARES = "activations memory, percentage of the tensor-parallel baseline"
_BY_MODEL_NOTE = "Paper: the ratio of two rows of Table 2. Ours: of what the ops of a layer keep."
_TEXT_NOTE = (
    "Paper: Section 6.1. Its words are rounded figures of four models: by its own Table 2 one "
    "technique alone leaves 49 to 67 %, both leave 16 to 20.2 % (5x, under 20 % on average), full "
    "recompute 7.6 to 9.5 %. The limits are the words, as far as the mean of the four models can "
    "bear them; the figures above are held to Table 2 exactly."
)
_SECTION_5_NOTE = (
    "Paper: Section 5. 5as/h is what the ops of the attention core keep, over sbh/t. The savings "
    "are rounded in the text (80/114 and 64/98): half a point. The two terms cross where 34 = "
    "5as/h, at s = 870.4 for the width of GPT-3: the first whole s beyond is 871."
)


def fig7(progress: Progress | None = None) -> Reproduction:
    """The bars of Figure 7 and the figures that the text draws from them."""
    shares = _shares()
    sections = (shares, _text(shares), *_selective())
    return Reproduction("Figure 7: activations memory against tensor parallelism alone", sections)


def _shares() -> Section:
    entries = []
    for model in MODELS:
        baseline = paper_scenario(model, BASELINE)
        for technique in TECHNIQUES:
            scenario = paper_scenario(model, technique)
            paper = float(Formulas.of(scenario).layer_bytes / Formulas.of(baseline).layer_bytes)
            ours = saved_bytes(scenario) / saved_bytes(baseline)
            entries.append(Entry((model, technique), paper, ours, Limit.exactly(paper)))
    return Section(SHARES, PERCENT, ("model", "strategy"), tuple(entries), _BY_MODEL_NOTE)


def _text(shares: Section) -> Section:
    def mean(technique: str) -> float:
        return math.fsum(shares.value(model, technique) for model in MODELS) / len(MODELS)

    return Section(
        "mean over the models, against the words of the text",
        PERCENT,
        ("strategy", "the paper says"),
        (
            Entry(("sequence", "nearly half"), 0.5, mean("sequence"), Limit(0.4, 0.65)),
            Entry(("selective", "nearly half"), 0.5, mean("selective"), Limit(0.4, 0.65)),
            Entry((PRESENT, "under 20 %"), 0.2, mean(PRESENT), Limit(highest=0.2)),
            Entry(("full", "at 10 %"), 0.1, mean("full"), Limit.within(0.1, 0.015)),
        ),
        _TEXT_NOTE,
    )


def _selective() -> tuple[Section, Section]:
    factors, savings = [], []
    for model, name, factor, saving in (("175B", "GPT-3", 80, 0.70), ("530B", "MT-NLG", 64, 0.65)):
        everything, selective = (
            saved_bytes(paper_scenario(model, strategy)) for strategy in ("sequence", PRESENT)
        )
        formulas = Formulas.of(paper_scenario(model, "sequence"))
        unit = formulas.s * formulas.b * formulas.h / formulas.t
        ours = (everything - selective) / unit
        factors.append(Entry((f"5as/h of {name}",), factor, ours, Limit.exactly(factor)))
        saved = 1 - selective / everything
        savings.append(Entry((name,), saving, saved, Limit.within(saving, 0.005)))
    crossover = Entry(
        ("sequence length where it passes the rest, GPT-3's width",),
        870.4,
        _crossover(),
        Limit(870.4, 871.4),
    )
    return (
        Section(
            "what the attention core keeps",
            NUMBER,
            ("figure",),
            (*factors, crossover),
            _SECTION_5_NOTE,
        ),
        Section("what selective recompute saves", PERCENT, ("model",), tuple(savings), ""),
    )


def _crossover() -> int:
    """The shortest sequence for which the attention core of GPT-3 keeps more than the rest."""
    everything, selective = (
        paper_plan(paper_scenario("175B", strategy, "parallelism.tensor=1")).layers_pass(1, "F")
        for strategy in (BASELINE, "selective")
    )
    length = kept = rest = 0
    while kept <= 2 * rest:
        length += 1
        kept, rest = (_kept_bytes(one, length) for one in (everything, selective))
    return length


def _kept_bytes(one: Pass, seq_length: int) -> int:
    """What a pass keeps of sequences of another length."""
    microbatch = replace(one.options.microbatch, seq_length=seq_length)
    options = replace(one.options, microbatch=microbatch)
    return pass_memory(replace(one, options=options)).left_bytes
