"""The section `variation` of a scenario: what differs between ranks, replicas and iterations."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from simtrain.base.input_file import FileVersion
from simtrain.base.strict_yaml import FieldError, read_text
from simtrain.errors import InputError, Location
from simtrain.scenario.section import MAX_COUNT, Count, CountOrZero, Section
from simtrain.units import parse_non_negative_seconds, parse_seconds

_MOST_BYTES = 64 << 20


def read_lengths(file: str) -> tuple[int, ...]:
    """Return the lengths in a file; empty lines are skipped.

    Raises:
        InputError: the file cannot be read (E101 to E103), or a line is no length (E965).
    """
    return _lengths(FileVersion.of(file))


@functools.lru_cache(maxsize=8)
def _lengths(version: FileVersion) -> tuple[int, ...]:
    lengths = []
    text = read_text(Path(version.file), _MOST_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word:
            continue
        if not (word.isascii() and word.isdigit() and 0 < int(word) <= MAX_COUNT):
            raise InputError.of(
                "E965",
                f"{word[:40]!r} is no number of tokens",
                Location(version.file, number, 1, line[:200]),
                fix="write a whole number above 0 on each line",
                reason="each line is the length of a document, of which draws take one at a time",
            )
        lengths.append(int(word))
    if not lengths:
        message, fix = "the file has no lengths", "write a number of tokens on each line"
        raise InputError.of("E965", message, Location(version.file), fix)
    return tuple(lengths)


MOST_RELATIVE = 0.3
"""Largest relative standard deviation. Beyond it, normal factors would often be near zero."""

MOST_PAUSES = 3_600_000.0
"""Most pauses per GPU and hour, 1,000 a second. Beyond it, they are no longer rare."""


def _time(text: str) -> str:
    parse_non_negative_seconds(text)
    return text


def _time_above_zero(text: str) -> str:
    parse_seconds(text)
    return text


_Relative = Annotated[float, Field(ge=0, le=MOST_RELATIVE)]
_Time = Annotated[str, AfterValidator(_time)]
_TimeAboveZero = Annotated[str, AfterValidator(_time_above_zero)]


class Pauses(Section):
    """Rare pauses of single GPUs, of which every rank of the GPU's group waits for the end.

    per_gpu_hour: pauses per GPU and hour of computing; by default (null) the profile's.
    duration: mean duration of a pause; durations are exponential. By default (null) the profile's.
    """

    per_gpu_hour: Annotated[float, Field(ge=0, le=MOST_PAUSES)] | None = Field(
        default=None, examples=[0.5]
    )
    duration: _Time | None = Field(default=None, examples=["50 ms"])


class Slow(Section):
    """A GPU, node or link that is slow in every iteration.

    what: gpu (default): the kernels of one GPU take factor times as long; node: the kernels of all
        GPUs of a node, which is an NVLink domain; link: the transfers and collectives through the
        network adapters of a node.
    rank: rank whose GPU or node it is, counted from 0 over all ranks (placement.order). 0 by
        default.
    factor: time relative to that of the others, from 1 on.
    """

    what: Literal["gpu", "node", "link"] = Field(default="gpu", examples=["node"])
    rank: CountOrZero = Field(default=0, examples=[5])
    factor: Annotated[float, Field(ge=1, le=1000)] = Field(examples=[1.2])


def _readable(file: str) -> str:
    """Return the path of a file of lengths if it can be read; raises InputError."""
    read_lengths(file)
    return file


class SequenceLengths(Section):
    """The distribution of the documents that sequences pack.

    Lengths are log-normal, or drawn from a file. Documents are laid one after another and cut where
    a sequence is full (Megatron-LM's GPTDataset); attention stays within a document, as with
    batch.packed_lengths.

    mean: mean number of tokens of a document; null with a file.
    sigma: standard deviation of the natural logarithm of its length; 1 by default.
    file: text file with the length of a document per line, of which each drawn document takes one,
        relative to the scenario's file; null by default.
    """

    mean: Count | None = Field(default=None, examples=[1000])
    sigma: Annotated[float, Field(ge=0, le=3)] = Field(default=1.0, examples=[1.5])
    file: Annotated[str, Field(min_length=1), AfterValidator(_readable)] | None = Field(
        default=None, examples=["lengths.txt"]
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.mean is None) == (self.file is None):
            both = "has both mean and file" if self.file else "has neither mean nor file"
            raise FieldError((), both, "write one of them, such as mean: 1000")
        return self


class GarbageCollection(Section):
    """Pauses of the processes for Python's garbage collection.

    every: iterations between two pauses of a process.
    pause: time of a pause.
    synchronized: true if all processes pause in the same iteration (--manual-gc of Megatron-LM);
        false (default) if each pauses at a time of its own.
    """

    every: Count = Field(examples=[100])
    pause: _TimeAboveZero = Field(examples=["300 ms"])
    synchronized: bool = Field(default=False, examples=["true"])


class DataLoader(Section):
    """The rate at which batches are loaded.

    sequences_per_s: sequences that the loader of each replica prepares per second.
    prefetch: iterations whose sequences it prepares ahead. 2 by default.
    """

    sequences_per_s: Annotated[float, Field(gt=0)] = Field(examples=[20.0])
    prefetch: Count = Field(default=2, examples=[1])


class Periodic(Section):
    """Work between iterations, for which all ranks wait.

    every: iterations from one to the next.
    time: time that it takes.
    """

    every: Count = Field(examples=[1000])
    time: _TimeAboveZero = Field(examples=["30 s"])


class Variation(Section):
    """What differs between ranks, replicas and iterations (simtrain run --draws).

    If a field of this section is set, simtrain run also draws the iteration many times. Fields that
    are null take the entry of the hardware profile, or that of h100_sxm if it has none; 0 switches
    them off.

    kernels: standard deviation of the time of a GPU's kernels in a pass, relative to its mean.
    collectives: standard deviation of the time of transfers and collectives, relative to its mean.
    gpu_spread: standard deviation between GPUs of the time that kernels take, which is drawn once
        for all iterations.
    pauses: rare pauses of single GPUs; by default (null) the profile's.
    slow: a GPU, node or link that is slow in every iteration; null by default.
    sequence_lengths: documents of uneven length; null by default.
    garbage_collection: pauses of the processes; null by default.
    data_loader: rate of the data; null by default, which never waits.
    evaluation: evaluation between iterations; null by default.
    logging: logging between iterations; null by default.
    """

    kernels: _Relative | None = Field(default=None, examples=[0.02])
    collectives: _Relative | None = Field(default=None, examples=[0.05])
    gpu_spread: _Relative | None = Field(default=None, examples=[0.004])
    pauses: Pauses | None = None
    slow: Slow | None = None
    sequence_lengths: SequenceLengths | None = None
    garbage_collection: GarbageCollection | None = None
    data_loader: DataLoader | None = None
    evaluation: Periodic | None = None
    logging: Periodic | None = None

    @property
    def is_set(self) -> bool:
        """Whether a field is set; null stands for the profile's entry, or for nothing."""
        return any(value is not None for value in vars(self).values())
