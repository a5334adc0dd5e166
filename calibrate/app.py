"""The commands that measure a machine, fit its hardware profile and validate it.

Commands import what they need in their bodies: help works without scipy and torch.
"""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from calibrate.benchmarks.sizes import Part, sizes_for
from calibrate.records.nccl_command import nccl_tests
from calibrate.validation.command import validate
from simtrain.commands.app import App
from simtrain.errors import InputError, Problem, SimtrainError

if TYPE_CHECKING:
    from calibrate.fit.result import Fit
    from calibrate.memory.comparison import MemoryComparison

_MISSED = 4
"""Exit code: an error above its stated threshold."""
_INTERRUPTED = 130
"""Exit code: stopped by Ctrl-C."""


class Device(StrEnum):
    """Where memory is measured."""

    CUDA = "cuda"
    CPU = "cpu"


app = App()

app.command()(validate)
app.command("nccl-tests")(nccl_tests)


@app.callback()
def calibrate() -> None:
    """From measured and published figures to a hardware profile."""


@app.command()
def fit(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of measurements, or YAML file of figures with their sources."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the profile.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The profile's name; measurements have none.")
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(help="Profile to take over the links from that were not measured."),
    ] = None,
) -> None:
    """Fit a profile and print its residuals.

    A folder is what `measure` left. One GPU has no links and one node no network: either the
    profile is of one GPU or node, or --links names a profile that has them.

    Example: simtrain calibrate fit measured --name my_h100 -o my_h100.yaml --links h100_sxm
    """
    try:
        fitted = _fitted(source, name, links)
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    from calibrate.fit.page import print_fit
    from calibrate.fit.profile_file import profile_text

    console = Console(stderr=output is None)
    print_fit(fitted, console)
    for warning in fitted.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    options = (("--name", name), ("--links", links))
    given = [part for option, value in options if value for part in (option, str(value))]
    command = shlex.join([source.as_posix(), *given])
    text = profile_text(fitted.data, command, measured=source.is_dir())
    if output is None:
        print(text, end="")
        return
    output.write_text(text, encoding="utf-8")
    console.print(f"wrote {output}")


@app.command()
def memory(
    device: Annotated[
        Device | None, typer.Option(help="Where to measure; cuda if there is one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in bytes.")] = False,
) -> None:
    """Hold the memory of layers and small GPTs against what simtrain says of them.

    On cuda they are run, and the allocator says how much they took. On cpu nothing is computed:
    the tensors that there would be are counted.

    Exit code 4: a peak is further off than the threshold.

    Example: simtrain calibrate memory --device cuda
    """
    try:
        comparison = _measured(device)
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if as_json:
        print(json.dumps(comparison.to_json(), indent=2))
    else:
        from calibrate.memory.comparison import memory_table, memory_verdict

        console = Console()
        console.print(memory_table(comparison))
        console.print(memory_verdict(comparison))
    if not comparison.ok:
        raise typer.Exit(_MISSED)


@app.command()
def measure(
    out: Annotated[Path, typer.Option(help="Folder of the measurements; made, or gone on with.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few and small sizes: two minutes on two CPU cores.")
    ] = False,
    device: Annotated[
        Device | None, typer.Option(help="What to measure; cuda if there is one.")
    ] = None,
    only: Annotated[list[Part] | None, typer.Option(help="Measure this part; repeatable.")] = None,
) -> None:
    """Measure this machine: matrix products, kernels, collectives, layers, training.

    Records are written as they come; the same command again measures what is missing. Collectives
    need several processes, one for each GPU.

    Several GPUs: torchrun --nproc-per-node 8 -m calibrate measure --out my_node

    Example: simtrain calibrate measure --quick --out my_node
    """
    try:
        told = _measured_machine(out, device, only or list(Part), quick=quick)
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        print(f"stopped; the same command goes on with what {out} lacks", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from error
    if told:
        print(told)


def _measured_machine(out: Path, device: Device | None, parts: list[Part], *, quick: bool) -> str:
    """What the first rank has to say of the measurement; the others are silent.

    Raises InputError as `calibrate.benchmarks.measure.measure`, or where torch is not there.
    """
    from simtrain.extras import require

    require("measuring a machine", "torch")
    from calibrate.benchmarks.measure import measure as measure_machine
    from calibrate.benchmarks.products import multiplies_fp8
    from calibrate.memory.measure import has_cuda

    chosen = device or (Device.CUDA if has_cuda() else Device.CPU)
    measured = measure_machine(out, chosen.value, sizes_for(chosen.value, quick=quick), parts)
    if not measured.ranks.is_first:
        return ""
    told = f"{out}: {measured.num_added} records added to {measured.num_before}"
    if measured.ranks.size == 1 and Part.COLLECTIVES in parts:
        told += "\ncollectives left out: they need two processes (torchrun --nproc-per-node 2)"
    if Part.PRODUCTS in parts and not multiplies_fp8(chosen.value):
        told += "\nfp8 products left out: they need a GPU of compute capability 8.9 or more"
    return told


def _fitted(source: Path, name: str | None, links: Path | None) -> Fit:
    """Raises InputError without scipy, for a missing option, and for one that changes nothing."""
    from simtrain.extras import require

    require("fitting a profile", "scipy")
    from calibrate.fit.from_records import fit_folder
    from calibrate.fit.published import fit_figures

    is_folder = source.is_dir() or (name is not None and not source.exists())
    if is_folder:
        if not name:
            reason = "measurements do not say what the machine is to be called"
            raise InputError(
                [Problem("E723", "the profile has no name", None, reason, "--name NAME")]
            )
        return fit_folder(source, name, links)
    if name is not None or links is not None:
        reason = "a file of figures has a name and links of its own"
        fix = "leave them out, or give a folder of measurements"
        problem = Problem("E723", "--name and --links are for measurements", None, reason, fix)
        raise InputError([problem])
    return fit_figures(source)


def _measured(device: Device | None) -> MemoryComparison:
    """Raises InputError where torch, or the device asked for, is not there."""
    from simtrain.extras import require

    require("measuring memory", "torch")
    from calibrate.memory.cases import all_cases
    from calibrate.memory.measure import compare, has_cuda

    if device is Device.CUDA and not has_cuda():
        raise InputError([Problem("E702", "torch finds no CUDA device", fix="--device cpu")])
    on_cuda = device is Device.CUDA or (device is None and has_cuda())
    return compare(all_cases(), "cuda" if on_cuda else "meta")
