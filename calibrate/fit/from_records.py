"""From a folder of measurements to a profile: every fit in its order, and its residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from calibrate.fit.attention import with_attention
from calibrate.fit.borrowed_links import Links
from calibrate.fit.checks import check_points, check_residuals, require, without_noise
from calibrate.fit.cluster import Cluster
from calibrate.fit.datasheets import Datasheet, datasheet_of
from calibrate.fit.entries import (
    Origin,
    host_link,
    inter_node,
    intra_node,
    micro,
    tera,
)
from calibrate.fit.from_figures import Fit
from calibrate.fit.host import HostFit, fit_host
from calibrate.fit.kernels import KernelFit, fit_kernels
from calibrate.fit.layers import InSitu, fit_layers
from calibrate.fit.links import fit_slowdown
from calibrate.fit.parts import Data, entry
from calibrate.fit.products import FP8_SPEEDUP, Fp8Fit, ProductFit, fit_products
from calibrate.fit.published_layers import Expected
from calibrate.fit.residuals import Residuals, round_significant
from calibrate.fit.unused import Unused, unused_series
from calibrate.records.file import read_records
from calibrate.records.schema import (
    AttentionRecord,
    CollectiveRecord,
    GemmRecord,
    Header,
    HostRecord,
    KernelRecord,
    LaunchRecord,
    LayerRecord,
    Measurement,
    MemoryRecord,
    OverlapRecord,
)
from simtrain.hardware.profile import HardwareProfile
from simtrain.strict_yaml import Positions, validate

Kind = TypeVar("Kind", bound=Measurement)

_LEAST_SPREAD = 0.01
_RESERVE, _FRAGMENTATION = 0.05, 0.04
"""Of a memory, and of tensors, where neither was measured."""
_MODEL_LIMIT = 0.999
"""Of a datasheet's peak, so that rounding does not lead above it."""


def fit_folder(folder: Path, name: str, links: Path | None = None) -> Fit:
    """The profile of what `measure` left in a folder; `links` is the path or name of a profile.

    Raises:
        InputError: as `read_records`, `Links.load` and `fit_measurements`.
    """
    header, records = read_records(folder)
    taken = None if links is None else Links.load(links)
    return fit_measurements(folder, header, records, name, taken)


def fit_measurements(
    folder: Path,
    header: Header,
    records: Sequence[Measurement],
    name: str,
    links: Links | None = None,
) -> Fit:
    """A profile of the GPU or node that was measured, with the links of `links` where it has none.

    Products, kernels, launches and collectives are fitted alone, then how fast products and
    kernels are inside a layer, on layers that are not held out.

    Raises:
        InputError: E720, too few records; E721, absurd ones (`folder` says where they are); E724,
            no fit describes them; or what no profile can have.
    """
    sheet = datasheet_of(header.device)
    check_points(folder, records, sheet)
    kept = without_noise(folder, records)
    parts = _Parts.of(header, kept, name, sheet, links)
    layers = [record for record in _of(kept, LayerRecord) if not record.held_out]
    in_situ = parts.fit_layers(layers) if layers else InSitu()
    shown = [*parts.residuals, *([in_situ.residuals] if layers else [])]
    fit = Fit(
        parts.data(in_situ),
        shown,
        len(records) - len(kept),
        parts.cluster.checks,
        parts.unused,
        parts.notes,
    )
    fit = with_attention(
        fit, header, _of(kept, AttentionRecord), sheet.peak_flops.value if sheet else None
    )
    validate(HardwareProfile, fit.data, Positions())
    return replace(fit, warnings=check_residuals(fit.residuals))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was fitted alone, and all that a profile says beside it."""

    header: Header
    name: str
    sheet: Datasheet | None
    products: ProductFit
    kernels: KernelFit
    launches: Sequence[LaunchRecord]
    cluster: Cluster
    slowdown: tuple[float, Residuals] | None
    host: HostFit | None
    memory: Sequence[MemoryRecord]
    links: Links | None
    unused: Sequence[Unused]

    @classmethod
    def of(
        cls,
        header: Header,
        records: Sequence[Measurement],
        name: str,
        sheet: Datasheet | None,
        links: Links | None,
    ) -> _Parts:
        memory = sheet.memory_bandwidth.value if sheet else None
        kernels = fit_kernels(_of(records, KernelRecord), memory)
        peak = sheet.peak_flops.value if sheet else None
        moving = kernels.memory_bytes_per_s
        products = fit_products(_of(records, GemmRecord), header.num_sms, moving, peak)
        launches = _of(records, LaunchRecord)
        require("launches", len(launches), 1, "launches")
        collectives = _of(records, CollectiveRecord)
        cluster = Cluster.of(header, collectives, sheet, is_linked=links is not None)
        overlaps = _of(records, OverlapRecord)
        return cls(
            header,
            name,
            sheet,
            products,
            kernels,
            launches,
            cluster,
            fit_slowdown(overlaps) if overlaps else None,
            fit_host(_of(records, HostRecord)),
            _of(records, MemoryRecord),
            links,
            unused_series(records, products.dtype, cluster.per_node, cluster.missing),
        )

    def fit_layers(self, records: Sequence[LayerRecord]) -> InSitu:
        """How fast products and kernels are in plain layers, within the datasheet's peaks."""
        machine, kernels, limits = self.products.machine, self.kernels, (math.inf, math.inf)
        if self.sheet:
            limits = (
                _MODEL_LIMIT * self.sheet.peak_flops.value / machine.mainloop_flops,
                _MODEL_LIMIT * self.sheet.memory_bandwidth.value / kernels.fused_bytes_per_s,
            )
        return fit_layers(
            records,
            lambda guess: validate(HardwareProfile, self.data(guess), Positions()),
            Expected(1.0, max(self.products.shapes.mean_abs_error, _LEAST_SPREAD)),
            Expected(1.0, max(kernels.fused.mean_abs_error, _LEAST_SPREAD)),
            limits,
        )

    @property
    def residuals(self) -> Sequence[Residuals]:
        products, kernels = self.products, self.kernels
        shown = [kernels.fused, kernels.stream, products.shapes, products.accumulating]
        shown += [products.batched, products.sustained, *self.cluster.residuals]
        if products.fp8 is not None:
            shown += [products.fp8.shapes, products.fp8.sustained]
        if self.slowdown is not None:
            shown.append(self.slowdown[1])
        if self.host is not None:
            shown += [self.host.copies, self.host.adam]
        return [residuals for residuals in shown if residuals.rows]

    @property
    def notes(self) -> list[str]:
        """What the profile does not have, and why."""
        notes = []
        if not self.header.is_gpu:
            notes.append("host_link: none, a CPU is its own host; nothing can be offloaded")
        elif self.host is None:
            notes.append(
                "host_link: none, no copy to or from the host was measured (kernels); nothing can "
                "be offloaded"
            )
        own = self.cluster
        if self.links is not None and own.node is not None and own.network is not None:
            notes.append(f"links: measured here, none taken over from {self.links.profile.name}")
        return notes

    def data(self, in_situ: InSitu) -> Data:
        """The plain data of the profile's file."""
        header, node, network = self.header, self.cluster.node, self.cluster.network
        ranks = f", {header.num_ranks} ranks" if header.num_ranks > 1 else ""
        nodes = f"{network.num_nodes} nodes" if network else "one node"
        data = {
            "version": 1,
            "name": self.name,
            "description": f"{header.device}{ranks}, measured on {header.date[:10]}",
            "calibrated": True,
            "cluster": {
                "gpus_per_node": entry(self.cluster.per_node, self.measured),
                "num_nodes": entry(
                    network.num_nodes if network else 1, f"{self.measured}: {nodes}"
                ),
            },
            "gpu": self._gpu(in_situ),
            "memory": self._memory(),
            "gemm": self._gemm(in_situ),
            "memory_bound": self._memory_bound(in_situ),
            "host": {"issue": self._issue()},
            "overlap": {"slowdown": self._slowdown()},
        }
        if self.host is not None:
            data["host_link"] = host_link(self.host, self.origin)
        if node is not None:
            data["intra_node"] = intra_node(node, self.origin, self.sheet)
        if network is not None:
            data["inter_node"] = inter_node(network, self.origin)
        return data if self.links is None else self.links.laid_into(data)

    @property
    def origin(self) -> Origin:
        """The source of what was measured here."""
        return Origin.of(self.header)

    @property
    def measured(self) -> str:
        """As `origin`, in words."""
        return self.origin.measured

    def _from(self, value: Any, residuals: Residuals) -> Data:
        return self.origin.entry(value, residuals)

    def _gpu(self, in_situ: InSitu) -> Data:
        header, machine = self.header, self.products.machine
        memory = max(self.kernels.memory_bytes_per_s, self._fused_bytes_per_s(in_situ))
        flops = max(machine.mainloop_flops * in_situ.products, machine.sustained_flops)
        highest = f"no datasheet is known; the highest rate that was found, {self.measured}"
        sheet = self.sheet
        return {
            "peak_flops": entry(tera(sheet.peak_flops.value, "FLOP/s"), sheet.peak_flops.source)
            if sheet
            else entry(tera(_rounded_up(flops), "FLOP/s"), highest),
            "memory_capacity": entry(f"{header.memory_bytes} B", self.measured),
            "memory_bandwidth": entry(
                tera(sheet.memory_bandwidth.value, "B/s"), sheet.memory_bandwidth.source
            )
            if sheet
            else entry(tera(_rounded_up(memory), "B/s"), highest),
            "num_sms": entry(header.num_sms, self.measured),
        }

    def _memory(self) -> Data:
        if not self.memory:
            default = "a default, not measured"
            reserve = f"{round(_RESERVE * self.header.memory_bytes)} B"
            return {
                "allocator_reserve": entry(reserve, f"{default}: {_RESERVE:.0%} of the memory"),
                "fragmentation": entry(_FRAGMENTATION, default),
            }
        outside = max(1, round(median(r.outside_allocator_bytes for r in self.memory)))
        held = round_significant(median(r.reserved_over_allocated for r in self.memory) - 1)
        return {
            "allocator_reserve": entry(f"{outside} B", self.measured),
            "fragmentation": entry(held, self.measured),
        }

    def _gemm(self, in_situ: InSitu) -> Data:
        fit, machine = self.products, self.products.machine
        tiles = [tile.model_dump() for tile in machine.tiles]
        overhead = micro(machine.accumulate_overhead_s)
        fp8 = {"by_dtype": {"fp8": self._fp8(fit.fp8, in_situ)}} if fit.fp8 else {}
        return fp8 | {
            "mainloop_flops": self._from(tera(machine.mainloop_flops, "FLOP/s"), fit.shapes),
            "tail_quantization": self._from(machine.tail_quantization, fit.shapes),
            "tile_overhead": self._from(micro(machine.tile_overhead_s), fit.shapes),
            "tiles": self._from(tiles, fit.shapes),
            "accumulate_overhead": self._from(overhead, fit.accumulating)
            if fit.accumulating.rows
            else entry(overhead, "no product added into fp32 was measured"),
            "sustained_flops": self._from(tera(machine.sustained_flops, "FLOP/s"), fit.sustained),
            "batched_fraction": self._from(machine.batched_fraction, fit.batched),
            "operand_bandwidth": self._from(tera(machine.memory_bytes_per_s, "B/s"), fit.batched),
            "valid_shapes": entry(_range(fit.plain_shapes), f"the products {self.measured}"),
            "valid_batched_shapes": entry(
                _range(fit.batched_shapes), f"the batched products {self.measured}"
            ),
            "in_situ_speed": self._in_situ(in_situ.products, in_situ),
        }

    def _fp8(self, fit: Fp8Fit, in_situ: InSitu) -> Data:
        machine, sheet, mainloop = fit.machine, self.sheet, fit.machine.mainloop_flops
        if sheet:  # also inside a layer
            limit = _MODEL_LIMIT * FP8_SPEEDUP * sheet.peak_flops.value / in_situ.products
            mainloop = min(mainloop, limit)
        highest = max(mainloop * max(1.0, in_situ.products), machine.sustained_flops)
        twice = "twice the 16-bit peak, as on every NVIDIA GPU that multiplies fp8: "
        return {
            "peak_flops": entry(
                tera(FP8_SPEEDUP * sheet.peak_flops.value, "FLOP/s"),
                twice + sheet.peak_flops.source,
            )
            if sheet
            else entry(
                tera(_rounded_up(highest), "FLOP/s"),
                f"no datasheet is known; the highest rate that was found, {self.measured}",
            ),
            "mainloop_flops": self._from(tera(mainloop, "FLOP/s"), fit.shapes),
            "sustained_flops": self._from(tera(machine.sustained_flops, "FLOP/s"), fit.sustained),
            "tail_quantization": self._from(machine.tail_quantization, fit.shapes),
            "tile_overhead": self._from(micro(machine.tile_overhead_s), fit.shapes),
            "valid_shapes": entry(_range(fit.plain_shapes), f"the products {self.measured}"),
        }

    def _fused_bytes_per_s(self, in_situ: InSitu) -> float:
        return round_significant(self.kernels.fused_bytes_per_s * in_situ.kernels)

    def _memory_bound(self, in_situ: InSitu) -> Data:
        fit = self.kernels
        fused = tera(self._fused_bytes_per_s(in_situ), "B/s")
        fused_entry = self._from(fused, fit.fused)
        if in_situ.residuals.rows:
            layers = f"{in_situ.kernels} of the speed alone, {in_situ.residuals.summary()}"
            fused_entry["fitted_on"] += f"; in plain layers: {layers}"
        return {
            "fused_bandwidth": fused_entry,
            "stream_bandwidth": self._from(tera(fit.stream_bytes_per_s, "B/s"), fit.stream),
            "kernel_latency": self._from(micro(fit.latency_s), fit.fused),
        }

    def _in_situ(self, speed: float, in_situ: InSitu) -> Data:
        if in_situ.residuals.rows:
            return self._from(speed, in_situ.residuals)
        return entry(speed, "no plain layer to fit: as fast as measured alone")

    def _issue(self) -> Data:
        issue_s = median(record.time.median_s for record in self.launches)
        spread = median(record.time.spread_s / record.time.median_s for record in self.launches)
        points = f"{len(self.launches)} points"
        return entry(
            micro(issue_s), f"{self.measured}, {points}: launches", f"{points}, spread {spread:.1%}"
        )

    def _slowdown(self) -> Data:
        if self.slowdown is not None:
            return self._from(*self.slowdown)
        return entry(0.0, "nothing was measured beside a collective")


def _of(records: Sequence[Measurement], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]


def _range(shapes: Sequence[tuple[int, int, int]]) -> Data:
    axes = zip("mnk", zip(*shapes, strict=True), strict=True)
    return {name: [min(sizes), max(sizes)] for name, sizes in axes}


def _rounded_up(value: float) -> float:
    """To four digits, never below the value: nothing that was found is above its own limit."""
    step = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.ceil(value / step) * step
