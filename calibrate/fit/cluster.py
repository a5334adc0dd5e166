"""Fits the links of a cluster: those inside a node, and the network between nodes."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.fit.datasheets import Datasheet
from calibrate.fit.links import fit_links, groups_at_once
from calibrate.fit.network import (
    NetworkFit,
    is_used,
    missing_for_network,
    ranks_per_node,
)
from calibrate.records.schema import CollectiveRecord, Header
from simtrain.comparison import Comparison
from simtrain.errors import InputError


class Cluster:
    """The measured links of a cluster.

    Args:
        header: the machine.
        records: its collectives.
        sheet: the datasheet of its GPUs.
        is_linked: whether another profile gives the links that were not measured.

    Attributes:
        per_node: ranks per node.
        node, network: the fits, if there are records for them.
        checks: errors of records that no fit uses.
        missing: names of the records that a network would need.

    Raises:
        InputError: E720, ranks whose links were not measured and are not another profile's.
    """

    def __init__(
        self,
        header: Header,
        records: Sequence[CollectiveRecord],
        sheet: Datasheet | None,
        *,
        is_linked: bool,
    ) -> None:
        self.per_node = per_node = ranks_per_node(records)
        self.node = fit_links(records, sheet.link_bandwidth.value if sheet else None)
        crossing = [record for record in records if is_used(record, per_node)]
        self.missing = missing_for_network(crossing, per_node) if crossing else []
        has_network = bool(crossing) and not self.missing
        self.network = NetworkFit(crossing, per_node, self.node) if has_network else None
        if not is_linked and header.num_nodes > 1 and not has_network:
            what = f"{header.num_nodes} nodes, but no network can be fitted between them"
            raise _no_links(what, self.missing)
        if not is_linked and header.num_ranks > header.num_nodes and self.node is None:
            raise _no_links(f"{header.num_ranks} ranks, but no collective measured")
        checks = [groups_at_once(records, self.node)] if self.node else []
        checks += self.network.alone if self.network else []
        self.checks = [each for each in checks if each.rows]

    @property
    def comparisons(self) -> list[Comparison]:
        """The errors of the fits."""
        fits = (self.node, self.network)
        return [each for fit in fits if fit is not None for each in fit.comparisons]


def _no_links(message: str, missing: Sequence[str] = ()) -> InputError:
    """Build the error for a cluster without measured links; `missing` names absent series."""
    reason = "ranks that communicate need links"
    if missing:
        reason = f"too few sizes of {', '.join(missing)}"
    fix = "measure collectives in the same folder, or add --links PROFILE"
    return InputError.of("E720", message, fix=fix, reason=reason)
