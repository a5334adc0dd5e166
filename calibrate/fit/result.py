"""The result of a fit: the data of a profile's file, and the errors of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.fit.entry import Data
from calibrate.fit.unused import Unused
from simtrain.comparison import Comparison
from simtrain.hardware.profile import HardwareProfile
from simtrain.strict_yaml import Positions, validate


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile as plain data, and its errors.

    Args:
        data: the data of the profile's file.
        residuals: predictions compared with the measurements that the fit used.
        num_left_out: records that spread by more than their median, and were not used.
        checks: predictions compared with records that the fit did not use.
        unused: series of records that no number of the profile needs.
        notes: sections that the profile lacks, and why.
        warnings: parts that are far off.
    """

    data: Data
    residuals: Sequence[Comparison]
    num_left_out: int = 0
    checks: Sequence[Comparison] = ()
    unused: Sequence[Unused] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def profile(self) -> HardwareProfile:
        """The validated profile."""
        return profile_of(self.data)


def profile_of(data: Data) -> HardwareProfile:
    """The profile of plain data.

    Raises:
        InputError: no profile can have these values.
    """
    return validate(HardwareProfile, data, Positions())
