"""The profile that gives the entries that were not measured, each with its source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from scipy.optimize import minimize

from calibrate.records.schema import GemmRecord, Header, Measurement, rate_of
from simtrain.base.accuracy import ErrorTable
from simtrain.base.resources import find_profile, list_profiles
from simtrain.base.strict_yaml import load_document
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile

CPU_BASE = Path(__file__).parents[1] / "cpu_base.yaml"
"""A profile of two threads of a CPU, measured by `simtrain calibrate measure --quick`."""


@dataclass(frozen=True, slots=True)
class Base:
    """A profile to copy from, and the plain data of its file.

    `is_chosen` if a user named it: it then gives the links and the network too.
    """

    profile: HardwareProfile
    data: Data
    is_chosen: bool = True

    @classmethod
    def load(cls, name_or_path: str | Path, *, is_chosen: bool = True) -> Self:
        """Load the profile with this name or path.

        Raises:
            InputError: the profile is invalid.
        """
        profile = load_profile(name_or_path)
        return cls(profile, load_document(find_profile(name_or_path)).data, is_chosen)

    @classmethod
    def nearest(cls, header: Header, records: Sequence[Measurement]) -> Self:
        """The shipped profile of the measured device, or else the one nearest in speed and memory.

        For a CPU it is one of a CPU, because no number of a GPU says anything about it.
        """
        if not header.is_gpu:
            return cls.load(CPU_BASE, is_chosen=False)
        shipped = [cls.load(name, is_chosen=False) for name in list_profiles()]
        fastest = max((rate_of(r) for r in records if isinstance(r, GemmRecord)), default=None)

        def distance(base: Base) -> tuple[bool, float]:
            gpu, gemm = base.profile.gpu, base.profile.gemm
            far = abs(math.log(header.memory_bytes / gpu.memory_capacity.value))
            if fastest is not None:
                far += abs(math.log(fastest / gemm.sustained_flops.value))
            return not describes(base.profile.name, header.device), far

        return min(shipped, key=distance)

    def copied(self, data: Any, why: str = "not measured here") -> Any:
        """The same data; every source names this profile and says why the entry is copied."""
        if not isinstance(data, dict):
            return data
        if "value" in data and "source" in data:
            source = f"copied from {self.profile.name}, {why}: {data['source']}"
            return data | {"source": source}
        return {name: self.copied(item, why) for name, item in data.items()}

    def section(self, name: str, why: str) -> Data:
        """A section of the profile, copied."""
        copy: Data = self.copied(self.data[name], why)
        return copy

    def laid_into(self, data: Data) -> Data:
        """Return a profile's data, completed with the links that it lacks and their sources.

        Measured links stay; the slowdown of overlap comes with the links inside the node, and the
        network with its levels and with the algorithms that its times are for.
        """
        taken, cluster = dict[str, Any](), dict[str, Any]()
        for section, others, of_cluster in (
            ("intra_node", ("overlap",), ("gpus_per_node",)),
            ("inter_node", ("collectives", "dispatchers"), ("num_nodes", "levels")),
        ):
            if section not in data and section in self.data:
                cluster_of_base = self.data["cluster"]
                names = [name for name in (section, *others) if name in self.data]
                taken |= {name: self.copied(self.data[name]) for name in names}
                cluster |= {
                    name: self.copied(cluster_of_base[name])
                    for name in of_cluster
                    if cluster_of_base.get(name)
                }
        if not taken:
            return data
        what = " and ".join(taken)
        description = f"{data['description']}; {what} copied from {self.profile.name}"
        return data | taken | {"cluster": data["cluster"] | cluster, "description": description}


def describes(profile: str, device: str) -> bool:
    """Whether a profile's name is of a device's GPU and form: an H200 is no h20, nor of a gh200.

    No device's name says that it has another power limit, as profiles such as h100_sxm_500w do.
    """
    model, *others = profile.upper().split("_")
    if any(re.fullmatch(r"\d+W", other) for other in others):
        return False
    is_card = "PCIE" in device.upper()
    named = re.search(rf"(?<![A-Z]){model}(?!\d)", device.upper())
    return named is not None and ("PCIE" in others) == is_card


Model = TypeVar("Model")
Op = TypeVar("Op")
Data = dict[str, Any]
"""Plain data of a profile's file, or of a part of it."""
Evidence = Callable[[Any], Data]
"""Makes the entry of a value that is fitted on one set of measurements."""


def entry(value: Any, source: str, fitted_on: str | None = None) -> Data:
    """An entry; `fitted_on` describes the measurements that a fit used."""
    number = {"value": value, "source": source}
    return number if fitted_on is None else number | {"fitted_on": fitted_on}


def published(source: str, comparison: ErrorTable) -> Evidence:
    """Evidence of published figures."""
    return lambda value: entry(value, source, comparison.summary())


def measured(origin: str, comparison: ErrorTable, only: str = "", otherwise: str = "") -> Evidence:
    """Evidence of records from an `origin`, or the source `otherwise` if there are none.

    `only` names the range that the records are limited to.
    """
    if not comparison.rows and otherwise:
        return lambda value: entry(value, otherwise)
    points = f"{len(comparison.rows)} points: {comparison.title}{only}"
    return published(f"{origin}, {points}", comparison)


def origin_of(header: Header) -> str:
    """Device, date and torch of a measurement, as a source writes them."""
    torch = header.software.get("torch", "unknown")
    return f"measured on {header.device}, {header.date[:10]}, torch {torch}"


def tera(value: float, unit: str) -> str:
    """The value in 1e12 of the unit."""
    return f"{value / 1e12:.4g} T{unit}"


def giga(bytes_per_s: float) -> str:
    """The value in GB/s."""
    return f"{bytes_per_s / 1e9:.6g} GB/s"


def micro(seconds: float) -> str:
    """The value in us."""
    return f"{seconds * 1e6:.4g} us"


def shape_range(ops: Sequence[Any], names: Sequence[str] = "mnk") -> Data:
    """The smallest and the largest of each size of ops; m, n and k are those of products."""
    ranges = {}
    for name in names:
        sizes = [getattr(op, name) for op in ops]
        ranges[name] = [min(sizes), max(sizes)]
    return ranges


def round_significant(value: float, digits: int = 4) -> float:
    """The value with `digits` significant digits: no fit knows more, and machines agree on them."""
    return float(f"{value:.{digits - 1}e}")


def round_up(value: float) -> float:
    """The value with four significant digits, never below itself."""
    rounded = round_significant(value)
    return rounded if rounded >= value else round_significant(value * 1.0005)


def microseconds(title: str, rows: Iterable[tuple[str, float, float]]) -> ErrorTable:
    """Compare measured and fitted seconds of named work, in microseconds."""
    in_us = ((name, measured * 1e6, fitted * 1e6) for name, measured, fitted in rows)
    return ErrorTable.of(title, "us", in_us)


def minimise(
    model: Callable[[Sequence[float]], Model],
    start: Sequence[float],
    measured: Sequence[tuple[Op, float]],
    predict: Callable[[Op, Model], float],
    digits: int = 4,
) -> Model:
    """The model of the positive numbers with the least mean |log(predicted / measured)|.

    Logarithms keep one odd measurement from bending the model. `model` makes it of the numbers that
    are searched, which have so many `digits` in the end; `measured` has each op with its time or
    rate, and `predict` finds the same under a model.
    """

    def loss(x: Sequence[float]) -> float:
        if min(x) <= 0:
            return math.inf
        candidate = model(x)
        errors = (abs(math.log(predict(op, candidate) / value)) for op, value in measured)
        return math.fsum(errors) / len(measured)

    options = {"adaptive": True, "maxiter": 3000, "xatol": 1e-5, "fatol": 1e-9}
    result = minimize(loss, start, method="Nelder-Mead", options=options)
    return model([round_significant(float(value), digits) for value in result.x])
