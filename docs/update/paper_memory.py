"""Published and simulated figures of memory and overhead, for docs/validation.md."""

from collections.abc import Iterator

from docs.update.request import percent
from simtrain.paper import memory, targets
from simtrain.paper.entries import PaperSection, Reproduction
from simtrain.paper.models import PRESENT

GIB = 2**30


def entries(results: dict[str, targets.TargetResult], target: str, name: str) -> PaperSection:
    """Return a section of a reproduced target."""
    result = results[target]
    assert isinstance(result, Reproduction)
    return result.section(name)


Line = tuple[str, str, str, str]
"""Target of `simtrain reproduce`, name of the figure, published value, simulated value."""

BARS_GIB = {"22B": "59.3 / 9.6", "175B": "66.8 / 12.4", "530B": "114 / 23.1", "1T": "131 / 26.6"}
"""Heights of Figure 1's bars, as published by readers of the plot."""


def lines(results: dict[str, targets.TargetResult]) -> list[Line]:
    """Return the lines of the table, from the reproduced targets by name."""
    return [*_memory(results), *_times(results), *_zero(results)]


def figures(results: dict[str, targets.TargetResult]) -> dict[str, str]:
    """Return the figures in the text below the table, by name."""
    ends = [entry.simulated for entry in entries(results, "fig1", "embeddings").entries]
    split = entries(results, "fig9", "savings").value(memory.SPLIT)
    kept = [int(entry.simulated) for entry in entries(results, "appendix-c", "kept").entries]
    overheads = entries(results, "fig8", "overheads")
    lowest = {
        strategy: min(
            overheads.error(entry) or 0 for entry in overheads.entries if strategy in entry.labels
        )
        for strategy in ("full", PRESENT)
    }
    return {
        "embeddings": f"{ends[0] / GIB:.1f} to {ends[-1] / GIB:.1f} GiB",
        "split_outputs": f"{split / GIB:.2f} GiB",
        "kept_175b": f"{kept[1]} of {kept[0]}",
        "kept_530b": f"{kept[5]} of {kept[4]}",
        "full_below": f"{-100 * lowest['full']:.1f} points",
        "present_below": f"{-100 * lowest[PRESENT]:.1f}",
    }


def _percent(*fractions: float) -> str:
    return " / ".join(percent(fraction) for fraction in fractions)


def _scaled(scale: float, digits: int, *sizes: float) -> str:
    return " / ".join(f"{size / scale:.{digits}f}" for size in sizes)


def _memory(results: dict[str, targets.TargetResult]) -> Iterator[Line]:
    activations = entries(results, "fig1", "activations")
    for model, bars in BARS_GIB.items():
        both = [activations.value(model, strategy) for strategy in ("baseline", PRESENT)]
        what = f"{model}: activations of baseline / present work, GiB"
        yield "fig1", what, bars, _scaled(GIB, 1, *both)
    words = entries(results, "fig7", "means")
    names = ("sequence parallelism alone", "selective recompute alone", "both", "full recompute")
    printed = ('"nearly half"', '"nearly half"', '"under 20 %"', "10 %")
    for name, published, entry in zip(names, printed, words.entries, strict=True):
        yield "fig7", f"{name}, mean of the models", published, _percent(entry.simulated)
    saves = [entry.simulated for entry in entries(results, "fig7", "savings").entries]
    what = "selective recompute saves, GPT-3 / MT-NLG"
    yield "fig7", what, "70 % / 65 %", _percent(*saves)
    size = entries(results, "fig9", "savings").value(memory.WHOLE)
    what = "deallocating outputs saves on the first stage, GiB"
    yield "fig9", what, "2.73", _scaled(GIB, 2, size)


def _times(results: dict[str, targets.TargetResult]) -> Iterator[Line]:
    overheads = entries(results, "fig8", "overheads")
    for model, published in (("22B", "39 % / 4 %"), ("530B", "36 % / 2 %"), ("1T", "36 % / 2 %")):
        both = [overheads.value(model, strategy) for strategy in ("full", PRESENT)]
        what = f"{model}: overhead of full recompute / present work"
        yield "fig8", what, published, _percent(*both)
    mfu = entries(results, "appendix-c", "utilization")
    gains = entries(results, "appendix-c", "gains")
    for model, published in (("175B", "52.3 %, +0.7"), ("530B", "56.4 %, +0.4")):
        ours = _percent(mfu.value(model, memory.KEEPING))
        what = f"{model}: MFU, and points gained"
        yield "appendix-c", what, published, f"{ours}, {100 * gains.value(model):+.2f}"


def _zero(results: dict[str, targets.TargetResult]) -> Iterator[Line]:
    parts, activations, checkpointed = (
        [entry.simulated for entry in entries(results, "zero", title).entries]
        for title in ("parts", "activations", "checkpointing")
    )
    yield "zero", "weights / states / fp32 buffer, GB", "3 / 24 / 6", _scaled(1e9, 1, *parts)
    counted, everything = (
        _scaled(1e9, 1, *both)
        for both in ((activations[0], checkpointed[0]), (activations[1], checkpointed[2]))
    )
    yield "zero", "activations / with checkpointing, as the text counts, GB", "60 / 8", counted
    yield "zero", "activations / with checkpointing, everything kept, GB", "–", everything
