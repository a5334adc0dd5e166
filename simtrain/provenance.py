"""Provenance of a result: version of simtrain, and the hardware profile with its hash."""

from __future__ import annotations

from hashlib import sha256

from simtrain.resources import find_profile
from simtrain.version import VERSION


def provenance(cluster: str) -> dict[str, str]:
    """Return the version, the profile's name or path, and the SHA-256 of its file."""
    digest = sha256(find_profile(cluster).read_bytes()).hexdigest()
    return {"simtrain": VERSION, "profile": cluster, "profile_sha256": digest}
