"""The memory of each stage at its peak, in GiB: `simtrain run --show memory`."""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.iteration.memory.buffers import (
    FP4_WEIGHTS,
    FP8_WEIGHTS,
    FP32_GRADIENTS,
    GATHERED_PARAMETERS,
    GLOBAL,
    GRADIENT_BUCKET,
    OPTIMIZER_ARRAY,
    OTHER_TENSORS,
    RECOMPUTED,
    USERBUFFERS,
    WORKING,
    WORKSPACES,
)
from simtrain.iteration.memory.report import COMPONENTS, MemoryReport, StageMemory
from simtrain.units import gib
from simtrain.views.kinds import BAR, GIB, NUMBER, SECONDS, SHARE, TEXT, WHOLE_TEXT
from simtrain.views.view import Cell, Column, Row, Style, Table, View, remarks, value_of

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
    FP4_WEIGHTS: "weights in fp4 for GEMMs, by rows and by columns",
    OTHER_TENSORS: "the batch, and tensors of modules that are no parameters",
    WORKSPACES: "scratch memory of cuBLAS and Transformer Engine, for the whole run",
}
"""Description of each buffer, by name."""
_MANY_STAGES, _ROWS = 16, 8
_HYPHENATED = {
    "parameters": "param-\neters",
    "gradients": "gradi-\nents",
    "optimizer": "opti-\nmizer",
    "activations": "activa-\ntions",
    "allocator": "CUDA,\nNCCL,\nfrag.",
}
_STAGE = Column("stage", "stage", NUMBER)
_MOMENT = Column("peak_name", "peak\nduring", WHOLE_TEXT, "the pass or the step that has the peak")


def memory_view(report: MemoryReport) -> View:
    """Every stage's peak by component, and the buffers of the fullest stage."""
    buffers = [_buffers(report.fullest)] if report.fullest.buffers_bytes else []
    said = [memory_sentence(report), _peak_remark(report), _outside_tensors(report)]
    said += [_interval(report), *_on_host(report)]
    return View([_components(report), remarks(said), *buffers])


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `count`: the first, the last, some between."""
    shown, last = min(count, most), count - 1
    return [round(place * last / max(shown - 1, 1)) for place in range(shown)]


def peaks_table(report: MemoryReport) -> Table:
    """Peak and capacity per stage; people see a selection of the stages of a long pipeline."""
    stages = report.stages
    if len(stages) > _MANY_STAGES:
        stages = tuple(stages[place] for place in evenly_spaced(len(stages), _ROWS))
    columns = (
        _STAGE,
        Column("peak_bytes", "peak\nGiB", GIB, "the most bytes that a GPU of the stage holds"),
        Column("share", "%", SHARE, "of the capacity"),
        _MOMENT,
        Column("", "", BAR),
    )
    title = f"Peak memory per GPU, of {gib(report.capacity_bytes)} GiB"
    names = [column.name for column in columns[:-1]]
    data = [
        {name: value_of(cell) for name, cell in zip(names, _peak(stage, report), strict=True)}
        for stage in report.stages
    ]
    rows = [
        Row(
            (*_peak(stage, report), stage.peak_bytes / report.capacity_bytes), _style(stage, report)
        )
        for stage in stages
    ]
    return Table("peaks", title, columns, rows, optional=("",), data=data)


def _peak(stage: StageMemory, report: MemoryReport) -> tuple[int, int, float, Cell]:
    share = stage.peak_bytes / report.capacity_bytes
    return stage.stage, stage.peak_bytes, share, _moment(stage)


def _moment(stage: StageMemory) -> Cell:
    action = stage.peak_action
    return Cell(stage.peak_name, action.in_short() if action else stage.peak_name)


def _style(stage: StageMemory, report: MemoryReport) -> Style | None:
    return None if stage.peak_bytes <= report.capacity_bytes else "bad"


def _peak_remark(report: MemoryReport) -> str:
    """Say which pass or step has the peak of the fullest stage: narrow tables omit it."""
    fullest = report.fullest
    return f"Stage {fullest.stage} has its peak during the {fullest.peak_words}."


def memory_sentence(report: MemoryReport) -> str:
    """Say which stage is the fullest, and the free or missing memory."""
    fullest, free = report.fullest, -report.missing_bytes
    needs = f"Stage {fullest.stage} needs {gib(fullest.peak_bytes)} GiB"
    rest = f"{gib(abs(free))} GiB {'free' if free >= 0 else 'too much'}"
    shortage = report.host.shortage if free >= 0 and report.host and not report.host.fits else ""
    of_capacity = f"{needs} of {gib(report.capacity_bytes)} GiB, {rest}"
    return "; ".join(filter(None, (of_capacity, report.fit.doubt, shortage))) + "."


def _interval(report: MemoryReport) -> str:
    return (
        f"90 % interval of the peak of stage {report.fullest.stage}: {report.peak_interval.ends}, "
        f"{report.peak_interval.basis}."
    )


def _on_host(report: MemoryReport) -> Iterator[str]:
    """Say how much memory a node's host needs, if something is offloaded to it."""
    if host := report.host:
        known = (
            f"of {gib(host.capacity_bytes)} GiB" if host.capacity_bytes else "(its size is open)"
        )
        yield f"Offloaded states on the host: {gib(host.needed_bytes)} GiB per node {known}."


def _outside_tensors(report: MemoryReport) -> str:
    fragmentation = report.fullest.allocator_bytes - report.reserve_bytes
    return (
        f"Outside tensors: {gib(report.reserve_bytes)} GiB for driver, CUDA context and NCCL; on "
        f"stage {report.fullest.stage}, {gib(fragmentation)} GiB for fragmentation."
    )


def _components(report: MemoryReport) -> Table:
    rows = [
        Row(
            (
                stage.stage,
                *(stage.components_bytes[name] for name in COMPONENTS),
                stage.peak_bytes,
                _moment(stage),
                stage.peak_time_s,
            ),
            _style(stage, report),
        )
        for stage in report.stages
    ]
    components = (
        Column(f"{name}_bytes", _HYPHENATED.get(name, name), GIB, "at the stage's peak")
        for name in COMPONENTS
    )
    columns = (
        _STAGE,
        *components,
        Column("peak_bytes", "peak", GIB, "the sum of the components"),
        _MOMENT,
        Column("peak_time_s", "starting\nat", SECONDS, "when this pass or step starts"),
    )
    optional = ("peak_time_s", "peak_name")
    return Table("stages", "Peak memory by stage, GiB", columns, rows, optional=optional)


def _buffers(stage: StageMemory) -> Table:
    rows = [
        Row((name, num_bytes, MEANINGS[name].format(op=stage.peak_op)))
        for name, num_bytes in stage.buffers_bytes.items()
    ]
    columns = (
        Column("buffer", "buffer", TEXT),
        Column("num_bytes", "GiB", GIB, "at the stage's peak"),
        Column("meaning", "what it is", TEXT),
    )
    return Table("buffers", f"Buffers of stage {stage.stage} at its peak", columns, rows)
