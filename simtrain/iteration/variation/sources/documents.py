"""Documents of uneven length: each microbatch has its own attention work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from simtrain.engine.compiled import Floats
from simtrain.hardware.variation import VariationEntries
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.programs.seconds import IterationSeconds, passes_of
from simtrain.iteration.variation.draw import Draw
from simtrain.iteration.variation.response import Response
from simtrain.iteration.variation.sources.source import Source
from simtrain.scenario.lengths_file import read_lengths
from simtrain.scenario.variation_section import Variation

_SHORTEST = 128
"""Tokens of the shortest documents whose passes are simulated."""


@dataclass(frozen=True, slots=True)
class UnevenDocuments(Source):
    """Sequences pack documents of log-normal length, within which attention stays.

    The work of attention in a sequence is proportional to the sum of the squares of its documents'
    lengths; all other work is the same. The engine simulates the passes with documents of s, s/2,
    s/4, ... tokens; between these sums of squares the time is interpolated.

    Args:
        mean: mean tokens of a document.
        sigma: standard deviation of the logarithm of its length.
        seq_length: tokens of a sequence.
        lengths: lengths of which each document has one, in place of log-normal ones.
    """

    name: ClassVar = "sequence_lengths"
    mean: float
    sigma: float
    seq_length: int
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, variation: Variation, entries: VariationEntries, plan: Plan
    ) -> UnevenDocuments | None:
        """Return the source; None without a distribution."""
        lengths = variation.sequence_lengths
        if lengths is None:
            return None
        seq_length = plan.scenario.model.seq_length
        if lengths.mean is not None:
            return cls(lengths.mean, lengths.sigma, seq_length)
        assert lengths.file is not None, "the section has a mean or a file"
        of_file = read_lengths(lengths.file)
        return cls(sum(of_file) / len(of_file), 0.0, seq_length, of_file)

    @property
    def words(self) -> str:
        """What varies."""
        return f"sequences pack documents of {self.mean:,.0f} tokens in the mean"

    def pass_responses(self, seconds: IterationSeconds) -> Mapping[PassPart, Response]:
        """Return the time of each different pass at sums of squares, relative to its usual time."""
        plan, machine = seconds.plan, seconds.machine
        domains = machine.profile.cluster.domains_of(plan.scenario.num_gpus)
        points: dict[PassPart, list[tuple[float, float]]] = {}
        for length in self._lengths():
            scenario = plan.scenario.replace({"batch.packed_lengths": [length]})
            packed = Plan.of(scenario, domains, plan.num_saved_per_stage)
            share = _share(np.array([length] * (self.seq_length // length)), self.seq_length)
            share += (self.seq_length % length) ** 2 / self.seq_length**2
            for part, pass_ in passes_of(packed):
                usual_s = seconds.passes[part].duration_s
                ratio = machine.time(pass_).duration_s / usual_s if usual_s else 1.0
                points.setdefault(part, []).append((share, ratio))
        return {
            part: Response(*zip(*sorted(of_part), strict=True)) for part, of_part in points.items()
        }

    def disturb(self, draw: Draw, rng: Generator) -> None:
        """Draw the documents of all sequences of each replica, one stream of documents for each."""
        tasks = draw.tasks
        draw.attention = np.stack(
            [self._shares(tasks.num_microbatches, rng) for _ in range(tasks.num_replicas)]
        )

    def _shares(self, num_sequences: int, rng: Generator) -> Floats:
        """Return [sequences], the sums of squares relative to one document per sequence."""
        tokens = num_sequences * self.seq_length
        ends = [np.zeros(1)]
        while ends[-1][-1] < tokens:
            number = int((tokens - ends[-1][-1]) / self.mean * 1.1) + 16
            ends.append(ends[-1][-1] + np.cumsum(self._drawn(number, rng)))
        cuts = np.arange(1, num_sequences + 1) * self.seq_length
        borders = np.unique(np.concatenate([*ends, cuts]))
        borders = borders[borders <= tokens]
        pieces = np.diff(borders)
        of_sequence = ((borders[1:] - 1) // self.seq_length).astype(np.intp)
        shares: Floats = np.bincount(of_sequence, pieces**2, num_sequences) / self.seq_length**2
        return shares

    def _drawn(self, number: int, rng: Generator) -> Floats:
        """Return the lengths of some documents."""
        if self.lengths:
            return rng.choice(np.array(self.lengths, np.float64), number)
        location = math.log(self.mean) - self.sigma**2 / 2
        return np.rint(rng.lognormal(location, self.sigma, number)).clip(1)

    def _lengths(self) -> Iterator[int]:
        length = self.seq_length
        while True:
            yield length
            if length <= _SHORTEST:
                return
            length //= 2


def _share(lengths: Floats, seq_length: int) -> float:
    return float((lengths.astype(np.float64) ** 2).sum()) / seq_length**2
