"""Durations of work at all positions of the sliders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simtrain.durations.model import DurationModel
from simtrain.engine.compiled import Floats
from simtrain.hardware.profile import HardwareProfile
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.sentences import Number, Sentence, joined_sentences
from simtrain.units import format_seconds
from simtrain.workload.work import Collective, HostWork, Work

FACTORS = 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0
"""Factor at each position of a slider. 1 is the simulated cluster."""
BASE = FACTORS.index(1.0)


@dataclass(frozen=True, slots=True)
class Slider:
    """A slider.

    Args:
        label: label on the page.
        resources: resources (`hardware.upgrades`) that the slider multiplies together.
        amount: the rate, bandwidth or latency of a profile as text.
        lengthens: whether the slider multiplies times, so that a smaller factor is faster.
    """

    label: str
    resources: tuple[str, ...]
    amount: Callable[[HardwareProfile], Sentence]
    lengthens: bool = False

    def moved(self, profile: HardwareProfile, factor: float) -> HardwareProfile:
        """Return the profile at a position of the slider."""
        resources = [RESOURCES[name] for name in self.resources]
        return with_more(profile, resources, 1 / factor if self.lengthens else factor)


def _compute(profile: HardwareProfile) -> Sentence:
    rate = profile.gpu.peak_flops.value
    return Sentence(Number(rate, f"{rate / 1e12:,.4g} TFLOP/s"), " in bf16")


def _memory(profile: HardwareProfile) -> Sentence:
    rate = profile.gpu.memory_bandwidth.value
    return Sentence(Number(rate, f"{rate / 1e12:.3g} TB/s"))


def _nvlink(profile: HardwareProfile) -> Sentence:
    return _of_each_gpu(profile.links.bandwidth.value)


def _network(profile: HardwareProfile) -> Sentence:
    return _of_each_gpu(profile.adapter_share_bytes_per_s)


def _of_each_gpu(rate: float) -> Sentence:
    return Sentence(Number(rate, f"{rate / 1e9:,.4g} GB/s"), " for each GPU, one way")


def _latency(profile: HardwareProfile) -> Sentence:
    links = {"inside a node": profile.intra_node, "between nodes": profile.inter_node}
    latencies = {
        place: section.point_to_point.latency.value for place, section in links.items() if section
    }
    return joined_sentences(
        ", ",
        (
            Sentence(Number(seconds, format_seconds(seconds)), f" {place}")
            for place, seconds in latencies.items()
        ),
    )


SLIDERS = {
    "compute": Slider("compute rate", ("tensor_cores",), _compute),
    "memory": Slider("memory bandwidth", ("memory_bandwidth",), _memory),
    "nvlink": Slider("NVLink bandwidth", ("nvlink_bandwidth",), _nvlink),
    "network": Slider("network bandwidth", ("network_bandwidth",), _network),
    "latency": Slider(
        "link latency", ("nvlink_latencies", "network_latencies"), _latency, lengthens=True
    ),
}
"""The sliders by name."""
KERNEL, NODE, NETWORK = (
    ("compute", "memory"),
    ("latency", "nvlink"),
    ("latency", "nvlink", "network"),
)
"""Sliders on which kernels, communication inside a node and communication across nodes depend.

`_moved` changes profiles from left to right. Latencies change the most entries of a profile, so
they come first, when there are the fewest profiles to change.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A value at each combination of slider positions.

    Args:
        axes: names of the sliders on which the value depends.
        values: an array with one axis of `FACTORS` for each slider in `axes`.
    """

    axes: tuple[str, ...]
    values: Floats


@dataclass(frozen=True)
class Grid:
    """Durations on a profile at all positions of the sliders."""

    profile: HardwareProfile
    _models: dict[tuple[str, ...], list[DurationModel]] = field(default_factory=dict, repr=False)

    def table(self, axes: tuple[str, ...], value: Callable[[DurationModel], float]) -> Table:
        """Return the table of a value that depends on the sliders `axes` at most.

        Axes along which the value is constant are removed.
        """
        if axes not in self._models:
            self._models[axes] = [*map(DurationModel, _moved(self.profile, axes))]
        found = np.array([*map(value, self._models[axes])])
        return _without_constant_axes(axes, found.reshape([len(FACTORS)] * len(axes)))


def axes_of(work: Work) -> tuple[str, ...]:
    """Return the sliders on which the time of `work` can depend."""
    if isinstance(work, HostWork):
        return ()
    if not isinstance(work, Collective):
        return KERNEL
    return NODE if work.group.inside_one_node else NETWORK


def _moved(profile: HardwareProfile, axes: tuple[str, ...]) -> list[HardwareProfile]:
    """Return the profiles at all positions of some sliders; the last axis varies fastest."""
    profiles = [profile]
    for name in axes:
        profiles = [SLIDERS[name].moved(one, factor) for one in profiles for factor in FACTORS]
    return profiles


def _without_constant_axes(axes: tuple[str, ...], values: Floats) -> Table:
    for place, name in reversed([*enumerate(axes)]):
        first = np.asarray(values.take(0, axis=place))
        if (values == np.expand_dims(first, place)).all():
            axes, values = tuple(one for one in axes if one != name), first
    return Table(axes, values)
