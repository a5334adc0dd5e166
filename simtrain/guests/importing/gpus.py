"""GPUs in the words of launch scripts, logs and tables, and the hardware profiles of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from simtrain.base.values import dataclass, replace
from simtrain.errors import Location
from simtrain.guests.importing.table import WordsFile

HOPPER, BLACKWELL = 9, 10
"""Compute capabilities with products in fp8, and in fp4 and MXFP8."""


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU, as `gpus.toml` describes it; without a profile, `cluster` is ""."""

    name: str
    cluster: str = ""
    form: str = ""
    capability: int = 0
    others: str = ""


_FILE = WordsFile(Path(__file__).with_suffix(".toml"))
GPUS = {name: NamedGpu(name, **row) for name, row in _FILE.section("gpus").items()} | {
    name: NamedGpu(name) for name in _FILE.section("without_profile")["names"].split()
}
A100, H100, B200 = GPUS["A100"], GPUS["H100"], GPUS["B200"]
_LONGEST, _MOST_LINES = 300, 20_000
"""The characters of a value or a line, and the lines of a log, in which a GPU is looked for."""
_NAME = re.compile(
    r"(?<![a-z\d!])(?:\d{1,2}x-?)?(?:nvidia-?|tesla-?|dgx-?|hgx-?|gpu-?|amd-?)*"
    rf"({'|'.join(sorted(GPUS, key=len, reverse=True)).lower()})(?!\d)"
)
_OF_LOG = re.compile(
    r"(?:NVIDIA|Tesla|AMD Instinct|device[ _]name)\W{0,5}(?:NVIDIA[ -])?"
    r"[A-Z]{1,5}\d{1,3}[A-Za-z]?(?:[ -][\w-]{1,12}){0,3}",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NamedMachine:
    """The GPUs that a source names.

    Args:
        gpus: at least one, of which the first is meant unless the source needs a later one.
        words: what names them, such as "--gres gpu:h100:8".
        place: its position.
    """

    gpus: tuple[NamedGpu, ...]
    words: str
    place: Location | None = None

    def gpu(self, capability: int) -> NamedGpu:
        """Return the first GPU with at least a compute capability, or the first if none has it."""
        capable = (gpu for gpu in self.gpus if gpu.capability >= capability)
        return next(capable, self.gpus[0])

    def assumption(self, gpu: NamedGpu) -> str:
        """Return what is taken for granted if a scenario is on this GPU; "" if nothing is."""
        text = self.words.lower()
        if len(self.gpus) > 1:
            names = " and ".join(each.name for each in self.gpus)
            return f"{self.words} allows {names}: {gpu.name} is taken"
        if not gpu.cluster:
            return f"{self.words}: simtrain has no profile of {gpu.name}"
        if gpu.others and re.search(gpu.others, text):
            return f"{self.words}: simtrain has no profile of this variant; {gpu.form} is taken"
        return ""


def gpus_in(text: str) -> tuple[NamedGpu, ...]:
    """Return the GPUs that a text names, such as "gpu:h100:8" or "a100|h100", each once."""
    lowered = text[:_LONGEST].lower().replace("_", "-")
    names = dict.fromkeys(name.upper() for name in _NAME.findall(lowered))
    return tuple(_variant(GPUS[name], lowered) for name in names)


def _variant(gpu: NamedGpu, text: str) -> NamedGpu:
    row = dict(_FILE.section("variants").get(gpu.name, {"words": r"\Z."}))
    return replace(gpu, **row) if re.search(row.pop("words"), text) else gpu


def profile_named(machine: str) -> str | None:
    """Return the profile of a machine such as "h100-sxm" or "A100 80GB"; None if there is none."""
    gpu, *_ = (*gpus_in(machine), NamedGpu(""))
    is_other = gpu.others and re.search(gpu.others, machine.lower())
    return None if is_other else gpu.cluster or None


def machine_of_log(lines: Sequence[str], file: str) -> NamedMachine | None:
    """Return the GPUs that a line of a log names, such as "NVIDIA H100 80GB HBM3"; or None.

    A run names them at its start, before its iterations.
    """
    for number, line in enumerate(lines[:_MOST_LINES], start=1):
        for name in _OF_LOG.finditer(line[:_LONGEST]):
            if gpus := gpus_in(name[0]):
                place = Location(file, number, name.start() + 1, line)
                return NamedMachine(gpus, f'"{name[0]}"', place)
    return None
