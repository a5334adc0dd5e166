"""Speed of what an offloaded optimizer asks of its host."""

from __future__ import annotations

from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import HostResource


def host_bytes_per_s(resource: HostResource, profile: HardwareProfile) -> float:
    """One GPU's share of it while all GPUs of the node use it, in bytes a second."""
    link = profile.host_link
    assert link is not None, "a scenario that offloads is checked against its profile before"
    return {
        HostResource.LINK: link.bandwidth.value,
        HostResource.ADAM: link.adam_bandwidth.value,
    }[resource]
