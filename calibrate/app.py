"""`simtrain calibrate`: measures a machine, checks simtrain's memory on it, and fits its profile.

Commands import what they need in their bodies: help works without scipy and torch.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console

from calibrate.benchmarks.sizes import BenchmarkPart, sizes_for
from calibrate.records import Compute
from simtrain.base.extras import require
from simtrain.base.resources import list_profiles, list_stacks
from simtrain.commands.declare import Argument, Option
from simtrain.commands.group import INTERRUPTED, MISSED, CliGroup
from simtrain.commands.options import OUT, OutOption, SetOption, refuse
from simtrain.commands.output import Output, show, show_view
from simtrain.errors import InputError

if TYPE_CHECKING:
    from calibrate.fit.result import Fit
    from calibrate.fit.sources import SourceKind

_QUICK_MINUTES = 2.0
_GPUS_PER_NODE = 8
Device = Literal["cuda", "cpu"]

app = CliGroup(
    "Measure a machine, fit its hardware profile, and check simtrain's memory on it.",
    lambda: {name: f"calibrate.app:{name}" for name in ("measure", "check", "fit")},
)


def measure(
    out: Annotated[Path, OUT],
    quick: bool = False,
    device: Device | None = None,
    minutes: float | None = None,
    dtype: Compute | None = None,
    only: list[BenchmarkPart] | None = None,
) -> None:
    """Measure this machine: matrix products, kernels, collectives, layers, training.

    Each record is written at once; the same command again measures the missing ones. Collectives
    need several processes, one for each GPU.

    Several GPUs: torchrun --nproc-per-node 8 -m calibrate measure -o my_node

    Example: simtrain calibrate measure --quick -o my_node

    Args:
        out: folder of the measurements; made, or continued.
        quick: few and small sizes: two minutes on two CPU cores.
        device: device to measure; cuda if there is one.
        minutes: time after which nothing more is measured; 2 with --quick, else none.
        dtype: data type of training; by default bf16 on GPUs, fp32 on CPUs.
        only: measure only this part. May be repeated.
    """
    require("measuring a machine", "torch")
    import torch

    from calibrate.benchmarks.measure import measure as measure_machine
    from calibrate.benchmarks.products import multiplies_fp8

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    parts = only or list(BenchmarkPart)
    default = _QUICK_MINUTES if quick else math.inf
    limit = default if minutes is None else minutes
    if not limit > 0:
        raise InputError.of("E904", f"--minutes is {minutes:g}", fix="write a number above 0")
    try:
        run = measure_machine(out, chosen, sizes_for(chosen, quick=quick), parts, limit, dtype)
    except KeyboardInterrupt as error:
        print(f"stopped; the same command measures what {out} lacks", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from error
    if not run.ranks.is_first:
        return
    print(f"{out}: {run.num_added} records in {run.compute} added to {run.num_before}")
    if run.left_out:
        what = ", ".join(f"{number} {kind}" for kind, number in run.left_out.items())
        print(f"left out for lack of time: {what}; the same command measures them")
    if run.ranks.size == 1 and BenchmarkPart.COLLECTIVES in parts:
        print("collectives left out: they need two processes (torchrun --nproc-per-node 2)")
    if BenchmarkPart.PRODUCTS in parts and not multiplies_fp8(chosen):
        print("fp8 products left out: they need a GPU of compute capability 8.9 or more")


def check(
    device: Device | None = None,
    *,
    output: Output,
) -> None:
    """Compare the memory of real layers and small GPTs in torch with simtrain's.

    On cuda the models run, and the memory is that of the allocator. On cpu nothing is computed:
    the tensors that would exist are counted.

    Exits with 4 if the error of a peak is above the threshold.

    Example: simtrain calibrate check --device cuda

    Args:
        device: device to measure on; cuda if there is one.
    """
    require("measuring memory", "torch")
    import torch

    from calibrate.memory.cases import all_cases
    from calibrate.memory.measure import compare

    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise InputError.of("E702", "torch finds no CUDA device", fix="--device cpu")
    comparison = compare(all_cases(), "cuda" if has_cuda and device != "cpu" else "meta")
    show(output, comparison, comparison.view)
    if not comparison.ok:
        raise SystemExit(MISSED)


def fit(
    sources: Annotated[list[Path], Argument("SOURCE")],
    out: OutOption = None,
    base: Annotated[str | None, Option(complete=list_profiles)] = None,
    software: Annotated[str | None, Option(complete=list_stacks)] = None,
    overrides: SetOption = None,
    details: bool = False,
) -> None:
    """Fit a profile to what is known of a machine, and print what was fitted, and how well.

    A folder of `measure`, traces of PyTorch's profiler and logs of nccl-tests of one machine are
    fitted together: doubtful records are set aside and listed, and what has too few records is
    copied from the base. Logs alone change the links and the network of the base.

    Tables of measured runs fit five factors on the base: the host's time per kernel, the rates of
    products, of memory-bound kernels and of collectives, in a node and across nodes. Their errors
    in cross-validation are written to validated_on/ beside the profile, and give the intervals of
    later predictions.

    Example: simtrain calibrate fit measured --base h100_sxm -o my_h100.yaml

    Example: simtrain calibrate fit runs.csv --base h100_sxm -o my_cluster.yaml

    Args:
        sources: folder of `measure`, traces, logs of nccl-tests; or tables of runs (CSV) and logs
            of Megatron-LM; or a YAML file of published figures.
        out: file for the profile, which is named after it; by default it is printed.
        base: profile to copy what the sources lack from, with links and network. Default for
            measurements: the nearest shipped one.
        software: software stack of runs that name none. Default: the base's usual one.
        overrides: fields that tables of runs do not have.
        details: also print the figures of each part, the worst of many.
    """
    require("fitting a profile", "scipy")
    from calibrate.fit.sources import SourceKind, by_kind

    kinds = by_kind(sources)
    if SourceKind.RUNS in kinds:
        _fit_runs(sources, out, base, software, overrides or ())
        return
    refuse({"--software": software, "--set": overrides}, "is for tables of runs")
    words = [*map(str, sources), *(["--base", base] if base else [])]
    name = (out or sources[0]).stem
    fitted, instead = _fitted(kinds, name, base)
    from calibrate.fit.result import profile_text

    text = profile_text(fitted.data, shlex.join(words), instead)
    _write(fitted, text, out, details, kinds.get(SourceKind.FOLDER, ()))


def _fitted(
    kinds: Mapping[SourceKind, Sequence[Path]], name: str, base: str | None
) -> tuple[Fit, str]:
    """Fit all sources but runs; return what to change instead of the profile, too."""
    from calibrate.fit.adapt import adapt_links
    from calibrate.fit.base import Base
    from calibrate.fit.from_records import fit_measurements
    from calibrate.fit.published import fit_figures
    from calibrate.fit.result import FIGURES, MEASURED, SOURCES
    from calibrate.fit.sources import SourceKind, machine_records
    from calibrate.records.nccl_tests import read_log

    if SourceKind.FIGURES in kinds:
        refuse({"--base": base}, "has no effect on figures, which name their own")
        return fit_figures(kinds[SourceKind.FIGURES][0]), FIGURES
    chosen = Base.load(base) if base else None
    if [*kinds] == [SourceKind.LOG]:
        if chosen is None:
            message = "a log of nccl-tests shows links alone"
            raise InputError.of("E723", message, fix="add --base PROFILE, which has the rest")
        return adapt_links(chosen, [*map(read_log, kinds[SourceKind.LOG])], name), SOURCES
    per_node = chosen.profile.cluster.gpus_per_node.value if chosen else _GPUS_PER_NODE
    machine = machine_records(kinds, per_node)
    for reason in machine.left_out:
        print(f"left out: {reason}", file=sys.stderr)
    return fit_measurements(machine.header, machine.records, name, chosen), MEASURED


def _fit_runs(
    files: Sequence[Path],
    out: Path | None,
    base: str | None,
    software: str | None,
    overrides: Sequence[str],
) -> None:
    from calibrate.fit.from_runs import errors_of_fit, fit_runs
    from calibrate.fit.result import SOURCES, profile_text
    from simtrain.base.output_folder import (
        check_suffix,
        check_writable,
        replacing,
        write_text,
        writing_to,
    )
    from simtrain.commands.printing import progress_bar
    from simtrain.guests.importing.runs import read_runs
    from simtrain.hardware.evidence import usual_stack
    from simtrain.studies.validation import RunSettings, errors_text

    if base is None or out is None:
        message = "tables of runs change a profile"
        raise InputError.of("E723", message, fix="write --base PROFILE -o FILE.yaml")
    check_suffix(out, (".yaml", ".yml"), "profiles")
    check_writable(out, "a profile")
    settings = RunSettings(base, software, tuple(overrides), usual_stack(base))
    names = ", ".join(file.name for file in files)
    with progress_bar() as show_progress:
        runs = [*read_runs(files, settings)]
        fitted = fit_runs(base, runs, out.stem, names, show_progress)
    words = [*map(str, files), "--base", base, *(["--software", software] if software else [])]
    words += [word for override in overrides for word in ("--set", override)]
    show_view(Output(), fitted.view())
    fitted.check()
    errors_file = out.parent / "validated_on" / f"{out.stem}.yaml"
    # Both files or none: errors of another profile would set the intervals of this one.
    with writing_to(out, "a profile"), replacing(out) as unfinished:
        text = profile_text(fitted.data, shlex.join(words), SOURCES)
        unfinished.write_text(text, "utf-8", newline="\n")
        errors = errors_of_fit(fitted, str(unfinished.resolve()), base, names)
        errors_file.parent.mkdir(exist_ok=True)
        write_text(errors_file, errors_text(errors), "the errors")
    print(f"wrote {out} and {errors_file}")


def _write(
    fitted: Fit, text: str, out: Path | None, details: bool, folders: Sequence[Path]
) -> None:
    """Print a fit, and write or print the text of its profile; `folders` can validate it."""
    from simtrain.base.output_folder import write_text
    from simtrain.render.terminal import terminal_page

    if out is None:
        Console(stderr=True).print(terminal_page(fitted.view("write it with -o FILE", details)))
        print(text, end="")
        return
    profile = shlex.quote(str(out))
    step = f"simtrain run SCENARIO --set cluster={profile}"
    if folders:
        step = f"simtrain validate {shlex.quote(str(folders[0]))} --cluster {profile}"
    write_text(out, text, "a profile")
    show_view(Output(), fitted.view(step, details))
    print(f"wrote {out}")
