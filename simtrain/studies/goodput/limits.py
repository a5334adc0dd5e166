"""What a goodput is asked for, read and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args

from simtrain.errors import InputError, Location, did_you_mean
from simtrain.scenario import Scenario
from simtrain.studies.cost.limits import read_tokens
from simtrain.studies.goodput.fleet import Fleet
from simtrain.studies.goodput.length import MOST_DAYS
from simtrain.studies.goodput_request import (
    CheckpointMode,
    GoodputRequest,
    Recovery,
    WithoutSpare,
)
from simtrain.units import DAY_S, UnitError, format_seconds, parse_seconds

_MOST_DRAWS = 100_000


@dataclass(frozen=True, slots=True)
class Terms:
    """When a training ends, and how often it is saved.

    Args:
        num_tokens: tokens after which it ends; None without.
        limit_s: seconds after which it ends; infinite without.
        interval_s: time between checkpoints; None for the best one.
    """

    num_tokens: int | None
    limit_s: float
    interval_s: float | None

    @classmethod
    def read(cls, request: GoodputRequest) -> Terms:
        """Parse the texts of a command line or a call.

        Raises:
            InputError: neither or both of tokens and days are given (E885), a number is out of its
                range (E886), or a time is none (E887).
        """
        tokens, days = request.tokens, request.days
        if (tokens is None) == (days is None):
            both = "both --tokens and --days are" if tokens else "neither --tokens nor --days is"
            raise InputError.of(
                "E885",
                f"{both} given",
                Location("--tokens"),
                fix="write one of them: --tokens 1T, or --days 54",
                reason="a training ends after its tokens, or after some days",
            )
        fix = f"a number of days above 0 and at most {MOST_DAYS:,}, such as 54"
        _check_number("--days", days, fix, above=0, most=MOST_DAYS)
        _check_whole("--spares", request.spares, "a whole number from 0 on", least=0)
        fix = f"a whole number from 1 to {_MOST_DRAWS:,}"
        _check_whole("--draws", request.draws, fix, least=1, most=_MOST_DRAWS)
        _check_word("--checkpoint", request.checkpoint, CheckpointMode)
        _check_word("--recovery", request.recovery, Recovery)
        _check_word("--without-spare", request.without_spare, WithoutSpare)
        _check_whole("--seed", request.seed, "a whole number from 0 on", least=0)
        return cls(
            None if tokens is None else read_tokens(str(tokens)),
            math.inf if days is None else days * DAY_S,
            None if request.interval is None else _read_interval(request.interval),
        )


def check_gpus(scenario: Scenario, gpus: int) -> int:
    """Return the replicas that so many GPUs hold.

    Raises:
        InputError: the GPUs are no multiple of those of a replica (E886).
    """
    of_replica = scenario.num_gpus // scenario.parallelism.data
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1 or gpus % of_replica:
        nearest = max(1, round(gpus / of_replica) if isinstance(gpus, Real) else 1) * of_replica
        raise InputError.of(
            "E886",
            f"--gpus is {gpus}, not a multiple of the {of_replica} GPUs of a replica",
            Location("--gpus"),
            fix=f"write --gpus {nearest}",
            reason="a training has whole replicas of its model",
        )
    return gpus // of_replica


def check_memory(num_nodes: int, request: GoodputRequest) -> None:
    """Refuse checkpoints in the memory of another node if there is none (E886)."""
    if request.checkpoint == "memory" and num_nodes == 1:
        raise InputError.of(
            "E886",
            "--checkpoint memory with 1 node",
            Location("--checkpoint memory"),
            fix="write --checkpoint async, or more --gpus",
            reason="a node that fails loses its memory",
        )


def check_fleet(fleet: Fleet, write_s: float, request: GoodputRequest) -> None:
    """Refuse checkpoints that begin before the last one is written (E888)."""
    interval_s = fleet.checkpoint.interval_s
    if interval_s < write_s:
        raise InputError.of(
            "E888",
            f"a checkpoint takes {format_seconds(write_s)} to write, longer than the interval of "
            f"{format_seconds(interval_s)}",
            Location(f"--interval {request.interval}"),
            fix=f'write --interval "{math.ceil(write_s)} s" or longer, or set a faster '
            "hardware.reliability.checkpoints.write_bandwidth",
            reason="checkpoints would pile up",
        )


def _read_interval(text: str) -> float:
    try:
        return parse_seconds(text)
    except UnitError as error:
        message, place = f"the interval is no time: {error}", Location("--interval")
        raise InputError.of("E887", message, place, fix=error.fix) from error


def _check_word(option: str, value: object, words: Any) -> None:
    known = get_args(words)
    if value not in known:
        question = did_you_mean(str(value), known)
        message = f"{option} is {value!r}"
        raise InputError.of(
            "E886", message, Location(option), fix=f"{question}write {' or '.join(known)}"
        )


def _check_number(option: str, value: Any, fix: str, *, above: float, most: float) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if value is None or (is_number and above < value <= most):
        return
    message = f"{option} is {value!r}"
    raise InputError.of("E886", message, Location(option), fix=f"write {fix}")


def _check_whole(
    option: str, value: object, fix: str, *, least: int, most: float = math.inf
) -> None:
    if value is None or (type(value) is int and least <= value <= most):
        return
    message = f"{option} is {value!r}"
    raise InputError.of("E886", message, Location(option), fix=f"write {fix}")
