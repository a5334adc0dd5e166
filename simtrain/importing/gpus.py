"""GPUs in the words of launch scripts and logs, and the hardware profiles that stand for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simtrain.errors import Location

HOPPER, BLACKWELL = 9, 10
"""Compute capabilities with products in fp8, and in fp4 and MXFP8."""


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU.

    Args:
        name: its name.
        cluster: the hardware profile that stands for it, or "" if none does.
        form: what the profile has of the variants of this GPU, such as "SXM, 80 GB".
        capability: major compute capability of NVIDIA's GPUs.
        variants: words in a text that mean another variant than the profile's.
    """

    name: str
    cluster: str = ""
    form: str = ""
    capability: int = 0
    variants: str = ""


A100 = NamedGpu("A100", "a100_sxm4_80gb", "SXM, 80 GB", 8, "40g")
H100 = NamedGpu("H100", "h100_sxm", "SXM, 80 GB", HOPPER, "pcie nvl 94g 96g 64g")
B200 = NamedGpu("B200", "b200_sxm", "SXM", BLACKWELL)
_A100_PCIE = NamedGpu("A100", "a100_pcie", "PCIe", 8, "40g")
GPUS = (
    A100,
    H100,
    B200,
    NamedGpu("H200", "h200_sxm", "SXM", HOPPER, "nvl"),
    NamedGpu("H800", "h800_sxm", "SXM, 80 GB", HOPPER, "pcie"),
    NamedGpu("H20", "h20", "96 GB", HOPPER, "141g"),
    NamedGpu("GH200", "gh200", "96 GB", HOPPER, "144g"),
    NamedGpu("B300", "b300_sxm", "SXM", BLACKWELL),
    NamedGpu("GB200", "gb200", "NVL72", BLACKWELL, "nvl4 nvl36"),
    NamedGpu("GB300", "gb300", "NVL72", BLACKWELL),
    NamedGpu("MI300X", "mi300x", "OAM"),
    NamedGpu("V100", "v100_dgx2", "SXM3, 32 GB", 7, "pcie 16g"),
    *map(NamedGpu, ("P100", "T4", "A10", "A10G", "A30", "A40", "A800", "L4", "L40", "L40S")),
    *map(NamedGpu, ("MI210", "MI250", "MI250X", "MI300A", "MI325X", "MI355X", "GAUDI2", "GAUDI3")),
)
_LONGEST, _MOST_LINES = 300, 20_000
"""The characters of a value or a line, and the lines of a log, in which a GPU is looked for."""
_BY_NAME = {gpu.name.lower(): gpu for gpu in GPUS}
_NAME = re.compile(
    r"(?<![a-z\d!])(?:\d{1,2}x-?)?(?:nvidia-?|tesla-?|dgx-?|hgx-?|gpu-?|amd-?)*"
    rf"({'|'.join(sorted(_BY_NAME, key=len, reverse=True))})(?!\d)"
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
        if "." in text and re.search(r"\dg\.\d", text):
            return f"{self.words}: a whole {gpu.name} is taken, not a slice of it"
        if any(word in text for word in gpu.variants.split()):
            return f"{self.words}: simtrain has no profile of this variant; {gpu.form} is taken"
        return ""


def gpus_in(text: str) -> tuple[NamedGpu, ...]:
    """Return the GPUs that a text names, such as "gpu:h100:8" or "a100|h100", each once."""
    lowered = text[:_LONGEST].lower().replace("_", "-")
    gpus = dict.fromkeys(_BY_NAME[name] for name in _NAME.findall(lowered))
    is_pcie = "pcie" in lowered
    return tuple(_A100_PCIE if gpu is A100 and is_pcie else gpu for gpu in gpus)


def machine_of_config(name: str) -> NamedMachine | None:
    """Return the GPUs in the name of a recipe, such as llama3_70b_gb200; or None."""
    gpus = gpus_in(name)
    return NamedMachine(gpus, f"--config {name}") if gpus else None


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
