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
from calibrate.records.schema import CollectiveRecord, Header
from simtrain.comparison import Comparison
from simtrain.errors import InputError


@dataclass(frozen=True, slots=True)
class Cluster:
    """Measured links; `missing` names the records that a network would need."""

    per_node: int
    node: LinkFit | None
    network: NetworkFit | None
    checks: Sequence[Comparison]
    missing: Sequence[str]

    @property
    def comparisons(self) -> list[Comparison]:
        """The errors of the fits."""
        inside = self.node.comparisons if self.node else []
        network = self.network
        return [*inside, *([*network.rings.values(), network.transfers] if network else [])]

    @classmethod
    def of(
        cls,
        header: Header,
        records: Sequence[CollectiveRecord],
        sheet: Datasheet | None,
        *,
        is_linked: bool,
    ) -> Cluster:
        """Fit the links that were measured.

        Raises:
            InputError: E720, ranks whose links were not measured and are not another profile's.
        """
        per_node = ranks_per_node(records)
        node = fit_links(records, sheet.link_bandwidth.value if sheet else None)
        crossing = [record for record in records if is_used(record, per_node)]
        missing = missing_for_network(crossing, per_node) if crossing else []
        network = fit_network(crossing, per_node, node) if crossing and not missing else None
        if not is_linked and header.num_nodes > 1 and network is None:
            what = "no network can be fitted between them"
            raise _no_links(f"{header.num_nodes} nodes, but {what}", missing)
        if not is_linked and header.num_ranks > header.num_nodes and node is None:
            raise _no_links(f"{header.num_ranks} ranks, but no collective measured")
        checks = [groups_at_once(records, node)] if node else []
        checks += network.alone if network else []
        return cls(per_node, node, network, [each for each in checks if each.rows], missing)


def _no_links(message: str, missing: Sequence[str] = ()) -> InputError:
    reason = "ranks that work together need links"
    if missing:
        reason = f"too few sizes of {', '.join(missing)}"
    fix = "measure collectives in the same folder, or give --links PROFILE"
    return InputError.of("E720", message, fix=fix, reason=reason)
