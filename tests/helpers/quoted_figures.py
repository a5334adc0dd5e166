"""The figures that docs/validation.md quotes of what is reproduced, as it writes them."""

from collections.abc import Iterator

from simtrain import paper
from simtrain.paper import kept_microbatches, stage_memory
from simtrain.paper.entries import Reproduction, Section
from simtrain.paper.models import MODELS, PRESENT

GIB = 2**30


def entries(known: dict[str, paper.Reproduced], target: str, name: str) -> Section:
    result = known[target]
    assert isinstance(result, Reproduction)
    return result.section(name)


def quoted(known: dict[str, paper.Reproduced]) -> list[tuple[str, str, str]]:
    """What the section quotes, as it writes it."""
    return [*quoted_memory(known), *quoted_times(known), *quoted_zero(known)]


def percent(*fractions: float) -> str:
    return " / ".join(f"{100 * fraction:.1f} %" for fraction in fractions)


def scaled(scale: float, digits: int, *sizes: float) -> str:
    return " / ".join(f"{size / scale:.{digits}f}" for size in sizes)


def quoted_memory(known: dict[str, paper.Reproduced]) -> Iterator[tuple[str, str, str]]:
    held = entries(known, "fig1", "activations")
    for model in MODELS:
        both = [held.value(model, strategy) for strategy in ("baseline", PRESENT)]
        yield "fig1", f"{model}: activations of baseline / present work, GiB", scaled(GIB, 1, *both)
    words = entries(known, "fig7", "means")
    names = ("sequence parallelism alone", "selective recompute alone", "both", "full recompute")
    for name, entry in zip(names, words.entries, strict=True):
        yield "fig7", f"{name}, mean of the models", percent(entry.simulated)
    saves = entries(known, "fig7", "savings")
    yield (
        "fig7",
        "selective recompute saves, GPT-3 / MT-NLG",
        percent(*(entry.simulated for entry in saves.entries)),
    )
    saved = entries(known, "fig9", "savings")
    size = saved.value(stage_memory.WHOLE)
    yield "fig9", "deallocating outputs saves on the first stage, GiB", scaled(GIB, 2, size)


def quoted_times(known: dict[str, paper.Reproduced]) -> Iterator[tuple[str, str, str]]:
    overheads = entries(known, "fig8", "overheads")
    for model in ("22B", "530B", "1T"):
        both = [overheads.value(model, strategy) for strategy in ("full", PRESENT)]
        yield "fig8", f"{model}: overhead of full recompute / present work", percent(*both)
    mfu = entries(known, "appendix-c", "utilization")
    gains = entries(known, "appendix-c", "gains")
    for model in ("175B", "530B"):
        gain = f"{percent(mfu.value(model, kept_microbatches.KEEPING))}, "
        gain += f"{100 * gains.value(model):+.2f}"
        yield "appendix-c", f"{model}: MFU, and points gained", gain


def quoted_zero(known: dict[str, paper.Reproduced]) -> Iterator[tuple[str, str, str]]:
    parts, held, checkpointed = (
        [entry.simulated for entry in entries(known, "zero", title).entries]
        for title in (
            "parts",
            "activations",
            "checkpointing",
        )
    )
    yield "zero", "weights / states / fp32 buffer, GB", scaled(1e9, 1, *parts)
    counted = scaled(1e9, 1, held[0], checkpointed[0])
    yield "zero", "activations / with checkpointing, as the text counts, GB", counted
    everything = scaled(1e9, 1, held[1], checkpointed[2])
    yield "zero", "activations / with checkpointing, everything kept, GB", everything
