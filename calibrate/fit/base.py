"""The profile that gives the entries that were not measured, each with its source."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from calibrate.fit.entry import Data
from calibrate.records.schema import GemmRecord, Header, Measurement, rate_of
from simtrain.base.resources import find_profile, list_profiles
from simtrain.base.strict_yaml import load_document
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile

CPU_BASE = Path(__file__).parents[1] / "cpu_base.yaml"
"""A profile of two threads of a CPU, measured by `python -m calibrate measure --quick`."""


@dataclass(frozen=True, slots=True)
class Base:
    """A profile to copy from, and the plain data of its file.

    `is_chosen` if a user named it: it then gives the links and the network too.
    """

    profile: HardwareProfile
    data: Data
    is_chosen: bool = True

    @classmethod
    def load(cls, name_or_path: str | Path, *, is_chosen: bool = True) -> Self:
        """Load the profile with this name or path.

        Raises:
            InputError: the profile is invalid.
        """
        profile = load_profile(name_or_path)
        return cls(profile, load_document(find_profile(name_or_path)).data, is_chosen)

    @classmethod
    def nearest(cls, header: Header, records: Sequence[Measurement]) -> Self:
        """The shipped profile of the measured device, or else the one nearest in speed and memory.

        For a CPU it is one of a CPU, because no number of a GPU says anything about it.
        """
        if not header.is_gpu:
            return cls.load(CPU_BASE, is_chosen=False)
        shipped = [cls.load(name, is_chosen=False) for name in list_profiles()]
        fastest = max((rate_of(r) for r in records if isinstance(r, GemmRecord)), default=None)

        def distance(base: Base) -> tuple[bool, float]:
            """Return whether the device has another name, and how far its speed and memory are."""
            gpu, gemm = base.profile.gpu, base.profile.gemm
            far = abs(math.log(header.memory_bytes / gpu.memory_capacity.value))
            if fastest is not None:
                far += abs(math.log(fastest / gemm.sustained_flops.value))
            return not describes(base.profile.name, header.device), far

        return min(shipped, key=distance)

    def copied(self, data: Any, why: str = "not measured here") -> Any:
        """The same data; every source names this profile and says why the entry is copied."""
        if not isinstance(data, dict):
            return data
        if "value" in data and "source" in data:
            source = f"copied from {self.profile.name}, {why}: {data['source']}"
            return data | {"source": source}
        return {name: self.copied(item, why) for name, item in data.items()}

    def section(self, name: str, why: str) -> Data:
        """A section of the profile, copied."""
        copy: Data = self.copied(self.data[name], why)
        return copy

    def laid_into(self, data: Data) -> Data:
        """Return a profile's data, completed with the links that it lacks and their sources.

        Measured links stay; the slowdown of overlap comes with the links inside the node, and the
        network with its levels and with the algorithms that its times are for.
        """
        taken, cluster = dict[str, Any](), dict[str, Any]()
        for section, others, of_cluster in (
            ("intra_node", ("overlap",), ("gpus_per_node",)),
            ("inter_node", ("collectives", "dispatchers"), ("num_nodes", "levels")),
        ):
            if section not in data and section in self.data:
                cluster_of_base = self.data["cluster"]
                names = [name for name in (section, *others) if name in self.data]
                taken |= {name: self.copied(self.data[name]) for name in names}
                cluster |= {
                    name: self.copied(cluster_of_base[name])
                    for name in of_cluster
                    if cluster_of_base.get(name)
                }
        if not taken:
            return data
        what = " and ".join(taken)
        description = f"{data['description']}; {what} copied from {self.profile.name}"
        return data | taken | {"cluster": data["cluster"] | cluster, "description": description}


def describes(profile: str, device: str) -> bool:
    """Whether a profile's name is of a device's GPU and form: an H200 is no h20, nor of a gh200.

    No device's name says that it has another power limit, as profiles such as h100_sxm_500w do.
    """
    model, *others = profile.upper().split("_")
    if any(re.fullmatch(r"\d+W", other) for other in others):
        return False
    is_card = "PCIE" in device.upper()
    named = re.search(rf"(?<![A-Z]){model}(?!\d)", device.upper())
    return named is not None and ("PCIE" in others) == is_card
