"""The result of a simulation: iteration time, utilization, breakdown and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.plain_data import PlainData, keys, with_whole_numbers
from simtrain.base.registered import registered
from simtrain.base.values import asdict, dataclass, replace
from simtrain.engine import Timeline
from simtrain.errors import InputError, Location, wrong_type
from simtrain.hardware.evidence import Evidence, RunKind, changed_entries, evidence_of, is_doubtful
from simtrain.hardware.interval import Interval, PeakErrors, interval_of, peak_errors
from simtrain.hardware.likeness import OwnRun, RunShape, shape_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import (
    FitVerdict,
    MemoryCurve,
    MemoryReport,
    memory_curve,
    memory_report,
)
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import IterationSeconds, least_seconds
from simtrain.iteration.report.breakdown import (
    Breakdown,
    breakdown_by_name,
    mean_breakdown,
    stage_breakdowns,
)
from simtrain.iteration.report.headline import iteration_line
from simtrain.iteration.report.operators import (
    Records,
    Rows,
    StageOperators,
    operators_of,
    slowest_stage,
)
from simtrain.iteration.report.spans import Passes, Spans
from simtrain.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def evidence_for(scenario: Scenario, profile: HardwareProfile) -> Evidence:
    """Return what predictions of a scenario rest on: its profile, and runs like it."""
    return evidence_of(profile, scenario.cluster, run_kind(scenario, profile))


def run_kind(scenario: Scenario, profile: HardwareProfile) -> RunKind:
    """Return the kind of runs that a scenario belongs to."""
    is_changed = bool(changed_entries(profile))
    return RunKind(
        scenario.cluster,
        scenario.software.name,
        scenario.precision.compute,
        scenario.model.experts is not None,
        "one" if scenario.num_gpus <= profile.cluster.gpus_per_node.value else "several",
        is_changed=is_changed,
        is_doubtful=is_doubtful(profile, scenario.cluster),
        is_lower_bound=profile.lower_bound and not is_changed,
        is_hybrid=scenario.model.layer_pattern is not None,
        stated_error=profile.uncertainty.value if profile.uncertainty else 0.0,
    )


# Parts of a result that can plot themselves: `result.timeline`, `breakdown` and `memory`.
#
# A view is the part plus a reference to its result. The functions that draw it are registered,
# because their room imports this one (`base/registered.py`).


class _View(Rows):
    """Base class of views; `_result` is the result that the view is a part of."""

    __slots__ = ()
    _result: Result

    def __new__(cls, result: Result | None = None, **fields: Any) -> Any:
        # dataclasses.replace passes the fields, without a result: it returns a plain part, because
        # a plot would show the values of the result.
        return super().__new__(cls) if result is not None else cls.__bases__[1](**fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._result,)


class TimelineView(_View, Timeline):
    """Start and end of each task of an iteration."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        timeline = result.iteration.timeline
        super().__init__(timeline.program, timeline.times_s, timeline.in_order)
        object.__setattr__(self, "_result", result)

    def records(self) -> Records:
        names = "stream", "kind", "name", "start_s", "end_s"
        return [{name: getattr(span, name) for name in names} for span in self.spans()]

    def plot(
        self,
        stages: Sequence[int] | None = None,
        window_s: tuple[float, float] | None = None,
        *,
        memory: bool = True,
    ) -> Figure:
        """Plot the tasks of each stage over time."""
        figure: Figure = registered("plot_timeline")(self._result, stages, window_s, memory=memory)
        return figure


class BreakdownView(_View, Breakdown):
    """Time of an iteration by cause, averaged over the stages."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        super().__init__(**asdict(mean_breakdown(result.stages)))
        object.__setattr__(self, "_result", result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Breakdown) and asdict(self) == asdict(other)

    __hash__ = Breakdown.__hash__

    def records(self) -> Records:
        stages = enumerate(self._result.stages)
        return [{"stage": stage} | breakdown_by_name(breakdown) for stage, breakdown in stages]

    def plot(self) -> Figure:
        """Plot the time of each stage by cause."""
        figure: Figure = registered("plot_breakdown")(self._result)
        return figure


class MemoryView(_View, MemoryReport):
    """Peaks of all stages of an iteration, compared with the memory of a GPU."""

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        report = result.memory_report
        super().__init__(*(getattr(report, name) for name in MemoryReport.__slots__))
        object.__setattr__(self, "_result", result)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryReport):
            return False
        return (self.capacity_bytes, self.stages) == (other.capacity_bytes, other.stages)

    __hash__ = MemoryReport.__hash__

    def records(self) -> Records:
        return [
            {"stage": stage.stage, "peak_action": stage.peak_name, "peak_op": stage.peak_op}
            | {f"{name}_bytes": size for name, size in stage.components_bytes.items()}
            | {"peak_bytes": stage.peak_bytes}
            for stage in self.stages
        ]

    def plot(self) -> Figure:
        """Plot the peak of each stage, and memory over time."""
        figure: Figure = registered("plot_memory")(self._result)
        return figure


_ALIGNED_CHANNELS = 8


# No slots: a cached property needs the dictionary of its object.
@dataclass(frozen=True)
class Result(PlainData, Rows):
    """One simulated iteration. Its parts are computed at their first use.

    Args:
        iteration: the timeline with its tasks, their durations, the plan and the machine.
        recompute_choice: with `recompute: auto`, the chosen recompute and the reason.
        anchors: one's own runs, by whose errors the intervals are anchored.
    """

    json_fields: ClassVar = keys(
        """scenario=scenario.name strategy=scenario.strategy interval_s=interval
        attention_backend=scenario.attention_backend software=scenario.software.stack
        cluster=scenario.cluster num_parameters num_active_parameters
        num_trained_parameters num_gpus=scenario.num_gpus num_simulated_ranks
        iteration_time_s tokens_per_s mfu hfu
        host_bound mfu_by_peak model_flops hardware_flops breakdown_s stages_s=stages
        memory=memory_report recompute_choice=recompute_choice_text extrapolated
        extrapolated_compute warnings=warning_texts"""
    )

    iteration: IterationTimeline
    recompute_choice: str | None = None
    anchors: Sequence[OwnRun] = ()

    @cached_property
    def interval(self) -> Interval:
        """Where the measured time lies, from how far off predictions of its kind were."""
        least_s = least_seconds(self.plan, self.profile)
        return interval_of(self.kind, self.shape, self.iteration_time_s, least_s, self.anchors)

    @property
    def kind(self) -> RunKind:
        return run_kind(self.scenario, self.profile)

    @property
    def shape(self) -> RunShape:
        """What tells how alike the errors of two runs are."""
        return shape_of(self.scenario, self.seconds.host_bound_passes(), self.mfu)

    @cached_property
    def evidence(self) -> Evidence:
        return evidence_for(self.scenario, self.profile)

    @property
    def recompute_choice_text(self) -> str | None:
        return None if self.recompute_choice is None else str(self.recompute_choice)

    @cached_property
    def peak_errors(self) -> PeakErrors:
        return peak_errors(self.kind, self.anchors) if self.anchors else PeakErrors()

    @cached_property
    def memory_report(self) -> MemoryReport:
        report = memory_report(self.plan, self.profile, self.iteration)
        return replace(report, errors=self.peak_errors)

    @property
    def fit(self) -> FitVerdict:
        return self.memory_report.fit

    @cached_property
    def stages(self) -> tuple[Breakdown, ...]:
        """[stages], breakdown of each stage's time."""
        return stage_breakdowns(self.iteration)

    @cached_property
    def passes(self) -> Passes:
        return Passes.of(self.iteration)

    @cached_property
    def spans(self) -> Spans:
        return Spans.of(self.iteration, self.passes)

    @cached_property
    def bars(self) -> Spans:
        return self.spans.bars(self.iteration)

    @property
    def model_flops(self) -> int:
        return self.seconds.flops[0]

    @property
    def hardware_flops(self) -> int:
        return self.seconds.flops[1]

    @cached_property
    def extrapolated(self) -> tuple[str, ...]:
        return self.seconds.extrapolated()

    @cached_property
    def extrapolated_compute(self) -> float:
        return self.seconds.compute_share(self.seconds.machine.model.is_extrapolated)

    @property
    def seconds(self) -> IterationSeconds:
        return self.iteration.seconds

    @property
    def plan(self) -> Plan:
        return self.seconds.plan

    @property
    def profile(self) -> HardwareProfile:
        return self.seconds.machine.model.profile

    @property
    def scenario(self) -> Scenario:
        return self.plan.scenario

    @property
    def timeline(self) -> TimelineView:
        return TimelineView(self)

    @property
    def memory(self) -> MemoryView:
        return MemoryView(self)

    def memory_curve(self, stage: int) -> MemoryCurve:
        """Return the memory of a stage's rank over time.

        Raises:
            InputError: the pipeline has no such stage (E506).
        """
        return memory_curve(self.plan, self.profile, self.iteration, self._checked(stage))

    def operators(self, stage: int | None = None) -> StageOperators:
        """Return the operators of a stage, by default of the slowest one (`run --show ops`).

        Raises:
            InputError: the pipeline has no such stage (E506).
        """
        chosen = slowest_stage(self.stages) if stage is None else self._checked(stage)
        return operators_of(self.iteration, self.spans, self.stages, chosen)

    def _checked(self, stage: int) -> int:
        """Return a stage of the pipeline; refuse other numbers."""
        last = self.num_stages - 1
        if stage not in range(self.num_stages):
            message = f"the pipeline has no stage {stage!r}; its stages are 0 to {last}"
            fix = f"write a number from 0 to {last}" if last else "write 0"
            raise InputError.of("E506", message, Location("--stages"), fix)
        return stage

    @property
    def iteration_time_s(self) -> float:
        """Seconds from one optimizer step to the next: the end of the timeline."""
        return self.iteration.time_s

    @property
    def breakdown(self) -> BreakdownView:
        return BreakdownView(self)

    @property
    def breakdown_s(self) -> dict[str, float]:
        return breakdown_by_name(self.breakdown)

    @property
    def critical_path_s(self) -> dict[str, float]:
        """Seconds of the critical path by kind of task; they add up to the iteration time."""
        kinds: dict[str, list[float]] = {}
        for span in self.timeline.critical_path():
            kinds.setdefault(span.kind, []).append(span.duration_s)
        return {kind: math.fsum(seconds) for kind, seconds in kinds.items()}

    @property
    def mfu(self) -> float:
        return self.model_flops / self._peak_flops

    @property
    def hfu(self) -> float:
        return self.hardware_flops / self._peak_flops

    @property
    def mfu_by_peak(self) -> dict[str, float]:
        """Model FLOPs utilization relative to the peak of bf16 and of the linear layers' type.

        `mfu` is always relative to the bf16 peak, like the TFLOP/s per GPU that Megatron-LM prints.
        So runs in fp4, fp8 and bf16 compare by speed.
        """
        precision, whole_s = self.scenario.precision, self.scenario.num_gpus * self.iteration_time_s
        name = precision.compute if precision.casts else precision.product_type
        types = {"bf16": "bf16", name: precision.linear_product_type}
        return {
            name: self.model_flops / ((self.profile.peak_flops(type_) or math.inf) * whole_s)
            for name, type_ in types.items()
        }

    @property
    def tokens_per_s(self) -> float:
        tokens = self.scenario.batch.global_ * self.scenario.model.seq_length
        return tokens / self.iteration_time_s

    @property
    def host_bound(self) -> float:
        return self.breakdown.launch_s / self.iteration_time_s

    @property
    def num_parameters(self) -> int:
        return self.plan.num_parameters

    @property
    def num_active_parameters(self) -> int:
        return self.plan.num_active_parameters

    @property
    def num_trained_parameters(self) -> int:
        return self.plan.num_trained_parameters

    @property
    def parameters_in_words(self) -> str:
        """Number of parameters; with experts, of active ones; with adapters, of trained ones."""
        active = f", {self.num_active_parameters:,} of them active"
        trained = f", {self.num_trained_parameters:,} of them trained"
        model = self.scenario.model
        return f"{self.num_parameters:,}{active * bool(model.experts)}{trained * bool(model.lora)}"

    @property
    def num_stages(self) -> int:
        return self.scenario.parallelism.pipeline

    @property
    def num_simulated_ranks(self) -> int:
        """Number of ranks whose work is simulated: one per pipeline stage.

        The other ranks of a stage (its tensor-, context-, expert- and data-parallel peers) do the
        same work at the same time.
        """
        return self.num_stages

    @property
    def _peak_flops(self) -> float:
        return self.profile.gpu.peak_flops.value * self.scenario.num_gpus * self.iteration_time_s

    @property
    def headline(self) -> str:
        """The answer in one line."""
        return iteration_line(self.scenario, self, self.interval, self.fit)

    def __repr__(self) -> str:
        return f"<Result {self.scenario.name or 'unnamed'}: {self.headline}>"

    def _repr_html_(self) -> str:
        return str(registered("result_html")(self))

    def records(self) -> Records:
        """Return the rows of `simtrain run --format csv`: the time by cause."""
        return list(registered("result_table")(self).records())

    def plot(self) -> Figure:
        return self.timeline.plot()

    def draw(self, draws: int = 100, seed: int = 0) -> Any:
        """Draw the iteration many times (`simtrain run --draws`); returns `DrawnTimes`."""
        return registered("draw")(self, draws=draws, seed=seed)

    def to_json(self) -> str:
        """Return what `simtrain run --format json` prints."""
        return str(registered("result_json")(self))

    @property
    def warning_texts(self) -> list[str]:
        return [*map(str, self.warnings)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why the real iteration is slower than the simulated one, a sentence each.

        Tensor cores are efficient only if rows of 16-bit operands are multiples of 16 bytes
        (NVIDIA, Matrix Multiplication Background User's Guide). In the unfused core of attention, a
        head's channels are such a row. Fused kernels refuse other sizes (E330).
        """
        model, channels = self.scenario.model, self.scenario.model.kv_channels
        is_fused = self.scenario.attention_backend == "fused"
        if is_fused or model.latent_attention or channels % _ALIGNED_CHANNELS == 0:
            return ()
        words = (
            f"Heads have {channels} channels, which is not a multiple of {_ALIGNED_CHANNELS}. On a "
            "GPU, the matrix products of attention are slower than simulated (not modelled)."
        )
        return (with_whole_numbers(words),)


def check_is_result(value: object) -> None:
    """Refuse an object that is not a result (E114)."""
    if not isinstance(value, Result):
        scenario = f'load_scenario("{value}")' if isinstance(value, str) else "scenario"
        raise wrong_type(value, "Result", f"simulate first: simulate({scenario})")
