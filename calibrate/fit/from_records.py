"""Fits a profile to a folder of measurements."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from calibrate.fit.attention import measured_attention
from calibrate.fit.entry import (
    Data,
    entry,
    measured,
    micro,
    origin_of,
    round_significant,
    round_up,
    tera,
)
from calibrate.fit.kernels import KernelFit, host_section
from calibrate.fit.layers import InSitu, TimedLayer, fit_layers
from calibrate.fit.links import Links, fit_slowdown
from calibrate.fit.network import Cluster
from calibrate.fit.products import FP8_SPEEDUP, DtypeFit, dtype_section, fit_products, gemm_section
from calibrate.fit.requirements import (
    Datasheet,
    check_points,
    check_residuals,
    datasheet_of,
    require,
    without_noise,
)
from calibrate.fit.result import Fit, profile_of, unused_series
from calibrate.records import schema
from simtrain.comparison import Comparison
from simtrain.entry import Entry
from simtrain.scenario import Scenario
from simtrain.simulation import checked_profile

Kind = TypeVar("Kind", bound=schema.Measurement)

_LEAST_SPREAD = 0.01
_RESERVE, _FRAGMENTATION = 0.05, 0.04
"""Shares of the memory and of the tensors, if neither was measured."""
_MODEL_LIMIT = 0.999
"""Share of a datasheet's peak, so that rounding does not lead above it."""
_START = 0.99
"""Start of a search, as a share of the highest speed: inside its bounds."""


def fit_measurements(
    folder: Path,
    header: schema.Header,
    records: Sequence[schema.Measurement],
    name: str,
    links: Links | None = None,
) -> Fit:
    """Fit a profile of the GPU or node that was measured, with the links of `links` if it has none.

    Products, kernels, launches and collectives are fitted alone, then the speeds of products and
    kernels inside a layer, on layers that are not held out.

    Raises:
        InputError: E720, too few records; E721, absurd ones (`folder` says where they are); E724,
            no fit describes them; or a value that no profile can have.
    """
    sheet = datasheet_of(header.device)
    check_points(folder, records, sheet)
    kept = without_noise(folder, records)
    parts = _Parts(header, kept, name, sheet, links)
    in_situ = parts.fit_layers([r for r in _of(kept, schema.LayerRecord) if not r.held_out])
    data, shown = parts.data(in_situ), [*parts.comparisons, in_situ.comparison]
    if attention := _of(kept, schema.AttentionRecord):
        peak = sheet.peak_flops.value if sheet else None
        section, found = measured_attention(attention, profile_of(data), parts.origin, peak)
        data, shown = data | {"fused_attention": section}, [*shown, *found]
    shown = [comparison for comparison in shown if comparison.rows]
    profile_of(data)
    cluster = parts.cluster
    dtype, per_node = parts.products.dtype, cluster.per_node
    unused = list(unused_series(kept, dtype, per_node, cluster.missing))
    warnings, num_left_out = check_residuals(shown), len(records) - len(kept)
    return Fit(data, shown, num_left_out, cluster.checks, unused, parts.notes, warnings)


class _Parts:
    """The parts that are fitted alone, and the records whose medians a profile holds."""

    def __init__(
        self,
        header: schema.Header,
        records: Sequence[schema.Measurement],
        name: str,
        sheet: Datasheet | None,
        links: Links | None,
    ) -> None:
        self.header, self.name, self.sheet, self.links = header, name, sheet, links
        self.origin = origin_of(header)
        memory = sheet.memory_bandwidth.value if sheet else None
        flops = sheet.peak_flops.value if sheet else None
        self.kernels = kernels = KernelFit(_of(records, schema.KernelRecord), memory)
        gemms = _of(records, schema.GemmRecord)
        self.products = fit_products(gemms, header.num_sms, kernels.memory_bytes_per_s, flops)
        self.launches = _of(records, schema.LaunchRecord)
        self.memory = _of(records, schema.MemoryRecord)
        require("launches", len(self.launches), 1, "launches")
        collectives, is_linked = _of(records, schema.CollectiveRecord), links is not None
        self.cluster = Cluster(header, collectives, sheet, is_linked=is_linked)
        self.slowdown = fit_slowdown(_of(records, schema.OverlapRecord))
        self.host_link = host_section(_of(records, schema.HostRecord), self.origin)

    def fit_layers(self, records: Sequence[schema.LayerRecord]) -> InSitu:
        """Fit the speeds of products and kernels in plain layers, within the datasheet's peaks.

        Raises:
            InputError: the scenario of a layer is not legal, or has more ranks than the profile.
        """
        if not records:
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
        products, kernels, limits = self.products, self.kernels, (math.inf, math.inf)
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
    def comparisons(self) -> list[Comparison]:
        """The errors of the parts; some have no rows."""
        products, kernels, fp8 = self.products, self.kernels, self.products.fp8
        shown = [kernels.fused, kernels.stream, products.shapes, products.accumulating]
        shown += [products.batched, products.sustained, *self.cluster.comparisons]
        shown += [fp8.shapes, fp8.sustained] if fp8 else []
        return [*shown, self.slowdown[1], *self.host_link[1]]

    @property
    def notes(self) -> list[str]:
        """The sections that the profile lacks, and why."""
        notes = []
        if not self.host_link[0] or not self.header.is_gpu:
            why = "no copy to or from the host was measured (kernels)"
            why = why if self.header.is_gpu else "a CPU is its own host"
            notes.append(f"host_link: none, {why}; nothing can be offloaded")
        if self.links and self.cluster.node and self.cluster.network:
            notes.append(f"links: measured here, none taken over from {self.links.profile.name}")
        return notes

    def data(self, in_situ: InSitu) -> Data:
        """The plain data of the profile's file."""
        header, origin, machine = self.header, self.origin, self.products.machine
        kernels, node, network = self.kernels, self.cluster.node, self.cluster.network
        ranks = f", {header.num_ranks} ranks" if header.num_ranks > 1 else ""
        num_nodes = network.num_nodes if network else 1
        nodes = f"{num_nodes} nodes" if network else "one node"
        fused, stream = measured(origin, kernels.fused), measured(origin, kernels.stream)
        fused_bytes_per_s = round_significant(kernels.fused_bytes_per_s * in_situ.kernels)
        bandwidth = fused(tera(fused_bytes_per_s, "B/s"))
        if in_situ.comparison.rows:
            layers = f"{in_situ.kernels} of the speed alone, {in_situ.comparison.summary()}"
            bandwidth["fitted_on"] += f"; in plain layers: {layers}"
        memory = max(kernels.memory_bytes_per_s, fused_bytes_per_s)
        flops = max(machine.mainloop_flops * in_situ.products, machine.sustained_flops)
        issue_s = median(record.time.median_s for record in self.launches)
        spread = median(record.time.spread_s / record.time.median_s for record in self.launches)
        points = f"{len(self.launches)} points"
        source, fitted_on = f"{origin}, {points}: launches", f"{points}, spread {spread:.1%}"
        issue = entry(micro(issue_s), source, fitted_on)
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
                "peak_flops": self._peak("peak_flops", flops, "FLOP/s"),
                "memory_capacity": entry(f"{header.memory_bytes} B", origin),
                "memory_bandwidth": self._peak("memory_bandwidth", memory, "B/s"),
                "num_sms": entry(header.num_sms, origin),
            },
            "memory": self._memory(),
            "gemm": self._gemm(in_situ),
            "memory_bound": {
                "fused_bandwidth": bandwidth,
                "stream_bandwidth": stream(tera(kernels.stream_bytes_per_s, "B/s")),
                "kernel_latency": fused(micro(kernels.latency_s)),
            },
            "host": {"issue": issue},
            "overlap": {"slowdown": measured(origin, beside, otherwise=alone)(slowdown)},
        }
        if self.host_link[0]:
            data["host_link"] = self.host_link[0]
        if node is not None:
            data["intra_node"] = node.section(origin, self.sheet)
        if network is not None:
            data["inter_node"] = network.section(origin)
        return data if self.links is None else self.links.laid_into(data)

    def _peak(self, name: str, highest: float, unit: str) -> Data:
        """The entry of a peak: the datasheet's if there is one, else the highest fitted rate."""
        known: Entry[float] | None = getattr(self.sheet, name, None)
        if known:
            return entry(tera(known.value, unit), known.source)
        source = f"no datasheet is known; the highest rate that was found, {self.origin}"
        return entry(tera(round_up(highest), unit), source)

    def _memory(self) -> Data:
        reserve, fragmentation = round(_RESERVE * self.header.memory_bytes), _FRAGMENTATION
        source, share = "a default, not measured", f": {_RESERVE:.0%} of the memory"
        if self.memory:
            reserve = max(1, round(median(r.outside_allocator_bytes for r in self.memory)))
            over = median(r.reserved_over_allocated for r in self.memory)
            source, fragmentation, share = self.origin, round_significant(over - 1), ""
        return {
            "allocator_reserve": entry(f"{reserve} B", source + share),
            "fragmentation": entry(fragmentation, source),
        }

    def _gemm(self, in_situ: InSitu) -> Data:
        fit, machine, origin = self.products, self.products.machine, self.origin
        shapes, sustained, batched = (
            measured(origin, found) for found in (fit.shapes, fit.sustained, fit.batched)
        )
        none = "no product added into fp32 was measured"
        accumulating = measured(origin, fit.accumulating, otherwise=none)
        none = "no plain layer to fit: as fast as measured alone"
        in_layers = measured(origin, in_situ.comparison, otherwise=none)
        overhead = accumulating(micro(machine.accumulate_overhead_s))
        fraction = batched(machine.batched_fraction)
        section = gemm_section(machine, shapes, sustained, overhead, fraction) | {
            "operand_bandwidth": batched(tera(machine.memory_bytes_per_s, "B/s")),
            "valid_shapes": entry(fit.plain_range, f"the products {origin}"),
            "valid_batched_shapes": entry(fit.batched_range, f"the batched products {origin}"),
            "in_situ_speed": in_layers(in_situ.products),
        }
        return section | ({"by_dtype": {"fp8": self._fp8(fit.fp8, in_situ)}} if fit.fp8 else {})

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
