"""Terminal page of `simtrain memory`, in GiB."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simtrain.iteration.memory.buffers import (
    FP8_WEIGHTS,
    FP32_GRADIENTS,
    GATHERED_PARAMETERS,
    GLOBAL,
    GRADIENT_BUCKET,
    OPTIMIZER_ARRAY,
    RECOMPUTED,
    USERBUFFERS,
    WORKING,
    WORKSPACES,
)
from simtrain.iteration.memory.report import COMPONENTS, PEAK_ERROR, MemoryReport, StageMemory
from simtrain.render.pages.tables import Bar, FittedTable, evenly_spaced, notes, table_of, verdict
from simtrain.units import format_seconds, gib

MEANINGS = {
    RECOMPUTED: "dropped in the forward pass and computed again for the backward pass",
    WORKING: "temporary activations and gradients, here in {op}",
    GLOBAL: "Megatron-LM's: inputs gathered by sequence parallelism, QKᵀ if unfused",
    GATHERED_PARAMETERS: "parameters of a layer that ZeRO gathers",
    GRADIENT_BUCKET: "a layer's unsharded gradients before ZeRO reduces them",
    FP32_GRADIENTS: "fp32 copy of 16-bit gradients for the optimizer step",
    OPTIMIZER_ARRAY: "temporary arrays of the unfused optimizer's kernels",
    USERBUFFERS: "receive buffers of pipelined GEMMs and collectives",
    FP8_WEIGHTS: "weights in fp8 for GEMMs, by rows and by columns",
    WORKSPACES: "scratch memory of cuBLAS and Transformer Engine, for the whole run",
}
"""Description of each buffer, by name."""
_MANY_STAGES, _ROWS = 16, 8
_MOMENT, _TIME = "peak\nduring", ">starting\nat"
_HYPHENATED = {
    "parameters": "param-\neters",
    "gradients": "gradi-\nents",
    "optimizer": "opti-\nmizer",
    "activations": "activa-\ntions",
    "allocator": "CUDA,\nNCCL,\nfrag.",
}


def memory_page(report: MemoryReport) -> RenderableType:
    """Show every stage's peak by component, and the buffers of the fullest stage."""
    remarks = notes([*peak_remarks(report), _outside_tensors(report)])
    parts: list[RenderableType] = [_components_table(report), *remarks, ""]
    if report.fullest.buffers_bytes:
        parts += [_buffers_table(report.fullest), ""]
    return Group(*parts, memory_verdict(report))


def peaks_table(report: MemoryReport) -> FittedTable:
    """Peak and capacity per stage; a long pipeline shows a selection of stages."""
    capacity, stages = report.capacity_bytes, report.stages
    if len(stages) > _MANY_STAGES:
        stages = tuple(stages[place] for place in evenly_spaced(len(stages), _ROWS))
    rows = [
        (
            str(stage.stage),
            gib(stage.peak_bytes),
            f"{stage.peak_bytes / capacity:.1%}",
            stage.peak_name,
            Bar(min(stage.peak_bytes / capacity, 1)),
        )
        for stage in stages
    ]
    return FittedTable(
        (">stage", ">peak\nGiB", ">%", _MOMENT, ""),
        rows,
        title=f"Peak memory per GPU, of {gib(capacity)} GiB",
        styles=[_style(stage, report) for stage in stages],
    )


def _style(stage: StageMemory, report: MemoryReport) -> str | None:
    return None if stage.peak_bytes <= report.capacity_bytes else "red"


def peak_remarks(report: MemoryReport) -> list[str]:
    """Explain the name of the pass at the fullest stage's peak; nothing if a step has the peak."""
    action = report.fullest.peak_action
    return [f"{action} is the {action.in_words}."] if action else []


def memory_verdict(report: MemoryReport) -> Text:
    """The closing line: whether it fits, and the free or missing memory."""
    fullest, free = report.fullest, -report.missing_bytes
    needs = f"stage {fullest.stage} needs {gib(fullest.peak_bytes)} GiB"
    of_capacity = f"{needs} of {gib(report.capacity_bytes)} GiB"
    limits = f"less than memory predictions can tell (±{PEAK_ERROR:.1%})" * report.is_close
    if not report.fits:
        words = ", ".join(filter(None, (of_capacity, f"{gib(-free)} GiB too much", limits)))
        return verdict(False, words, failure="DOES NOT FIT")
    if report.is_close:
        return Text(f"CLOSE: {of_capacity}; fits by {gib(free)} GiB, {limits}", "bold yellow")
    return verdict(True, f"{of_capacity}, {gib(free)} GiB free")


def _outside_tensors(report: MemoryReport) -> str:
    """Say what the memory outside tensors is for."""
    fragmentation = report.fullest.allocator_bytes - report.reserve_bytes
    return (
        f"Outside tensors: {gib(report.reserve_bytes)} GiB for driver, CUDA context and NCCL; on "
        f"stage {report.fullest.stage}, {gib(fragmentation)} GiB for fragmentation."
    )


def _components_table(report: MemoryReport) -> FittedTable:
    """Components per stage, with the pass and the time of the peak."""
    rows = [
        (
            str(stage.stage),
            *(gib(stage.components_bytes[name]) for name in COMPONENTS),
            gib(stage.peak_bytes),
            stage.peak_name,
            "" if stage.peak_time_s is None else format_seconds(stage.peak_time_s),
        )
        for stage in report.stages
    ]
    components = (f">{_HYPHENATED.get(name, name)}" for name in COMPONENTS)
    return FittedTable(
        (">stage", *components, ">peak", _MOMENT, _TIME),
        rows,
        optional=(_TIME, _MOMENT),
        title="Peak memory by stage, GiB",
        styles=[_style(stage, report) for stage in report.stages],
    )


def _buffers_table(stage: StageMemory) -> Table:
    rows = [
        (name, gib(num_bytes), MEANINGS[name].format(op=stage.peak_op))
        for name, num_bytes in stage.buffers_bytes.items()
    ]
    title = f"Buffers of stage {stage.stage} at its peak"
    return table_of("buffer", ">GiB", "what it is", title=title, rows=rows)
