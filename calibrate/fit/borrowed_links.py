"""Completes a measured profile with the links of another profile (`--links`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simtrain.errors import InputError, Location, Problem
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.resources import find_profile
from simtrain.strict_yaml import load_document


@dataclass(frozen=True, slots=True)
class Links:
    """A profile with links to borrow, and the plain data of its file."""

    profile: HardwareProfile
    data: dict[str, Any]

    @classmethod
    def load(cls, name_or_path: Path) -> Links:
        """Load the links of the profile with this name or path.

        Raises:
            InputError: the profile is invalid; E722, it has no links.
        """
        profile = load_profile(name_or_path)
        if profile.intra_node is None and profile.inter_node is None:
            reason = "it is the profile of one GPU"
            fix = "name the profile of a node or of a cluster"
            where = Location(str(name_or_path))
            raise InputError([Problem("E722", "the profile has no links", where, reason, fix)])
        return cls(profile, load_document(find_profile(name_or_path)).data)

    def laid_into(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return a profile's data, completed with the links that it lacks and their sources.

        Measured links stay; the slowdown of overlap comes with the links inside the node, and the
        network with its levels and with the algorithms that its times are for.
        """
        taken: dict[str, Any] = {}
        cluster: dict[str, Any] = {}
        for section, others, of_cluster in (
            ("intra_node", ("overlap",), ("gpus_per_node",)),
            ("inter_node", ("collectives",), ("num_nodes", "levels")),
        ):
            if section not in data and section in self.data:
                own = self.data["cluster"]
                names = [name for name in (section, *others) if name in self.data]
                taken |= {name: self._taken(self.data[name]) for name in names}
                cluster |= {name: self._taken(own[name]) for name in of_cluster if own.get(name)}
        if not taken:
            return data
        what = " and ".join(taken)
        description = f"{data['description']}; {what} taken over from {self.profile.name}"
        return data | taken | {"cluster": data["cluster"] | cluster, "description": description}

    def _taken(self, data: Any) -> Any:
        """The same data; every source names the other profile."""
        if not isinstance(data, dict):
            return data
        if "value" in data and "source" in data:
            source = f"taken over from {self.profile.name}, not measured here: {data['source']}"
            return data | {"source": source}
        return {name: self._taken(item) for name, item in data.items()}
