"""Fits a profile to a folder of measurements."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

from calibrate.fit.attention import measured_attention
from calibrate.fit.base import (
    Base,
    Data,
    entry,
    measured,
    micro,
    origin_of,
    round_significant,
    round_up,
    tera,
)
from calibrate.fit.doubts import (
    TOO_FEW,
    Datasheet,
    datasheet_of,
    far_off,
    sift,
    uncertainty_entry,
)
from calibrate.fit.kernels import KernelFit, host_section
from calibrate.fit.layers import InSitu, TimedLayer, fit_layers
from calibrate.fit.links import fit_slowdown
from calibrate.fit.network import MeasuredCluster
from calibrate.fit.products import FP8_SPEEDUP, DtypeFit, dtype_section, fit_products, gemm_section
from calibrate.fit.result import Fit, profile_of
from calibrate.records import schema
from simtrain.base.accuracy import ErrorTable
from simtrain.base.entry import Entry
from simtrain.durations.model import GemmMachine
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.studies.simulation import checked_profile

Kind = TypeVar("Kind", bound=schema.Measurement)
Part = TypeVar("Part")

_LEAST_SPREAD = 0.01
_RESERVE, _FRAGMENTATION = 0.05, 0.04
"""Shares of the memory and of the tensors, if neither was measured."""
_MOST_FRAGMENTATION = 0.5
_MODEL_LIMIT = 0.999
"""Share of a datasheet's peak, so that rounding does not lead above it."""
_AS_FP32 = "not measured, taken to be as fast as in fp32"
_START = 0.99
"""Start of a search, as a share of the highest speed: inside its bounds."""


def fit_measurements(
    header: schema.Header,
    records: Sequence[schema.Measurement],
    name: str,
    base: Base | None = None,
) -> Fit:
    """Fit a profile of the GPU or node that was measured.

    Products, kernels, launches and collectives are fitted alone, then the speeds of products and
    kernels inside a layer, on layers that are not held out. Doubtful records are left out. What was
    not measured, or has too few records for a fit, is copied from `base`; by default from the
    nearest shipped profile, except for links that the machine lacks.

    Raises:
        InputError: a value that no profile can have.
    """
    sheet = datasheet_of(header.device)
    sifted = sift(records, sheet)
    kept, base = sifted.kept, base or Base.nearest(header, sifted.kept)
    parts = _Parts(header, kept, name, sheet, base)
    in_situ = parts.fit_layers([r for r in _of(kept, schema.LayerRecord) if not r.held_out])
    data, shown = parts.data(in_situ), [*parts.comparisons, in_situ.comparison]
    if attention := _of(kept, schema.AttentionRecord):
        fitted = parts.attempt(
            "fused_attention",
            lambda: measured_attention(attention, profile_of(data), parts.origin),
        )
        if fitted:
            data, shown = data | {"fused_attention": fitted[0]}, [*shown, *fitted[1]]
    if base.is_chosen and "fused_attention" in base.data and "fused_attention" not in data:
        data["fused_attention"] = base.section("fused_attention", "not measured here")
    shown = [comparison for comparison in shown if comparison.rows]
    num_copied = sum(section in data for section in parts.gaps)
    data |= {"uncertainty": uncertainty_entry(shown, sifted, num_copied)}
    profile_of(data)
    return Fit(data, shown, sifted.doubts, parts.notes, far_off(shown))


class _Parts:
    """The parts that are fitted alone, and the records whose medians a profile holds.

    `gaps` has the sections with too few records for a fit, and why. They are copied from the base.
    """

    def __init__(
        self,
        header: schema.Header,
        records: Sequence[schema.Measurement],
        name: str,
        sheet: Datasheet | None,
        base: Base,
    ) -> None:
        self.header, self.name, self.sheet, self.base = header, name, sheet, base
        self.origin, self.gaps = origin_of(header), dict[str, str]()
        memory = sheet.memory_bandwidth.value if sheet else None
        flops = sheet.peak_flops.value if sheet else None
        of_kernels = _of(records, schema.KernelRecord)
        self.kernels = kernels = self.attempt("memory_bound", lambda: KernelFit(of_kernels, memory))
        gemms, copied = _of(records, schema.GemmRecord), base.profile.memory_bound.fused_bandwidth
        moving = kernels.memory_bytes_per_s if kernels else copied.value
        dtype = header.compute if any(r.dtype == header.compute for r in gemms) else None
        self.products = self.attempt(
            "gemm", lambda: fit_products(gemms, header.num_sms, moving, flops, dtype)
        )
        self.launches = _of(records, schema.LaunchRecord)
        if not self.launches:
            self.gaps["host"] = "no launch was measured"
        self.memory = _of(records, schema.MemoryRecord)
        self.cluster = MeasuredCluster(header, _of(records, schema.CollectiveRecord), sheet)
        self.gaps |= self.cluster.gaps
        self.slowdown = fit_slowdown(_of(records, schema.OverlapRecord))
        hosts = _of(records, schema.HostRecord)
        host_link = self.attempt("host_link", lambda: host_section(hosts, self.origin))
        self.host_link: tuple[Data, list[ErrorTable]] = host_link or ({}, [])

    def attempt(self, section: str, fit: Callable[[], Part]) -> Part | None:
        """The fit of a section; None, and a gap, if it has too few records.

        Raises:
            InputError: any other problem.
        """
        try:
            return fit()
        except InputError as error:
            if any(problem.code != TOO_FEW for problem in error.problems):
                raise
            self.gaps[section] = "; ".join(problem.message for problem in error.problems)
            return None

    def fit_layers(self, records: Sequence[schema.LayerRecord]) -> InSitu:
        """Fit the speeds of products and kernels in plain layers, within the datasheet's peaks.

        Raises:
            InputError: the scenario of a layer is not legal, or has more ranks than the profile.
        """
        products, kernels, limits = self.products, self.kernels, (math.inf, math.inf)
        if not records or products is None or kernels is None:
            return InSitu()
        profile, layers = profile_of(self.data(InSitu())), list[TimedLayer]()
        for number, record in enumerate(records, 1):
            scenario = Scenario.model_validate(record.scenario)
            ways = record.forward, record.backward
            checked_profile(scenario, profile)
            times_ms, spreads_ms = (
                [1e3 * getattr(way, name) for way in ways] for name in ("median_s", "spread_s")
            )
            layers.append((f"layer {number}", scenario, times_ms, spreads_ms))
        if self.sheet:
            limits = (
                _MODEL_LIMIT * self.sheet.peak_flops.value / products.machine.mainloop_flops,
                _MODEL_LIMIT * self.sheet.memory_bandwidth.value / kernels.fused_bytes_per_s,
            )
        errors = products.shapes.mean_abs_error, kernels.fused.mean_abs_error
        return fit_layers(
            "plain layers",
            layers,
            lambda guess: profile_of(self.data(guess)),
            [(1.0, max(error, _LEAST_SPREAD)) for error in errors],
            [min(1.0, _START * limit) for limit in limits],
            (1e-3, limits),
        )

    @property
    def comparisons(self) -> list[ErrorTable]:
        shown, fp8 = list[ErrorTable](), self.products.fp8 if self.products else None
        if kernels := self.kernels:
            shown += kernels.comparisons
        if products := self.products:
            shown += [products.shapes, products.accumulating, products.batched, products.sustained]
        shown += [*self.cluster.comparisons]
        shown += [fp8.shapes, fp8.sustained] if fp8 else []
        return [*shown, self.slowdown[1], *self.host_link[1]]

    @property
    def notes(self) -> list[str]:
        """The sections that were copied, or that the profile lacks, and why."""
        base, notes = self.base.profile.name, []
        for section, why in self.gaps.items():
            if section != "host_link":
                is_optional = section == "fused_attention" and not self.base.is_chosen
                has_copy = section in self.base.data and not is_optional
                notes.append(f"{section}: {f'copied from {base}' if has_copy else 'none'}, {why}")
        if not self.host_link[0] or not self.header.is_gpu:
            why = "no copy to or from the host was measured (kernels)"
            why = why if self.header.is_gpu else "a CPU is its own host"
            why = self.gaps.get("host_link", why)
            notes.append(f"host_link: none, {why}; nothing can be offloaded")
        if self.products and self.products.dtype == "fp32":
            notes.append(f"16-bit products: {_AS_FP32}")
        if self.base.is_chosen and self.cluster.node and self.cluster.network:
            notes.append(f"links: measured here, none copied from {base}")
        return notes

    def data(self, in_situ: InSitu) -> Data:
        """The plain data of the profile's file."""
        header, origin, base = self.header, self.origin, self.base
        node, network = self.cluster.node, self.cluster.network
        ranks = f", {header.num_ranks} ranks" if header.num_ranks > 1 else ""
        num_nodes = network.num_nodes if network else 1
        nodes = f"{num_nodes} nodes" if network else "one node"
        slowdown, beside = self.slowdown
        alone = "nothing was measured beside a collective"
        data: Data = {
            "version": 1,
            "name": self.name,
            "description": f"{header.device}{ranks}, measured on {header.date[:10]}",
            "calibrated": True,
            "cluster": {
                "gpus_per_node": entry(self.cluster.per_node, origin),
                "num_nodes": entry(num_nodes, f"{origin}: {nodes}"),
            },
            "gpu": {
                "peak_flops": self._peak_flops(in_situ),
                "memory_capacity": entry(f"{header.memory_bytes} B", origin),
                "memory_bandwidth": self._memory_bandwidth(in_situ),
                "num_sms": entry(header.num_sms, origin),
            },
            "memory": self._memory(),
            "gemm": self._section("gemm") or self._gemm(in_situ),
            "memory_bound": self._section("memory_bound") or self._memory_bound(in_situ),
            "host": self._section("host") or self._host(),
            "overlap": {"slowdown": measured(origin, beside, otherwise=alone)(slowdown)},
        }
        if self.host_link[0]:
            data["host_link"] = self.host_link[0]
        if node is not None:
            data["intra_node"] = node.section(origin, self.sheet, base)
        if network is not None:
            data["inter_node"] = network.section(origin)
        for section in self.cluster.gaps:
            if copied := section in base.data and self._section(section):
                data[section] = copied
        if base.is_chosen:
            return base.laid_into(data)
        if "intra_node" not in data:
            data["cluster"] |= {"gpus_per_node": entry(1, f"{origin}: no links were measured")}
        if "inter_node" in data and network is None:
            data["cluster"] |= {"num_nodes": entry(header.num_nodes, origin)}
        return data

    def _section(self, name: str) -> Data:
        return (
            self.base.section(name, f"{self.gaps[name]}; not fitted") if name in self.gaps else {}
        )

    def _host(self) -> Data:
        issue_s = median(record.time.median_s for record in self.launches)
        spread = median(record.time.spread_s / record.time.median_s for record in self.launches)
        points = f"{len(self.launches)} points"
        source, fitted_on = f"{self.origin}, {points}: launches", f"{points}, spread {spread:.1%}"
        return {"issue": entry(micro(issue_s), source, fitted_on)}

    def _memory_bound(self, in_situ: InSitu) -> Data:
        kernels = self.kernels
        assert kernels is not None, "else the section is copied"
        fused, stream = (measured(self.origin, fit) for fit in (kernels.fused, kernels.stream))
        in_layers = kernels.in_layers(kernels.fused_bytes_per_s, in_situ.kernels)
        bandwidth = fused(tera(in_layers, "B/s"))
        if in_situ.comparison.rows:
            layers = f"{in_situ.kernels} of the speed alone, {in_situ.comparison.summary()}"
            bandwidth["fitted_on"] += f"; in plain layers: {layers}"
        return {
            "fused_bandwidth": bandwidth,
            "stream_bandwidth": stream(tera(kernels.stream_bytes_per_s, "B/s")),
            "kernel_latency": fused(micro(kernels.latency_s)),
            "kernels": kernels.section(self.origin, in_situ.kernels),
        }

    def _memory_bandwidth(self, in_situ: InSitu) -> Data:
        kernels = self.kernels
        highest = kernels.highest_bytes_per_s(in_situ.kernels) if kernels else None
        return self._peak("memory_bandwidth", highest, "B/s")

    def _peak_flops(self, in_situ: InSitu) -> Data:
        if self.products is None:
            return self._peak("peak_flops", None, "FLOP/s")
        machine = self.products.machine
        # Of the rounded rates that the profile has, so that none is above the peak.
        rates = machine.mainloop_flops, machine.sustained_flops
        mainloop, sustained = map(round_significant, rates)
        return self._peak("peak_flops", max(mainloop * in_situ.products, sustained), "FLOP/s")

    def _peak(self, name: str, highest: float | None, unit: str) -> Data:
        """The entry of a peak: the datasheet's, else the highest fitted rate, else the base's."""
        known: Entry[float] | None = getattr(self.sheet, name, None)
        if known:
            return entry(tera(known.value, unit), known.source)
        if highest is None:
            copied: Data = self.base.copied(self.base.data["gpu"][name])
            return copied
        source = f"no datasheet is known; the highest rate that was found, {self.origin}"
        return entry(tera(round_up(highest), unit), source)

    def _memory(self) -> Data:
        reserve, fragmentation = round(_RESERVE * self.header.memory_bytes), _FRAGMENTATION
        source, share = "a default, not measured", f": {_RESERVE:.0%} of the memory"
        if self.memory:
            reserve = max(1, round(median(r.outside_allocator_bytes for r in self.memory)))
            over = median(r.reserved_over_allocated for r in self.memory)
            source, share = self.origin, ""
            # Above it the allocator was measured while it held memory of something else.
            fragmentation = min(round_significant(over - 1), _MOST_FRAGMENTATION)
        return {
            "allocator_reserve": entry(f"{reserve} B", source + share),
            "fragmentation": entry(fragmentation, source),
        }

    def _gemm(self, in_situ: InSitu) -> Data:
        fit, origin, base = self.products, self.origin, self.base
        assert fit is not None, "else the section is copied"
        is_fp32, machine = fit.dtype == "fp32", fit.machine
        origin = f"{_AS_FP32}; {origin}" if is_fp32 else origin
        shapes, sustained = measured(origin, fit.shapes), measured(origin, fit.sustained)
        origin, batched = self.origin, measured(self.origin, fit.batched)
        none = "no product added into fp32 was measured"
        accumulating = measured(origin, fit.accumulating, otherwise=none)
        none = "no plain layer to fit: as fast as measured alone"
        in_layers = measured(origin, in_situ.comparison, otherwise=none)
        overhead = accumulating(micro(machine.accumulate_overhead_s))
        if fit.batched_range is None:
            why = "too few batched products were measured"
            copied = base.section("gemm", why)
            of_batches = {"valid_batched_shapes": copied["valid_batched_shapes"]}
            fraction = copied["batched_fraction"]
        else:
            fraction = batched(machine.batched_fraction)
            range_entry = entry(fit.batched_range, f"the batched products {self.origin}")
            of_batches = {
                "operand_bandwidth": batched(tera(machine.memory_bytes_per_s, "B/s")),
                "valid_batched_shapes": range_entry,
            }
        section = gemm_section(machine, shapes, sustained, overhead, fraction) | of_batches
        section |= {
            "valid_shapes": entry(fit.plain_range, f"the products {self.origin}"),
            "in_situ_speed": in_layers(in_situ.products),
        }
        by_dtype = dict[str, Data]()
        section["layouts"] = self._layouts(fit)
        if is_fp32:
            by_dtype["fp32"] = self._dtype(fit, machine, in_situ)
        if fit.fp8:
            by_dtype["fp8"] = self._fp8(fit.fp8, in_situ)
        return section | ({"by_dtype": by_dtype} if by_dtype else {})

    def _layouts(self, fit: DtypeFit) -> Data:
        assert fit.machine.layouts is not None, "products are fitted with layouts"
        return measured(self.origin, fit.by_layout)(fit.machine.layouts.model_dump())

    def _dtype(self, fit: DtypeFit, machine: GemmMachine, in_situ: InSitu) -> Data:
        """The part of a data type without a datasheet's peak."""
        in_layer = round_significant(machine.mainloop_flops) * max(1.0, in_situ.products)
        highest = max(in_layer, machine.sustained_flops)
        source = f"no datasheet is known; the highest rate that was found, {self.origin}"
        peak = entry(tera(round_up(highest), "FLOP/s"), source)
        shapes, sustained = measured(self.origin, fit.shapes), measured(self.origin, fit.sustained)
        valid_shapes = entry(fit.plain_range, f"the products {self.origin}")
        section = dtype_section(machine, peak, shapes, sustained, shapes, valid_shapes)
        return section | {"layouts": self._layouts(fit)}

    def _fp8(self, fit: DtypeFit, in_situ: InSitu) -> Data:
        machine, shapes = fit.machine, measured(self.origin, fit.shapes)
        if self.sheet:
            sixteen_bits = self.sheet.peak_flops
            peak_flops = FP8_SPEEDUP * sixteen_bits.value
            # Not above the peak inside a layer either.
            limit = _MODEL_LIMIT * peak_flops / in_situ.products
            machine = machine.replace(mainloop_flops=min(machine.mainloop_flops, limit))
            twice = "twice the 16-bit peak, as on every NVIDIA GPU that multiplies fp8"
            peak = entry(tera(peak_flops, "FLOP/s"), f"{twice}: {sixteen_bits.source}")
        else:
            in_layer = machine.mainloop_flops * max(1.0, in_situ.products)
            peak = self._peak("peak_flops", max(in_layer, machine.sustained_flops), "FLOP/s")
        sustained = measured(self.origin, fit.sustained)
        valid_shapes = entry(fit.plain_range, f"the products {self.origin}")
        return dtype_section(machine, peak, shapes, sustained, shapes, valid_shapes)


def _of(records: Sequence[schema.Measurement], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]
