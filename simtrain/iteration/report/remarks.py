"""Remarks on a result, and the data of `simtrain run --format json`, which contain them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from simtrain.base.plain_data import Number, PlainData, Sentence, keys, sentence_json
from simtrain.base.values import dataclass
from simtrain.hardware.entries import entries_of
from simtrain.hardware.evidence import (
    Evidence,
    ValidatedOn,
    changed_entries,
    usual_stack,
    validated_on,
)
from simtrain.hardware.profile import SET_IN_SCENARIO
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.scenario.resolved import settings_of
from simtrain.scenario.software import DEFAULT_STACK

HOST_BOUND = 0.05
"""Share of an iteration spent waiting for launches above which a remark mentions it."""
_OF_OTHERS = ValidatedOn.model_construct(
    version=2,
    summary="Compared with no measured iteration: the scenario changes entries of the profile.",
    measured_runs=[],
)


@dataclass(frozen=True, slots=True)
class RunReport(PlainData):
    """What `simtrain run --format json` prints: a result, and what is said of it."""

    json_fields: ClassVar = keys("**result remarks settings evidence validated_on=errors")

    result: Result

    @property
    def remarks(self) -> list[dict[str, Any]]:
        return [sentence_json(text) for text in remarks_on(self.result)]

    @property
    def settings(self) -> dict[str, Any]:
        return settings_of(self.result.scenario)

    @property
    def evidence(self) -> Evidence:
        return self.result.evidence

    @property
    def errors(self) -> dict[str, Any] | None:
        validation = validation_for(self.result)
        return validation.model_dump(mode="json", exclude={"version"}) if validation else None


def validation_for(result: Result) -> ValidatedOn | None:
    """Return the profile's errors against measured iterations; None if it has no file of errors."""
    validation = validated_on(result.scenario.cluster)
    if validation and validation.measured_runs and changed_entries(result.profile):
        return _OF_OTHERS
    return validation


def _other_peaks(result: Result) -> Iterator[Sentence]:
    """Say to which peak MFU is relative, if products run in another data type than bf16."""
    for name, mfu in result.mfu_by_peak.items():
        if name != "bf16":
            yield Sentence(
                f"MFU and HFU are relative to the bf16 peak. Relative to the {name} peak, MFU is ",
                Number(mfu, f"{mfu:.1%}"),
                ".",
            )


def _peaks_without_rates(result: Result) -> Iterator[str]:
    """Say that products keep rates of their own if the scenario changes only their peak."""
    entries = dict(entries_of(result.profile))
    for dtype in dict.fromkeys(("bf16", result.scenario.precision.linear_product_type)):
        section = "gemm" if dtype == "bf16" else f"gemm.by_dtype.{dtype}"
        peak = "gpu.peak_flops" if dtype == "bf16" else f"{section}.peak_flops"
        rates = [f"{section}.{name}" for name in ("mainloop_flops", "sustained_flops")]
        is_changed = {name: entries[name].source == SET_IN_SCENARIO for name in (peak, *rates)}
        if is_changed[peak] and not all(is_changed[name] for name in rates):
            kept = " and ".join(f"hardware.{name}" for name in rates if not is_changed[name])
            is_fused = dtype == "bf16" and result.scenario.attention_backend == "fused"
            also = " and the time of fused attention" if is_fused else ""
            yield (
                f"hardware.{peak} changes MFU{also}, but not the time of matrix products, which "
                f"have rates of their own: set {kept} too."
            )


def _unusual_stack(result: Result) -> Iterator[str]:
    """Name the stack that runs on the cluster usually have, if the paper's is simulated."""
    stack, usual = result.scenario.software.stack, usual_stack(result.scenario.cluster)
    if stack == DEFAULT_STACK != usual:
        yield (
            f"software is {stack}, the default; runs on {result.scenario.cluster} usually have "
            f"{usual}. Set software: {usual} to simulate them."
        )


def _unmeasured_kernels(result: Result) -> Iterator[str]:
    """Say which kernels of Mamba-2 layers have no measured time in the profile."""
    if result.scenario.model.mamba is None:
        return
    scan = result.profile.memory_bound.kernels.chunk_scan
    which, has, moves = "The convolution", "has", "it moves its"
    if scan is None:
        which, has, moves = "The scan and the convolution", "have", "they move their"
    yield (
        f"{which} of Mamba-2 layers {has} no measured time in the profile: {moves} bytes at "
        "memory_bound.fused_bandwidth."
    )
    if scan and scan.backward is None:
        yield (
            "The backward kernels of Mamba-2's scan have no measured time in the profile: they are "
            "assumed to move bytes as fast as the forward kernels."
        )


def mfu_remarks(scenarios: Iterable[Scenario]) -> list[str]:
    """Say to which peak MFU is relative, if products run in another data type than bf16."""
    types = {scenario.precision.linear_product_type: None for scenario in scenarios}
    others = ", ".join(name for name in types if name != "bf16")
    return [f"MFU is relative to the bf16 peak, also for products in {others}."] if others else []


def remarks_on(result: Result) -> list[str]:
    """Return remarks on a result other than extrapolation, a sentence each."""
    scenario = result.scenario
    simulated, total = result.num_simulated_ranks, scenario.num_gpus
    ranks = Number(simulated, f"{simulated}"), " of ", Number(total, f"{total}"), " ranks"
    others = " (one per pipeline stage); the others behave identically."
    remarks: list[str] = [Sentence("Simulated ", *ranks, others)]
    if simulated == total:
        remarks = ["Every rank simulated."]
    if result.host_bound >= HOST_BOUND:
        share = Number(result.host_bound, f"{result.host_bound:.0%}")
        remarks.append(
            Sentence("Host-bound: GPUs wait for kernel launches in ", share, " of the iteration.")
        )
    if result.hfu < result.mfu:
        remarks.append(
            "HFU is below MFU: MFU counts attention between all tokens, HFU only what the kernels "
            "compute, which skip masked tokens."
        )
    remarks += [*_other_peaks(result), *_peaks_without_rates(result), *_unusual_stack(result)]
    remarks += _unmeasured_kernels(result)
    if result.plan.recorded:
        remarks += result.plan.recorded.remarks(result.seconds.machine.model.seconds)
    remarks += result.warnings
    uncertainty = result.profile.uncertainty
    if uncertainty and not result.evidence.judged:
        within = Number(uncertainty.value, f"{uncertainty.value:.0%}")
        remarks.append(
            Sentence("By the profile's own fit, nine of ten times are within ", within, ".")
        )
    if result.recompute_choice:
        remarks.append(Sentence("Recompute chosen: ", result.recompute_choice))
    return remarks
