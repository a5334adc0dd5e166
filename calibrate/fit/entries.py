"""The entries of a profile's sections that are fitted to records of links and of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrate.fit.datasheets import Datasheet
from calibrate.fit.host import HostFit
from calibrate.fit.links import LinkFit
from calibrate.fit.network import Load, NetworkFit
from calibrate.fit.parts import Data, entry
from calibrate.fit.residuals import Residuals
from calibrate.records.schema import Header


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the records are from, as an entry's source says it."""

    measured: str

    @classmethod
    def of(cls, header: Header) -> Origin:
        """The device, date and torch of a measurement."""
        torch = header.software.get("torch", "unknown")
        return cls(f"measured on {header.device}, {header.date[:10]}, torch {torch}")

    def entry(self, value: Any, residuals: Residuals, only: str = "") -> Data:
        """A fitted number: what it was fitted on, in which range (`only`), and how well."""
        source = f"{self.measured}, {len(residuals.rows)} points: {residuals.title}{only}"
        return entry(value, source, residuals.summary())


def tera(value: float, unit: str) -> str:
    """With its unit, in 1e12."""
    return f"{value / 1e12:.4g} T{unit}"


def giga(bytes_per_s: float) -> str:
    """With its unit, in GB/s."""
    return f"{bytes_per_s / 1e9:.6g} GB/s"


def micro(seconds: float) -> str:
    """With its unit, in us."""
    return f"{seconds * 1e6:.4g} us"


def intra_node(fit: LinkFit, origin: Origin, sheet: Datasheet | None) -> Data:
    """Links inside a node."""
    fastest = f"no datasheet is known; the fastest beyond its latency, {origin.measured}"
    return {
        "bandwidth": entry(giga(fit.bandwidth), sheet.link_bandwidth.source if sheet else fastest),
        "point_to_point": {
            "latency": origin.entry(micro(fit.latency_s), fit.point_to_point),
            "efficiency": origin.entry(fit.efficiency, fit.point_to_point),
        },
        **{kind.value: origin.entry(fit.curves[kind], fit.residuals[kind]) for kind in fit.curves},
        "in_situ_speed": entry(1.0, "collectives as measured alone: no layer was fitted"),
    }


def inter_node(fit: NetworkFit, origin: Origin) -> Data:
    """The network; each number says over how many nodes and for which arrays it is known."""
    least, most = fit.array_bytes
    only = f", {fit.num_nodes} nodes, {least} to {most} bytes"
    seen = f"as much as the ranks of a node reach together, {origin.measured}"
    return {
        "num_adapters": entry(fit.num_adapters, f"not counted: {seen}, in what one rank reaches"),
        "adapter_bandwidth": entry(giga(fit.adapter_bytes_per_s), f"no datasheet is known; {seen}"),
        **{
            name: _fraction(fit, load, origin, only)
            for name, load in (
                ("whole_node_efficiency", Load.WHOLE),
                ("concurrent_efficiency", Load.CONCURRENT),
            )
        },
        "step_latency": origin.entry(
            micro(fit.step_latency_s), fit.residuals[Load.WHOLE], f"{only}, and all other rings"
        ),
        "point_to_point": {
            "latency": origin.entry(micro(fit.transfer_latency_s), fit.transfers, only),
            "efficiency": origin.entry(fit.transfer_efficiency, fit.transfers, only),
        },
    }


def _fraction(fit: NetworkFit, load: Load, origin: Origin, only: str) -> Data:
    """A node of one rank has no rings beside each other: its ring is that of the whole node."""
    residuals: Mapping[Load, Residuals] = fit.residuals
    return origin.entry(fit.efficiency[load], residuals.get(load, residuals[Load.WHOLE]), only)


def host_link(fit: HostFit, origin: Origin) -> Data:
    """Copies to and from the host, and its Adam."""
    return {
        "bandwidth": origin.entry(giga(fit.bytes_per_s), fit.copies, ", all ranks at once"),
        "adam_bandwidth": origin.entry(giga(fit.adam_bytes_per_s), fit.adam, ", all ranks at once"),
    }
