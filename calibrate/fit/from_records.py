"""Fits a profile to a folder of measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from calibrate.fit.attention import measured_attention
from calibrate.fit.borrowed_links import Links
from calibrate.fit.datasheets import Datasheet, datasheet_of
from calibrate.fit.entry import Data, entry, measured, micro, origin_of, tera
from calibrate.fit.kernels import KernelFit, host_section
from calibrate.fit.layers import InSitu, fit_layers
from calibrate.fit.links import fit_slowdown
from calibrate.fit.network import Cluster
from calibrate.fit.numbers import round_significant, round_up
from calibrate.fit.products import FP8_SPEEDUP, DtypeFit, dtype_section, fit_products, gemm_section
from calibrate.fit.requirements import check_points, check_residuals, require, without_noise
from calibrate.fit.result import Fit, profile_of
from calibrate.fit.unused import unused_series
from calibrate.records import schema
from calibrate.records.file import read_records
from simtrain.comparison import Comparison
from simtrain.entry import Entry

Kind = TypeVar("Kind", bound=schema.Measurement)

_LEAST_SPREAD = 0.01
_RESERVE, _FRAGMENTATION = 0.05, 0.04
"""Shares of the memory and of the tensors, if neither was measured."""
_MODEL_LIMIT = 0.999
"""Share of a datasheet's peak, so that rounding does not lead above it."""


def fit_folder(folder: Path, name: str, links: Path | None = None) -> Fit:
    """Fit the measurements of a folder; `links` is the path or name of a profile.

    Raises:
        InputError: as `read_records`, `Links.load` and `fit_measurements`.
    """
    header, records = read_records(folder)
    taken = None if links is None else Links.load(links)
    return fit_measurements(folder, header, records, name, taken)


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
    layers = [record for record in _of(kept, schema.LayerRecord) if not record.held_out]
    in_situ = parts.fit_layers(layers) if layers else InSitu()
    data, shown = parts.data(in_situ), [*parts.comparisons, in_situ.comparison]
    if attention := _of(kept, schema.AttentionRecord):
        peak = sheet.peak_flops.value if sheet else None
        section, found = measured_attention(attention, profile_of(data), parts.origin, peak)
        data, shown = data | {"fused_attention": section}, [*shown, *found]
    shown = [comparison for comparison in shown if comparison.rows]
    profile_of(data)
    cluster = parts.cluster
    unused = unused_series(kept, parts.products.dtype, cluster.per_node, cluster.missing)
    return Fit(
        data,
        shown,
        len(records) - len(kept),
        cluster.checks,
        list(unused),
        parts.notes,
        check_residuals(shown),
    )


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
        self.kernels = KernelFit(
            _of(records, schema.KernelRecord), sheet.memory_bandwidth.value if sheet else None
        )
        self.products = fit_products(
            _of(records, schema.GemmRecord),
            header.num_sms,
            self.kernels.memory_bytes_per_s,
            sheet.peak_flops.value if sheet else None,
        )
        self.launches, self.memory = (
            _of(records, schema.LaunchRecord),
            _of(records, schema.MemoryRecord),
        )
        require("launches", len(self.launches), 1, "launches")
        collectives, is_linked = _of(records, schema.CollectiveRecord), links is not None
        self.cluster = Cluster(header, collectives, sheet, is_linked=is_linked)
        overlaps, hosts = _of(records, schema.OverlapRecord), _of(records, schema.HostRecord)
        self.slowdown = fit_slowdown(overlaps) if overlaps else None
        self.host = host_section(hosts, self.origin) if hosts else None

    def fit_layers(self, records: Sequence[schema.LayerRecord]) -> InSitu:
        """Fit the speeds of products and kernels in plain layers, within the datasheet's peaks."""
        products, kernels, limits = self.products, self.kernels, (math.inf, math.inf)
        if self.sheet:
            limits = (
                _MODEL_LIMIT * self.sheet.peak_flops.value / products.machine.mainloop_flops,
                _MODEL_LIMIT * self.sheet.memory_bandwidth.value / kernels.fused_bytes_per_s,
            )
        errors = products.shapes.mean_abs_error, kernels.fused.mean_abs_error
        estimates = [(1.0, max(error, _LEAST_SPREAD)) for error in errors]
        return fit_layers(records, lambda guess: profile_of(self.data(guess)), estimates, limits)

    @property
    def comparisons(self) -> list[Comparison]:
        """The errors of the parts; some have no rows."""
        products, kernels, fp8 = self.products, self.kernels, self.products.fp8
        shown = [kernels.fused, kernels.stream, products.shapes, products.accumulating]
        shown += [products.batched, products.sustained, *self.cluster.comparisons]
        shown += [fp8.shapes, fp8.sustained] if fp8 else []
        shown += [self.slowdown[1]] if self.slowdown else []
        return [*shown, *(self.host[1] if self.host else [])]

    @property
    def notes(self) -> list[str]:
        """The sections that the profile lacks, and why."""
        notes = []
        if self.host is None or not self.header.is_gpu:
            why = "no copy to or from the host was measured (kernels)"
            why = why if self.header.is_gpu else "a CPU is its own host"
            notes.append(f"host_link: none, {why}; nothing can be offloaded")
        if self.links and self.cluster.node and self.cluster.network:
            notes.append(f"links: measured here, none taken over from {self.links.profile.name}")
        return notes

    def data(self, in_situ: InSitu) -> Data:
        """The plain data of the profile's file."""
        header, node, network = self.header, self.cluster.node, self.cluster.network
        ranks = f", {header.num_ranks} ranks" if header.num_ranks > 1 else ""
        num_nodes = network.num_nodes if network else 1
        nodes = f"{num_nodes} nodes" if network else "one node"
        slowdown = entry(0.0, "nothing was measured beside a collective")
        if self.slowdown:
            slowdown = measured(self.origin, self.slowdown[1])(self.slowdown[0])
        data: Data = {
            "version": 1,
            "name": self.name,
            "description": f"{header.device}{ranks}, measured on {header.date[:10]}",
            "calibrated": True,
            "cluster": {
                "gpus_per_node": entry(self.cluster.per_node, self.origin),
                "num_nodes": entry(num_nodes, f"{self.origin}: {nodes}"),
            },
            "gpu": self._gpu(in_situ),
            "memory": self._memory(),
            "gemm": self._gemm(in_situ),
            "memory_bound": self._memory_bound(in_situ),
            "host": {"issue": self._issue()},
            "overlap": {"slowdown": slowdown},
        }
        if self.host is not None:
            data["host_link"] = self.host[0]
        if node is not None:
            data["intra_node"] = node.section(self.origin, self.sheet)
        if network is not None:
            data["inter_node"] = network.section(self.origin)
        return data if self.links is None else self.links.laid_into(data)

    def _gpu(self, in_situ: InSitu) -> Data:
        header, machine, sheet = self.header, self.products.machine, self.sheet
        memory = max(self.kernels.memory_bytes_per_s, self._fused_bytes_per_s(in_situ))
        flops = max(machine.mainloop_flops * in_situ.products, machine.sustained_flops)
        return {
            "peak_flops": self._peak(sheet.peak_flops if sheet else None, flops, "FLOP/s"),
            "memory_capacity": entry(f"{header.memory_bytes} B", self.origin),
            "memory_bandwidth": self._peak(
                sheet.memory_bandwidth if sheet else None, memory, "B/s"
            ),
            "num_sms": entry(header.num_sms, self.origin),
        }

    def _peak(self, known: Entry[float] | None, highest: float, unit: str) -> Data:
        """The entry of a peak: the datasheet's if there is one, else the highest fitted rate."""
        if known:
            return entry(tera(known.value, unit), known.source)
        source = f"no datasheet is known; the highest rate that was found, {self.origin}"
        return entry(tera(round_up(highest), unit), source)

    def _memory(self) -> Data:
        if not self.memory:
            reserve = round(_RESERVE * self.header.memory_bytes)
            source, fragmentation = "a default, not measured", _FRAGMENTATION
            share = f": {_RESERVE:.0%} of the memory"
        else:
            reserve = max(1, round(median(r.outside_allocator_bytes for r in self.memory)))
            over = median(r.reserved_over_allocated for r in self.memory)
            source, fragmentation, share = self.origin, round_significant(over - 1), ""
        return {
            "allocator_reserve": entry(f"{reserve} B", source + share),
            "fragmentation": entry(fragmentation, source),
        }

    def _gemm(self, in_situ: InSitu) -> Data:
        fit, machine, origin = self.products, self.products.machine, self.origin
        batched, in_layers = measured(origin, fit.batched), measured(origin, in_situ.comparison)
        overhead = micro(machine.accumulate_overhead_s)
        section = gemm_section(
            machine,
            measured(origin, fit.shapes),
            measured(origin, fit.sustained),
            measured(origin, fit.accumulating)(overhead)
            if fit.accumulating.rows
            else entry(overhead, "no product added into fp32 was measured"),
            batched(machine.batched_fraction),
        )
        section |= {
            "operand_bandwidth": batched(tera(machine.memory_bytes_per_s, "B/s")),
            "valid_shapes": entry(fit.plain_range, f"the products {origin}"),
            "valid_batched_shapes": entry(fit.batched_range, f"the batched products {origin}"),
            "in_situ_speed": in_layers(in_situ.products)
            if in_situ.comparison.rows
            else entry(in_situ.products, "no plain layer to fit: as fast as measured alone"),
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
            peak = self._peak(None, max(in_layer, machine.sustained_flops), "FLOP/s")
        sustained = measured(self.origin, fit.sustained)
        valid_shapes = entry(fit.plain_range, f"the products {self.origin}")
        return dtype_section(machine, peak, shapes, sustained, shapes, valid_shapes)

    def _fused_bytes_per_s(self, in_situ: InSitu) -> float:
        return round_significant(self.kernels.fused_bytes_per_s * in_situ.kernels)

    def _memory_bound(self, in_situ: InSitu) -> Data:
        fit, fused = self.kernels, measured(self.origin, self.kernels.fused)
        bandwidth = fused(tera(self._fused_bytes_per_s(in_situ), "B/s"))
        if in_situ.comparison.rows:
            layers = f"{in_situ.kernels} of the speed alone, {in_situ.comparison.summary()}"
            bandwidth["fitted_on"] += f"; in plain layers: {layers}"
        stream = measured(self.origin, fit.stream)
        return {
            "fused_bandwidth": bandwidth,
            "stream_bandwidth": stream(tera(fit.stream_bytes_per_s, "B/s")),
            "kernel_latency": fused(micro(fit.latency_s)),
        }

    def _issue(self) -> Data:
        issue_s = median(record.time.median_s for record in self.launches)
        spread = median(record.time.spread_s / record.time.median_s for record in self.launches)
        points = f"{len(self.launches)} points"
        source = f"{self.origin}, {points}: launches"
        return entry(micro(issue_s), source, f"{points}, spread {spread:.1%}")


def _of(records: Sequence[schema.Measurement], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]
