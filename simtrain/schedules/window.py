"""A moving window over a rank's forward passes: some in each window keep all their activations.

Source: paper, Appendix C; Megatron-LM's num_microbatches_with_partial_activation_checkpoints
(core/pipeline_parallel/schedules.py), which counts the forward passes of a rank, chunk by chunk
where they are interleaved, and cuts them into windows of `max_outstanding_backprops`. Interleaved
chunks go backward in another order than forward, so that for a while a rank can have more of the
kept ones outstanding than a window has.
"""

from collections.abc import Iterable
from itertools import accumulate

from simtrain.schedules.actions import Action

_OUTSTANDING = {"F": 1, "B": -1, "I": 0, "W": -1}


def most_outstanding(actions: Iterable[Action]) -> int:
    """The most forward passes of a rank that still wait for their backward pass at any time."""
    return max(accumulate(_OUTSTANDING[action.kind] for action in actions))


def kept_forwards(actions: Iterable[Action], num_kept: int) -> frozenset[Action]:
    """The rank's forward passes that are among the first `num_kept` of their window."""
    actions = tuple(actions)
    window = most_outstanding(actions)
    forwards = (action for action in actions if action.kind == "F")
    return frozenset(action for i, action in enumerate(forwards) if i % window < num_kept)
