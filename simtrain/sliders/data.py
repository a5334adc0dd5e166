"""Tasks and durations from which a page computes an iteration on another cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simtrain.durations.model import DurationModel
from simtrain.engine import Program
from simtrain.engine.compiled import Ints
from simtrain.memory.report import curve_moments
from simtrain.packing import packed
from simtrain.programs.parts import (
    BucketPart,
    IterationPart,
    OptimizerPart,
    PassPart,
    ReceiveGatherPart,
    SynchronizationPart,
    TransferPart,
)
from simtrain.programs.pass_tasks import pass_program
from simtrain.programs.seconds import layers_of_span, passes_of, whole_pass
from simtrain.report.activities import ACTIVITIES, RECOMPUTE, Bars
from simtrain.report.result import Result
from simtrain.sentences import Number, Sentence, sentence_json
from simtrain.sliders.grid import BASE, FACTORS, NETWORK, NODE, SLIDERS, Grid, Table, axes_of
from simtrain.workload.issue import Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import Pass
from simtrain.workload.record import record_pass
from simtrain.workload.work import Work


def slider_data(result: Result) -> dict[str, Any]:
    """Return the tasks of an iteration and of its passes, and all durations that sliders change.

    `assets/engine.js` of the page computes the iteration from them:

    - `tables`: values at all positions of the sliders in `axes`; the last axis varies fastest.
    - `passes`, `iteration`: programs. `after` lists the tasks that each task waits for. `links`
      lists the links that the tasks of each stream share, or is null if tasks share no links.
    - `recompute` of a pass: its tasks that recompute.
    - `bars`: task, stage, row, activity, chunk and microbatch of each bar of the timeline.
    - `memory_moments`: when each value of memory over time begins (`memory.report.curve_moments`),
      for all stages one after another.
    - `parts` of a program: seconds and load, shared by all tasks of a part. The seconds are those
      of the pass `pass`, of its `layers`, or the largest of `sums`, each a sum of tables. The load
      is a table, or the page computes it from `adapter_bytes`.

    A slider that changes no duration is omitted.
    """
    return _Builder(result).data()


@dataclass
class _Builder:
    result: Result
    tables: list[Table] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = self.result.seconds
        self.machine, self.plan = self.seconds.machine, self.result.plan
        self.grid = Grid(self.result.profile)
        self.passes = dict(passes_of(self.plan))

    def data(self) -> dict[str, Any]:
        """Return the data as JSON."""
        passes = [self.pass_data(one) for one in self.passes.values()]
        tasks, program = self.result.iteration.tasks, self.result.timeline.program
        iteration = _graph(program, tasks.part_of) | {"parts": [*map(self.part, tasks.parts)]}
        if program.link_loads:
            iteration["adapter_share"] = self.number(
                "adapter_share", ("network",), lambda model: model.profile.adapter_share_bytes_per_s
            )
        axes = {name for table in self.tables for name in table.axes}
        return {
            "factors": FACTORS,
            "base": BASE,
            "sliders": [self.slider(name) for name in SLIDERS if name in axes],
            "tables": {
                "axes": [table.axes for table in self.tables],
                "values": packed(np.concatenate([table.values.ravel() for table in self.tables])),
            },
            "passes": passes,
            "iteration": iteration,
            "bars": self.bars(),
            "memory_moments": self.memory_moments(),
        }

    def bars(self) -> dict[str, Any]:
        """Return the bars of the timeline before `report.activities` joins and cuts them."""
        task, bars = Bars.of_tasks(self.result)
        # Sorted by activity, microbatches have small differences, which compress well.
        by_activity = np.argsort(bars.activity, kind="stable")
        columns = {
            "task": task,
            **{name: getattr(bars, name) for name in ("stage", "row", "activity", "chunk")},
            "microbatch": bars.microbatch[by_activity],
        }
        return {
            "num_stages": self.result.num_stages,
            "recompute": ACTIVITIES.index(RECOMPUTE),
            **{name: _differences(column) for name, column in columns.items()},
        }

    def memory_moments(self) -> dict[str, str]:
        """Return when each value of memory over time begins."""
        tasks, stages = self.result.iteration.tasks, range(self.result.num_stages)
        moments = [curve_moments(self.plan, tasks, stage) for stage in stages]
        return _differences(np.concatenate(moments))

    def slider(self, name: str) -> dict[str, Any]:
        """Return a slider: its label, and the text of each position, such as "2×, 624 TFLOP/s"."""
        one, profile = SLIDERS[name], self.result.profile
        positions = (
            Sentence(Number(factor, f"{factor:g}×"), ", ", one.amount(one.moved(profile, factor)))
            for factor in FACTORS
        )
        return {"name": name, "label": one.label, "positions": [*map(sentence_json, positions)]}

    def pass_data(self, one: Pass) -> dict[str, Any]:
        """Return the program of a pass. Part 0 is a launch; the others are distinct `Work`."""
        record, machine = record_pass(one), self.machine.pass_machine(one.options.launch_s)
        program = pass_program(record, machine)
        works = [op.work for op in record.ops]
        numbers = {work: place for place, work in enumerate(dict.fromkeys(works), start=1)}
        part_of = np.zeros(program.num_tasks, np.int32)
        part_of[1::2] = [numbers[work] for work in works]
        parts: list[dict[str, Any]] = [{"sums": [[self.constant(machine.launch_s)]]}]
        for work in numbers:
            parts.append({"sums": [[self.of_work(work)]]})
            if program.link_loads:
                parts[-1]["load"] = self.load_of(work)
        # The last task of each layer.
        layers = 2 * np.array(record.starts)[[*record.layer_ends]] - 1
        recompute = [
            2 * place + 1
            for place, op in enumerate(record.ops)
            if op.phase is Phase.RECOMPUTE and stream_of(op) is Stream.COMPUTE
        ]
        return {
            **_graph(program, part_of),
            "parts": parts,
            "layers": layers.tolist(),
            "recompute": packed(np.array(recompute, np.int32)),
        }

    def part(self, part: IterationPart) -> dict[str, Any]:
        """Return the seconds of a part of the iteration, and its bytes on network adapters."""
        num_bytes = self.seconds.adapter_bytes(part)
        return self.seconds_of(part) | ({"adapter_bytes": num_bytes} if num_bytes else {})

    def seconds_of(self, part: IterationPart) -> dict[str, Any]:
        """Return the pass or the tables that give the seconds of a part of the iteration."""
        match part:
            case PassPart():
                found: dict[str, Any] = {"pass": [*self.passes].index(whole_pass(part))}
                if part.span is not None:
                    found["layers"] = layers_of_span(self.plan, part, part.span)
                return found
            case TransferPart(levels_crossed=crossed):
                num_bytes, axes = self.plan.sent_bytes, NETWORK if crossed else NODE
                number = self.number(part, axes, lambda model: part.seconds(model, num_bytes))
                return {"sums": [[number]]}
            case SynchronizationPart(shape_levels=None):
                return {"sums": [[self.constant(self.seconds.of_part(part))]]}
            case SynchronizationPart(shape_levels=crossed):
                axes = NETWORK if crossed else NODE
                shape = self.number(part, axes, lambda model: part.seconds(model, 0.0))
                posts_s = self.seconds.of_part(part) - part.seconds(self.machine.model, 0.0)
                return {"sums": [[self.constant(posts_s), shape]]}
            case OptimizerPart(name=name, step=None):
                steps = (step.get(name, ()) for step in self.plan.steps)
                return {"sums": [self.sum_of(ops) for ops in steps]}
            case ReceiveGatherPart() | BucketPart() | OptimizerPart():
                return {"sums": [self.sum_of(self.seconds.ops_of(part))]}

    def sum_of(self, ops: tuple[Op, ...]) -> list[int]:
        """Return the numbers of the tables that add up to the time of consecutive ops."""
        return [self.of_work(op.work) for op in ops]

    def of_work(self, work: Work) -> int:
        """Return the number of the table with the seconds of `work`."""
        return self.number(work, axes_of(work), lambda model: model.seconds(work))

    def load_of(self, work: Work) -> int:
        """Return the number of the table with the share of the GPU that `work` uses alone."""
        return self.number(("load", work), axes_of(work), lambda model: model.device_load(work))

    def constant(self, value: float) -> int:
        """Return the number of the table of a value that no slider changes."""
        return self.number(("constant", value), (), lambda model: value)

    def number(
        self, key: object, axes: tuple[str, ...], value: Callable[[DurationModel], float]
    ) -> int:
        """Return the number of the table of a value. Values with equal keys share a table."""
        if key not in self._numbers:
            self._numbers[key] = len(self.tables)
            self.tables.append(self.grid.table(axes, value))
        return self._numbers[key]


def _graph(program: Program, part_of: Ints) -> dict[str, Any]:
    """Return streams, parts and dependencies of a program.

    `after` contains differences, which compress well.
    """
    graph = program.graph
    counts = np.diff(graph.after_starts)
    back = np.repeat(np.arange(program.num_tasks), counts) - graph.after
    columns = {
        "stream_of": graph.stream_of,
        "part_of": part_of,
        "num_after": counts,
        "after": np.diff(back, prepend=0),
    }
    return {
        "num_streams": len(graph.streams),
        **{name: packed(column.astype(np.int32)) for name, column in columns.items()},
        "links": _links(program),
    }


def _links(program: Program) -> list[list[int]] | None:
    """Return [streams] the links that the tasks of each stream share; None if there are none."""
    loads = program.link_loads
    if loads is None:
        return None
    links: list[list[int]] = [[] for _ in program.graph.streams]
    loaded = np.flatnonzero(np.diff(loads.load_starts))
    streams, first = np.unique(program.graph.stream_of[loaded], return_index=True)
    for stream, task in zip(streams.tolist(), loaded[first].tolist(), strict=True):
        links[stream] = loads.link[slice(*loads.load_starts[task : task + 2])].tolist()
    return links


def _differences(values: Ints) -> dict[str, str]:
    """Return packed differences of neighbours, which compress well."""
    return packed(np.diff(values, prepend=0).astype(np.int32))
