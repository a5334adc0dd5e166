"""Data of the page: the terms of a layer's bytes, and results simulated when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from simtrain.base.resources import provenance
from simtrain.paper.entries import Progress, published
from simtrain.paper.layer import RECOMPUTES, layer_terms, recompute_tax, sizes_of
from simtrain.paper.models import MODELS, STRATEGIES, paper_scenario
from simtrain.paper.times import PASSES, TABLE4_MS

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
        "sliders": sliders(),
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


def sliders() -> dict[str, list[int]]:
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
