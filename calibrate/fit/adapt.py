"""Adapts the links and the network of a profile to results of nccl-tests, and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from calibrate.fit.base import Base, Data, describes, measured, micro, round_significant
from calibrate.fit.doubts import LARGE_SIZES, NUM_SIZES, TOO_FEW
from calibrate.fit.links import SMALLEST_BYTES, TRANSFER, LinkFit, fit_links
from calibrate.fit.network import Crossings, Load, load_of, ring_crossing
from calibrate.fit.result import Fit, profile_of
from calibrate.records.nccl_tests import Log
from calibrate.records.schema import CollectiveRecord
from simtrain.base.accuracy import ErrorTable
from simtrain.durations.collectives import curve_for, ring_seconds
from simtrain.errors import InputError
from simtrain.hardware.algorithms import FALLBACK
from simtrain.hardware.cluster import IntraNode
from simtrain.workload.work import Collective


@dataclass(frozen=True, slots=True)
class _NodeLinks:
    """The links of a profile's node."""

    links: IntraNode

    def ring_seconds(self, op: Collective, num_ranks: int) -> float:
        curves = getattr(self.links, op.kind.value).value
        return ring_seconds(op, curve_for(curves, num_ranks), self.links.bandwidth.value)


def adapt_links(base: Base, logs: Sequence[Log], name: str) -> Fit:
    """The base with the links that its logs show; every changed entry names its logs.

    Curves are replaced by group size, transfers as a whole. Of the network, rings over whole nodes
    show the fraction of the adapters that they reach, and the latency of a step if no algorithm of
    the base has its own.

    Raises:
        InputError: E722, the base has no links; E720, no collective has enough sizes.
    """
    links = base.profile.intra_node
    if links is None:
        reason, fix = "it is the profile of one GPU", "name the profile of a node or of a cluster"
        raise InputError.of(
            "E722", f"{base.profile.name} has no links to adapt", fix=fix, reason=reason
        )
    records = [record for log in logs for record in log.records]
    origin = "nccl-tests, " + ", ".join(dict.fromkeys(log.path.name for log in logs))
    fit = fit_links(records, links.bandwidth.value)
    data, shown, changed = dict(base.data), list[ErrorTable](), list[str]()
    if fit is not None:
        data["intra_node"], changed = _with_curves(base.data["intra_node"], fit, origin)
        shown += [each for each in fit.comparisons if each.rows]
    network, crossing = _network_entries(Base(profile_of(data), data), records, origin)
    if network:
        data["inter_node"] = data["inter_node"] | network
        changed += [f"inter_node.{entry}" for entry in network]
        shown += crossing
    if not changed:
        why = "; ".join(_size_count(log) for log in logs)
        message = "the logs change nothing: no collective has enough sizes"
        fix = f"run nccl-tests over {NUM_SIZES} sizes or more, {LARGE_SIZES} of them from 64 KiB on"
        raise InputError.of(TOO_FEW, message, fix=fix, reason=why)
    data["name"] = name
    adapted = f"{', '.join(changed)} adapted to {origin}"
    data["description"] = f"{base.data['description']}; {adapted}"
    notes = [f"changed: {', '.join(changed)}; all else is that of {base.profile.name}"]
    return Fit(data, shown, notes=notes, warnings=list(_warnings(base, logs)))


def _with_curves(section: Data, fit: LinkFit, origin: str) -> tuple[Data, list[str]]:
    """The section `intra_node` with the fitted curves among its own, and the changed entries."""
    section, changed = dict(section), list[str]()
    for kind, (curves, comparison) in fit.curves.items():
        sizes = {curve["num_ranks"] for curve in curves}
        before = section.get(kind.value, {"value": [], "source": ""})
        kept = [curve for curve in before["value"] if curve["num_ranks"] not in sizes]
        entry = measured(origin, comparison)(
            sorted([*kept, *curves], key=lambda curve: curve["num_ranks"])
        )
        if kept:
            others = ", ".join(str(curve["num_ranks"]) for curve in kept)
            entry["source"] += f"; {others} ranks: {before['source']}"
        section[kind.value] = entry
        ranks = ", ".join(map(str, sorted(sizes)))
        changed.append(f"intra_node.{kind.value} of {ranks} ranks")
    if fit.transfers.rows:
        section |= fit.transfer_section(origin)
        changed.append("intra_node.point_to_point")
    return section, changed


def _network_entries(
    base: Base, records: Sequence[CollectiveRecord], origin: str
) -> tuple[Data, list[ErrorTable]]:
    """The entries of the section `inter_node` that rings over whole nodes show, and the errors."""
    profile = base.profile
    per_node = profile.cluster.gpus_per_node.value
    whole = [r for r in records if load_of(r, per_node) is Load.WHOLE and r.op != TRANSFER]
    large = sum(record.array_bytes >= SMALLEST_BYTES for record in whole)
    if profile.inter_node is None or len(whole) < NUM_SIZES or large < LARGE_SIZES:
        return {}, []
    inside = _NodeLinks(profile.links)
    rings = Crossings("collectives", {Load.WHOLE: [ring_crossing(inside, r) for r in whole]})
    network = profile.inter_node
    node_bytes_per_s = network.num_adapters.value * network.adapter_bandwidth.value
    reached = per_node * rings.rates[Load.WHOLE] / node_bytes_per_s
    efficiency = round_significant(min(reached, 1.0))
    rate = efficiency * node_bytes_per_s / per_node
    errors = rings.errors(Load.WHOLE, rate, f", {Load.WHOLE}")
    made = measured(origin, errors)
    entries: dict[str, Any] = {"whole_node_efficiency": made(efficiency)}
    if FALLBACK.name not in base.data.get("collectives", {}):
        entries["step_latency"] = made(micro(rings.latency_s))
    return entries, [errors]


def _size_count(log: Log) -> str:
    first = log.records[0]
    return f"{len(log.records)} sizes of {first.op} over {first.num_ranks} ranks in {log.path}"


def _warnings(base: Base, logs: Sequence[Log]) -> Iterator[str]:
    """Logs of another device than the base's, and records that change nothing."""
    per_node = base.profile.cluster.gpus_per_node.value
    for log in logs:
        if log.device and not describes(base.profile.name, log.device):
            model = base.profile.name.split("_")[0]
            yield f"{log.path} is of {log.device}, and {base.profile.name} describes {model}"
        first = log.records[0]
        if first.num_nodes > 1 and load_of(first, per_node) is not Load.WHOLE:
            what = f"{first.op} over {first.num_ranks} ranks on {first.num_nodes} nodes"
            yield f"{log.path}: not used, {what} is no ring over whole nodes of {per_node}"
