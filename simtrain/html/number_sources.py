"""Sources of the numbers in a report: the command that prints each number, and its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

_RUN = r"/runs/\d+"


@dataclass(frozen=True, slots=True)
class NumberSource:
    """Source of a kind of numbers.

    Args:
        places: a regular expression that matches the JSON pointers of the numbers. Its last group
            is the pointer of the same number in the JSON of the command.
        command: the command that prints the numbers with `--json`; none for numbers that only
            the page has. X is replaced by the scenario, CLUSTER by its hardware profile, FIGURE
            by the first group of `places`, and FOLDER by the results of a sweep.
        meaning: what the numbers are computed from.
        explained: the main figure that the numbers belong to. The section Sources shows its parts
            down to profile entries.
        prefix: the pointer in the command's JSON begins with it.
    """

    places: str
    command: str
    meaning: str
    explained: str | None = None
    prefix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
        return asdict(self)

    def place_of(self, pointer: str) -> str | None:
        """Return the pointer of a number in the JSON of the command; None for other numbers."""
        found = re.fullmatch(self.places, pointer)
        return self.prefix + (found.group(found.re.groups) or "") if found else None


NUMBER_SOURCES = (
    NumberSource(
        rf"{_RUN}/result(/iteration_time_s)",
        "run X",
        "The end of the last task of the simulated timeline.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result(/mfu)",
        "run X",
        "Model FLOPs / (GPUs × peak FLOP/s of bf16 × iteration time).",
        "mfu",
    ),
    NumberSource(
        rf"{_RUN}/result(/mfu_by_peak/\w+)",
        "run X",
        "Model FLOPs / (GPUs × peak FLOP/s of this data type × iteration time).",
        "mfu",
    ),
    NumberSource(
        rf"{_RUN}/result(/hfu)",
        "run X",
        "MFU, with the FLOPs of recompute added.",
        "hfu",
    ),
    NumberSource(
        rf"{_RUN}/result(/tokens_per_s)",
        "run X",
        "Sequences of the global batch × sequence length / iteration time.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result(/num_\w+)",
        "run X",
        "A count that follows from the scenario.",
    ),
    NumberSource(
        rf"{_RUN}/result(/(?:extrapolated_compute|host_bound))",
        "run X",
        "A share of the time of the operators of all passes.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result(/(?:breakdown_s|stages_s/\d+)/\w+)",
        "run X",
        "A part of a stage's time in the timeline. The breakdown is the mean over the stages.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/result(/memory/.*)",
        "run X",
        "Bytes of the tensors that exist at the stage's peak, and the allocator's allowance.",
        "peak_memory",
    ),
    NumberSource(
        rf"{_RUN}/result(/settings/.*)",
        "run X",
        "A setting: of the scenario, or its default.",
    ),
    NumberSource(
        rf"{_RUN}/result(/validated_on/.*)",
        "run X",
        "Predicted iteration times compared with measured ones, as the cited source says.",
    ),
    NumberSource(
        rf"{_RUN}/result(/.*)",
        "run X",
        "A fact about the simulated iteration.",
    ),
    NumberSource(
        rf"{_RUN}/operators(/limits/.*)",
        "run X --ops",
        "A limit of one GPU, from the hardware profile.",
    ),
    NumberSource(
        rf"{_RUN}/operators(/entries/.*)",
        "run X --ops",
        "An entry of the hardware profile, which states its source.",
    ),
    NumberSource(
        rf"{_RUN}/operators(/.*)",
        "run X --ops",
        "A sum over equal ops of one rank. The row names the entries of the hardware profile.",
        "iteration_time",
    ),
    NumberSource(
        rf"{_RUN}/explained/(\w+)(/sources/.*)",
        "explain X FIGURE",
        "An entry of the hardware profile, which states its source.",
    ),
    NumberSource(
        rf"{_RUN}/explained/(\w+)(/.*)",
        "explain X FIGURE",
        "A part of a figure. It lists its profile entries; the table below has their sources.",
    ),
    NumberSource(
        rf"{_RUN}/profile(/.*)",
        "profile show CLUSTER",
        "A fact about the hardware profile.",
    ),
    NumberSource(
        rf"{_RUN}/sliders(/.*)?",
        "",
        "Computed by this page: entries of the hardware profile times the factors of the sliders, "
        "and the longest path through the tasks with these rates.",
    ),
    NumberSource(
        rf"{_RUN}/timeline(/.*)",
        "",
        "A bar of the simulated timeline. simtrain run X --trace writes the same tasks to a file.",
        "iteration_time",
    ),
    NumberSource(rf"{_RUN}(/name)", "", "The scenario, by the name that the report was given."),
    NumberSource(
        r"/comparison(/differences/\d+/.*)",
        "compare X",
        "The second scenario's breakdown minus the first one's.",
    ),
    NumberSource(
        r"/comparison(/scenarios/\d+/with_more/.*)",
        "compare X",
        "The iteration time saved, from a simulation with more of one resource of the cluster.",
    ),
    NumberSource(
        r"/comparison(/scenarios/\d+/.*)",
        "compare X",
        "A figure of one scenario. The parts of its critical path add up to the iteration time.",
    ),
    NumberSource(
        r"/made_with(/.*)",
        "",
        "The version of simtrain and the file of the hardware profile that computed the numbers.",
    ),
)
"""Sources of a report on iterations, in order of precedence: the first match applies."""


def source_of_number(
    pointer: str, sources: Iterable[NumberSource] = NUMBER_SOURCES
) -> NumberSource | None:
    """Return the source of the number at a JSON pointer, or None if no source matches."""
    return next((one for one in sources if one.place_of(pointer) is not None), None)
