"""Figure 7: activation memory in percent of the tensor-parallel baseline."""

from __future__ import annotations

import math

from simtrain.paper.entries import Progress, Reproduction
from simtrain.paper.formulas import Formulas
from simtrain.paper.layer_terms import crossing_length, layer_terms, sizes_of
from simtrain.paper.layer_work import saved_bytes
from simtrain.paper.models import BASELINE, MODELS, PRESENT, paper_scenario
from simtrain.paper.published import published, reproduction

TECHNIQUES = ("sequence", "selective", PRESENT, "full")


def fig7(progress: Progress | None = None) -> Reproduction:
    """Reproduce the bars of Figure 7 and the numbers in the paper's text about them."""
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
    core["sequence length at which it exceeds the rest, GPT-3's width"] = _crossover()
    return reproduction("fig7", shares=shares, means=means, attention_core=core, savings=savings)


def _crossover() -> int:
    """Return the shortest sequence at which GPT-3's attention core saves more than the rest."""
    terms = layer_terms(sequence_parallel=False, recompute="none")
    sizes = sizes_of(paper_scenario("175B", BASELINE, "parallelism.tensor=1"))
    return math.floor(crossing_length(terms, sizes)) + 1
