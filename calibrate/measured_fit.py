"""From a folder of measurements to a profile: every fit in its order, and its residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from calibrate.borrowed_links import Links
from calibrate.datasheets import Datasheet, datasheet_of
from calibrate.fit import Fit
from calibrate.layer_fit import Expected
from calibrate.measured_attention import with_attention
from calibrate.measured_checks import check_points, require, without_noise
from calibrate.measured_kernels import KernelFit, fit_kernels
from calibrate.measured_layers import InSitu, fit_layers
from calibrate.measured_links import LinkFit, fit_links, fit_slowdown
from calibrate.measured_products import ProductFit, fit_products
from calibrate.parts import Data, entry
from calibrate.record_file import read_records
from calibrate.records import (
    AttentionRecord,
    CollectiveRecord,
    GemmRecord,
    Header,
    KernelRecord,
    LaunchRecord,
    LayerRecord,
    Measurement,
    MemoryRecord,
    OverlapRecord,
)
from calibrate.residuals import Residuals, round_significant
from simtrain.errors import InputError, Problem
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
        InputError: E720, too few records; E721, absurd ones (`folder` says where they are); or what
            no profile can have.
    """
    sheet = datasheet_of(header.device)
    check_points(folder, records, sheet)
    kept = without_noise(folder, records)
    parts = _Parts.of(header, kept, name, sheet, links)
    layers = [record for record in _of(kept, LayerRecord) if not record.held_out]
    in_situ = parts.fit_layers(layers) if layers else InSitu()
    shown = [*parts.residuals, *([in_situ.residuals] if layers else [])]
    fit = Fit(parts.data(in_situ), shown, len(records) - len(kept))
    fit = with_attention(
        fit, header, _of(kept, AttentionRecord), sheet.peak_flops.value if sheet else None
    )
    validate(HardwareProfile, fit.data, Positions())
    return fit


@dataclass(frozen=True, slots=True)
class _Parts:
    """What was fitted alone, and all that a profile says beside it."""

    header: Header
    name: str
    sheet: Datasheet | None
    products: ProductFit
    kernels: KernelFit
    launches: Sequence[LaunchRecord]
    node: LinkFit | None
    overlaps: Sequence[OverlapRecord]
    memory: Sequence[MemoryRecord]
    links: Links | None

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
        node = fit_links(collectives, sheet.link_bandwidth.value if sheet else None)
        if node is None and links is None and header.num_ranks > 1:
            raise InputError([_no_links(header.num_ranks)])
        overlaps, memories = _of(records, OverlapRecord), _of(records, MemoryRecord)
        return cls(
            header, name, sheet, products, kernels, launches, node, overlaps, memories, links
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
        products, kernels, node = self.products, self.kernels, self.node
        shown = [kernels.fused, kernels.stream, products.shapes, products.accumulating]
        shown += [products.batched, products.sustained]
        if node is not None:
            shown += [*node.residuals.values(), node.point_to_point]
        return [residuals for residuals in shown if residuals.rows]

    def data(self, in_situ: InSitu) -> Data:
        """The plain data of the profile's file."""
        header, node = self.header, self.node
        ranks = f", {header.num_ranks} ranks" if header.num_ranks > 1 else ""
        data = {
            "version": 1,
            "name": self.name,
            "description": f"{header.device}{ranks}, measured on {header.date[:10]}",
            "calibrated": True,
            "cluster": {
                "gpus_per_node": entry(node.num_ranks if node else 1, f"{self.measured}"),
                "num_nodes": entry(1, f"{self.measured}: one node"),
            },
            "gpu": self._gpu(in_situ),
            "memory": self._memory(),
            "gemm": self._gemm(in_situ),
            "memory_bound": self._memory_bound(in_situ),
            "host": {"issue": self._issue()},
            "overlap": {"slowdown": self._slowdown()},
        }
        if node is not None:
            data["intra_node"] = self._intra_node(node)
        return data if self.links is None else self.links.laid_into(data)

    @property
    def measured(self) -> str:
        """The source of what was measured here."""
        header = self.header
        torch = header.software.get("torch", "unknown")
        return f"measured on {header.device}, {header.date[:10]}, torch {torch}"

    def _from(self, value: Any, residuals: Residuals) -> Data:
        source = f"{self.measured}, {len(residuals.rows)} points: {residuals.title}"
        return entry(value, source, residuals.summary())

    def _gpu(self, in_situ: InSitu) -> Data:
        header, machine = self.header, self.products.machine
        memory = max(self.kernels.memory_bytes_per_s, self._fused_bytes_per_s(in_situ))
        flops = max(machine.mainloop_flops * in_situ.products, machine.sustained_flops)
        highest = f"no datasheet is known; the highest rate that was found, {self.measured}"
        sheet = self.sheet
        return {
            "peak_flops": entry(_tera(sheet.peak_flops.value, "FLOP/s"), sheet.peak_flops.source)
            if sheet
            else entry(_tera(_rounded_up(flops), "FLOP/s"), highest),
            "memory_capacity": entry(f"{header.memory_bytes} B", self.measured),
            "memory_bandwidth": entry(
                _tera(sheet.memory_bandwidth.value, "B/s"), sheet.memory_bandwidth.source
            )
            if sheet
            else entry(_tera(_rounded_up(memory), "B/s"), highest),
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
        overhead = _micro(machine.accumulate_overhead_s)
        return {
            "mainloop_flops": self._from(_tera(machine.mainloop_flops, "FLOP/s"), fit.shapes),
            "tail_quantization": self._from(machine.tail_quantization, fit.shapes),
            "tile_overhead": self._from(_micro(machine.tile_overhead_s), fit.shapes),
            "tiles": self._from(tiles, fit.shapes),
            "accumulate_overhead": self._from(overhead, fit.accumulating)
            if fit.accumulating.rows
            else entry(overhead, "no product added into fp32 was measured"),
            "sustained_flops": self._from(_tera(machine.sustained_flops, "FLOP/s"), fit.sustained),
            "batched_fraction": self._from(machine.batched_fraction, fit.batched),
            "operand_bandwidth": self._from(_tera(machine.memory_bytes_per_s, "B/s"), fit.batched),
            "valid_shapes": entry(_range(fit.plain_shapes), f"the products {self.measured}"),
            "valid_batched_shapes": entry(
                _range(fit.batched_shapes), f"the batched products {self.measured}"
            ),
            "in_situ_speed": self._in_situ(in_situ.products, in_situ),
        }

    def _fused_bytes_per_s(self, in_situ: InSitu) -> float:
        return round_significant(self.kernels.fused_bytes_per_s * in_situ.kernels)

    def _memory_bound(self, in_situ: InSitu) -> Data:
        fit = self.kernels
        fused = _tera(self._fused_bytes_per_s(in_situ), "B/s")
        fused_entry = self._from(fused, fit.fused)
        if in_situ.residuals.rows:
            layers = f"{in_situ.kernels} of the speed alone, {in_situ.residuals.summary()}"
            fused_entry["fitted_on"] += f"; in plain layers: {layers}"
        return {
            "fused_bandwidth": fused_entry,
            "stream_bandwidth": self._from(_tera(fit.stream_bytes_per_s, "B/s"), fit.stream),
            "kernel_latency": self._from(_micro(fit.latency_s), fit.fused),
        }

    def _in_situ(self, speed: float, in_situ: InSitu) -> Data:
        if in_situ.residuals.rows:
            return self._from(speed, in_situ.residuals)
        return entry(speed, "no plain layer to fit: as fast as measured alone")

    def _issue(self) -> Data:
        issue_s = median(record.time.median_s for record in self.launches)
        return entry(_micro(issue_s), f"{self.measured}, {len(self.launches)} points: launches")

    def _slowdown(self) -> Data:
        if self.overlaps:
            points = f"{len(self.overlaps)} points: a product beside a collective"
            return entry(fit_slowdown(self.overlaps), f"{self.measured}, {points}")
        return entry(0.0, "nothing was measured beside a collective")

    def _intra_node(self, fit: LinkFit) -> Data:
        alone = "collectives as measured alone: no layer was fitted"
        source = f"no datasheet is known; the fastest beyond its latency, {self.measured}"
        bandwidth = f"{fit.bandwidth / 1e9:.6g} GB/s"
        return {
            "bandwidth": entry(bandwidth, self.sheet.link_bandwidth.source)
            if self.sheet
            else entry(bandwidth, source),
            "point_to_point": {
                "latency": self._from(_micro(fit.latency_s), fit.point_to_point),
                "efficiency": self._from(fit.efficiency, fit.point_to_point),
            },
            **{
                kind.value: self._from(fit.curves[kind], fit.residuals[kind]) for kind in fit.curves
            },
            "in_situ_speed": entry(1.0, alone),
        }


def _of(records: Sequence[Measurement], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]


def _range(shapes: Sequence[tuple[int, int, int]]) -> Data:
    axes = zip("mnk", zip(*shapes, strict=True), strict=True)
    return {name: [min(sizes), max(sizes)] for name, sizes in axes}


def _tera(value: float, unit: str) -> str:
    return f"{value / 1e12:.4g} T{unit}"


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"


def _rounded_up(value: float) -> float:
    """To four digits, never below the value: nothing that was found is above its own limit."""
    step = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.ceil(value / step) * step


def _no_links(num_ranks: int) -> Problem:
    fix = "measure collectives in the same folder, or give --links PROFILE"
    reason = "ranks that work together need links"
    return Problem("E720", f"{num_ranks} ranks, but no collective measured", None, reason, fix)
