"""Profiles by the names that devices give themselves."""

import re


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
