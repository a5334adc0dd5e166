"""What a rank does over time, coarse enough for a picture: a lane for compute, others below it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from simtrain.engine.compiled import Flags, Floats
from simtrain.traces.kernels import RankKernels
from simtrain.traces.kinds import Role
from simtrain.views.view import Lane, LaneSpan

_NUM_SLICES = 1200


def lanes_of(kernels: RankKernels, end_s: float) -> tuple[Lane, ...]:
    """Return the lanes of a rank, in slices of a picture that ends at `end_s`.

    A slice shows the kind that takes most of it, or nothing if less than half of it is busy.
    """
    edges_s = np.linspace(0.0, end_s, _NUM_SLICES + 1)
    lanes = []
    for role in (Role.COMPUTE, Role.COMMUNICATION):
        kinds = [kind for kind in kernels.kinds if kind.role is role]
        if kinds:
            seconds = np.stack(
                [_seconds(kernels, kernels.of_kind(kind), edges_s) for kind in kinds]
            )
            is_busy = seconds.sum(axis=0) >= 0.5 * end_s / _NUM_SLICES
            longest = np.where(is_busy, seconds.argmax(axis=0), -1).tolist()
            lanes.append(Lane(role.value, _spans(longest, [k.label for k in kinds], edges_s)))
    return tuple(lanes)


def _seconds(kernels: RankKernels, chosen: Flags, edges_s: Floats) -> Floats:
    """Return the seconds of some kernels in each slice; kernels at once count each."""
    start_s, end_s = np.sort(kernels.start_s[chosen]), np.sort(kernels.end_s[chosen])
    # The seconds before a moment: each kernel that began, up to the moment, less what has ended.
    begun = np.searchsorted(start_s, edges_s)
    ended = np.searchsorted(end_s, edges_s)
    sum_of_starts = np.append(0.0, np.cumsum(start_s))[begun]
    sum_of_ends = np.append(0.0, np.cumsum(end_s))[ended]
    before_s = (begun - ended) * edges_s - sum_of_starts + sum_of_ends
    difference: Floats = np.diff(before_s)
    return difference


def _spans(kinds: Sequence[int], labels: Sequence[str], edges_s: Floats) -> tuple[LaneSpan, ...]:
    spans, place = [], 0
    for kind, run in groupby(kinds):
        end = place + len([*run])
        if kind >= 0:
            spans.append(LaneSpan(float(edges_s[place]), float(edges_s[end]), labels[kind]))
        place = end
    return tuple(spans)
