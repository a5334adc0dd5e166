"""Bandwidths that an offloaded optimizer uses on the host."""

from __future__ import annotations

from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import HostResource


def host_bytes_per_s(resource: HostResource, profile: HardwareProfile) -> float:
    """One GPU's share, in bytes/s, while all GPUs of the node use the resource."""
    link = profile.host_link
    assert link is not None, "scenario.check refuses offloading without a host_link"
    return {
        HostResource.LINK: link.bandwidth.value,
        HostResource.ADAM: link.adam_bandwidth.value,
    }[resource]
