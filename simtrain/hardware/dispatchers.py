"""Section `dispatchers` of a hardware profile: kernels that send tokens to experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import create_model

from simtrain.base.entry import Count, Entry, Fraction, Strict
from simtrain.scenario.dispatchers import DISPATCHERS


class DispatchKernels(Strict):
    """A library whose kernels exchange tokens, such as DeepEP.

    Both efficiencies count all bytes that the exchange moves, own tokens of a rank or node too, as
    the libraries' tables do.

    num_sms: multiprocessors that the kernels occupy.
    row_share: share of the time of a row of 7,168 channels in bf16 that a row takes on NVLink
        whatever its bytes; by default 0. At this size the kernels reach `node_efficiency`.
    node_efficiency: reached fraction of a GPU's NVLink, one way.
    network_efficiency: reached fraction of a GPU's share of the adapters, one way.
    """

    num_sms: Entry[Count]
    node_efficiency: Entry[Fraction]
    network_efficiency: Entry[Fraction]
    row_share: Entry[Fraction] | None = None


class _Section(Strict):
    """Bandwidths that the kernels of dispatchers reach; one without an entry cannot be chosen."""


if TYPE_CHECKING:

    class Dispatchers(_Section):
        """The section, with an entry for each dispatcher that needs one by its name, or None."""

        def __getattr__(self, name: str) -> Any: ...

else:
    Dispatchers = create_model(
        "Dispatchers",
        __base__=_Section,
        __module__=__name__,
        __doc__=_Section.__doc__,
        **{
            name: (DispatchKernels | None, None)
            for name, dispatcher in DISPATCHERS.items()
            if dispatcher.needs_entry
        },
    )
