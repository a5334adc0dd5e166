"""Published trainings beside drawn ones, for docs/model.md."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from docs.update.request import Request, table
from simtrain.hardware.load import load_profile
from simtrain.studies.goodput.fleet import Cause, Fleet, TrainingFacts, fleet_of
from simtrain.studies.goodput.training import Training, draw_training
from simtrain.units import DAY_S, HOUR_S

_DRAWS = 10


@dataclass(frozen=True)
class Case:
    """A published figure of a training.

    Args:
        training: in words.
        figure: what was published.
        published: its value, as text.
        fleet: the machines.
        days: how long it ran.
        value: the same figure of a drawn training.
        text: its format.
    """

    training: str
    figure: str
    published: str
    fleet: Fleet
    days: float
    value: Callable[[Training], float]
    text: str = "{:.0f}"


def _fleet(
    profile: str, num_gpus: int, num_parameters: float, gpus_of_replica: int, **fields: object
) -> Fleet:
    """Return the fleet of a training with the failures of a profile; iterations take 20 s."""
    reliability = load_profile(profile).reliability
    assert reliability is not None
    facts = TrainingFacts(
        num_gpus=num_gpus,
        gpus_per_node=8,
        num_replicas=max(1, num_gpus // gpus_of_replica),
        num_parameters=int(num_parameters),
        iteration_time_s=20.0,
    )
    return fleet_of(replace(facts, **fields), reliability)  # type: ignore[arg-type]


def _failing_every(fleet: Fleet, between_s: float, down_s: float) -> Fleet:
    """Return a fleet with one kind of failures, whose recovery takes a published time."""
    cause = Cause("any", 1 / between_s)
    return replace(fleet, causes=(cause,), restart_s=down_s, corruption=None)


def _ratio(training: Training) -> float:
    return 100 * training.effective_ratio


def _interruptions(training: Training) -> float:
    return training.num_interruptions


def _failed_gpus(training: Training) -> float:
    return training.interruptions.get("gpu", 0)


def _hours_between(training: Training) -> float:
    return training.time_s / HOUR_S / max(1, training.num_interruptions)


def cases() -> Iterator[Case]:
    """Yield the published figures."""
    llama = _fleet("h100_sxm", 16_384, 405e9, 128)
    name = "Llama 3 405B, 16,384 H100s, 54 days"
    yield Case(name, "unplanned interruptions", "419", llama, 54, _interruptions)
    yield Case(name, "effective time", "more than 90 %", llama, 54, _ratio, "{:.1f} %")
    dense = _fleet("h100_sxm", 9600, 70e9, 64)
    name = "ByteRobust, dense model, 9,600 GPUs, 3 months"
    yield Case(name, "effective time", "97 %", dense, 90, _ratio, "{:.1f} %")
    cluster = _fleet("a100_sxm4_80gb", 1024, 10e9, 64)
    name = "research cluster, jobs of 1,024 A100s"
    yield Case(name, "hours between failures", "7.9", cluster, 60, _hours_between, "{:.1f}")
    opt = _fleet("a100_sxm4_80gb", 992, 175e9, 8)
    name = "OPT-175B, 992 A100s, 16 days"
    yield Case(name, "restarts", "more than 40", opt, 16, _interruptions)
    bloom = _fleet("a100_sxm4_80gb", 384, 176e9, 48)
    name = "BLOOM, 384 A100s, a week"
    yield Case(name, "failed GPUs", "1 to 2", bloom, 7, _failed_gpus, "{:.1f}")
    huge = _fleet("h100_sxm", 98_304, 405e9, 4096)
    name = "FT-HSDP, 98,304 GPUs, a failure every 18 minutes"
    stops = _failing_every(huge, 18 * 60, 600)
    yield Case(
        f"{name}, 10 minutes to recover", "effective time", "44 %", stops, 3, _ratio, "{:.0f} %"
    )
    goes_on = replace(_failing_every(huge, 18 * 60, 600), reconfiguration_s=180.0)
    yield Case(
        f"{name}, replica by replica in 3", "effective time", "80 %", goes_on, 3, _ratio, "{:.0f} %"
    )


def drawn(case: Case) -> float:
    """Return the mean of a figure over some trainings."""
    seeds = np.random.SeedSequence(0).spawn(_DRAWS)
    limit_s = case.days * DAY_S
    trainings = [draw_training(case.fleet, seed, float("inf"), limit_s) for seed in seeds]
    return float(np.mean([case.value(training) for training in trainings]))


def goodput_cases(request: Request) -> str:
    """Return the table of published trainings."""
    rows = [
        [case.training, case.figure, case.published, case.text.format(drawn(case))]
        for case in cases()
    ]
    return table(["training", "figure", "published", "simulated"], rows)
