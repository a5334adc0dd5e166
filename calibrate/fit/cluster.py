"""Fits the links of a cluster: those inside a node, and the network between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.fit.datasheets import Datasheet
from calibrate.fit.links import LinkFit, fit_links, groups_at_once
from calibrate.fit.network import (
    NetworkFit,
    fit_network,
    is_used,
    missing_for_network,
    ranks_per_node,
)
from calibrate.fit.residuals import Residuals
from calibrate.records.schema import CollectiveRecord, Header
from simtrain.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class Cluster:
    """Links inside a node and the network, where they were measured; `per_node` ranks a node.

    `at_once` holds the fit inside a node against several groups; `missing` is why records across
    nodes made no network.
    """

    per_node: int
    node: LinkFit | None
    network: NetworkFit | None
    at_once: Residuals
    missing: Sequence[str]

    @property
    def residuals(self) -> list[Residuals]:
        """How far the fits are from what they were fitted on."""
        node, network = self.node, self.network
        inside = [] if node is None else [*node.residuals.values(), node.point_to_point]
        across = [] if network is None else [*network.residuals.values(), network.transfers]
        return [*inside, *across]

    @property
    def checks(self) -> list[Residuals]:
        """What the fits say of records that they did not need."""
        alone = self.network.alone if self.network else []
        return [residuals for residuals in (self.at_once, *alone) if residuals.rows]

    @classmethod
    def of(
        cls,
        header: Header,
        records: Sequence[CollectiveRecord],
        sheet: Datasheet | None,
        *,
        is_linked: bool,
    ) -> Cluster:
        """Fit what there is.

        Raises:
            InputError: E720, ranks whose links were not measured and are not another profile's.
        """
        per_node = ranks_per_node(records)
        node = fit_links(records, sheet.link_bandwidth.value if sheet else None)
        crossing = [record for record in records if is_used(record, per_node)]
        missing = missing_for_network(crossing, per_node) if crossing else []
        network = fit_network(crossing, per_node, node) if crossing and not missing else None
        if not is_linked:
            if header.num_nodes > 1 and network is None:
                raise InputError([_no_network(header.num_nodes, missing)])
            if header.num_ranks > header.num_nodes and node is None:
                raise InputError([_no_links(header.num_ranks)])
        at_once = Residuals("", "us", ()) if node is None else groups_at_once(records, node)
        return cls(per_node, node, network, at_once, missing)


def _no_links(num_ranks: int) -> Problem:
    fix = "measure collectives in the same folder, or give --links PROFILE"
    reason = "ranks that work together need links"
    return Problem("E720", f"{num_ranks} ranks, but no collective measured", None, reason, fix)


def _no_network(num_nodes: int, missing: Sequence[str]) -> Problem:
    reason = f"too few sizes of {', '.join(missing)}" if missing else "no collective measured"
    return Problem(
        "E720",
        f"{num_nodes} nodes, but no network can be fitted between them",
        None,
        reason,
        "measure collectives in the same folder, or give --links PROFILE",
    )
