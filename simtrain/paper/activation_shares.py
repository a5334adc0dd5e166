"""Figure 7: activations memory as a percentage of the tensor-parallel baseline."""

from __future__ import annotations

import math
from dataclasses import replace

from simtrain.memory.working import pass_memory
from simtrain.paper.entries import Progress, Reproduction
from simtrain.paper.formulas import Formulas
from simtrain.paper.layer_work import saved_bytes
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_plan, paper_scenario
from simtrain.paper.published import published, reproduction
from simtrain.workload.passes import Pass

TECHNIQUES = ("sequence", "selective", PRESENT, "full")


def fig7(progress: Progress | None = None) -> Reproduction:
    """Reproduce the bars of Figure 7 and the figures in the text about them."""
    shares = {}
    for model in MODELS:
        baseline = paper_scenario(model, BASELINE)
        for technique in TECHNIQUES:
            scenario = paper_scenario(model, technique)
            paper = Formulas.of(scenario).layer_bytes / Formulas.of(baseline).layer_bytes
            ours = saved_bytes(scenario) / saved_bytes(baseline)
            shares[model, technique] = float(paper), ours
    means = {}
    for technique, words in published("fig7")["sections"]["means"]["paper"].items():
        ours = math.fsum(shares[model, technique][1] for model in MODELS) / len(MODELS)
        means[technique, *words] = ours
    core, savings = {}, {}
    for model, name in (("175B", "GPT-3"), ("530B", "MT-NLG")):
        everything, selective = (
            saved_bytes(paper_scenario(model, strategy)) for strategy in ("sequence", PRESENT)
        )
        formulas = Formulas.of(paper_scenario(model, "sequence"))
        core[f"5as/h of {name}"] = (everything - selective) / (formulas.sbh / formulas.t)
        savings[name] = 1 - selective / everything
    core["sequence length where it passes the rest, GPT-3's width"] = _crossover()
    return reproduction("fig7", shares=shares, means=means, attention_core=core, savings=savings)


def _crossover() -> int:
    """Shortest sequence for which GPT-3's attention core saves more than the rest of the layer."""
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
    """Bytes that a pass saves for sequences of another length."""
    microbatch = replace(one.options.microbatch, seq_length=seq_length)
    options = replace(one.options, microbatch=microbatch)
    return pass_memory(replace(one, options=options)).remaining_bytes
