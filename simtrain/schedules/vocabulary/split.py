"""What a split of the vocabulary answers: its passes, its barriers, and when they run.

Every stage holds an equal part of the embedding and of the output layer. For each microbatch, every
stage runs two passes of the output layer, which all-reduces of statistics of the softmax separate
(Yeung et al. 2024, "Balancing Pipeline Parallelism with Vocabulary Parallelism", arXiv 2411.05288).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from simtrain.schedules.schedule import Ints, Schedule
from simtrain.schedules.slots import earliest_slots


class VocabularySplit(ABC):
    """A way to split the vocabulary over the stages of a pipeline."""

    name: ClassVar[str]
    """What a scenario writes as parallelism.vocabulary."""
    summary: ClassVar[str]
    """What it does, after its name."""
    num_intervals: ClassVar[int]
    """Barriers between a microbatch's last forward and its first backward pass that other passes
    hide: the pipeline has as many more microbatches in flight.
    """
    has_early_gradient: ClassVar[bool] = False
    """Whether the first pass also computes the input gradient, with the statistics of its part."""

    def more_forwards(self, later_stages: int) -> int:
        """Return how many more warm-up forwards than 1F1B a stage with these later stages runs."""
        return self.num_intervals

    def slots(self, schedule: Schedule) -> tuple[Ints, Ints]:
        """Return [actions], start and end of the actions of a schedule without vocabulary passes.

        F, I and W take a slot, B two, and messages none.
        """
        return earliest_slots(schedule)

    @abstractmethod
    def second_pass_times(self, ends: Ints, starts: Ints) -> Ints:
        """Return when the second passes of the output layer can run, [microbatches].

        Args:
            ends: [microbatches], end of each microbatch's last forward pass.
            starts: [microbatches], start of each microbatch's first backward pass.

        Each time is at least that of `ends`, and at most that of `starts` if the backward pass
        waits for the second pass.
        """
