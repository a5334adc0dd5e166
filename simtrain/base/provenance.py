"""Provenance of a result: version of simtrain, and the hardware profile with its hash."""

from __future__ import annotations

from hashlib import sha256

from simtrain.base.resources import find_profile
from simtrain.base.version import VERSION


def provenance(cluster: str) -> dict[str, str]:
    """Return the version, the profile's name or path, and the SHA-256 of its file."""
    digest = profile_sha256(cluster)
    return {"simtrain": VERSION, "profile": cluster, "profile_sha256": digest}


def profile_sha256(cluster: str) -> str:
    """Return the SHA-256 of the file of a hardware profile, given by name or path."""
    return sha256(find_profile(cluster).read_bytes()).hexdigest()
