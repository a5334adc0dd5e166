"""The commands that measure a machine, fit its hardware profile and validate it.

Commands import what they need in their bodies: help works without scipy and torch.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from calibrate.benchmarks.sizes import BenchmarkPart, sizes_for
from calibrate.records import Compute
from calibrate.validation.limits import LimitOptions
from simtrain.base.extras import require
from simtrain.commands.app import INTERRUPTED, MISSED, App
from simtrain.commands.completion import shipped_profiles, shipped_stacks
from simtrain.commands.options import OUT, OutOption, SetOption
from simtrain.commands.output import Output, show, show_view
from simtrain.errors import InputError

if TYPE_CHECKING:
    from calibrate.fit.result import Fit

_QUICK_MINUTES = 2.0
Device = Literal["cuda", "cpu"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Also print the figures of each part, the worst of many.")
]

app = App(help="Measure a machine, fit its hardware profile, and validate the profile.")


@app.command()
def fit(
    source: Annotated[Path, typer.Argument()],
    out: OutOption = None,
    name: str | None = None,
    base: Path | None = None,
    details: DetailsOption = False,
) -> None:
    """Fit a profile and print what was fitted, and how well.

    `measure` writes the folder. Doubtful records are set aside and listed. What was not measured is
    copied from --base, or from the nearest shipped profile; each copied entry says so. One GPU has
    no links and one node no network: the profile is then of one GPU or node, without --base.

    Example: simtrain calibrate fit measured --name my_h100 -o my_h100.yaml --base h100_sxm

    Args:
        source: folder of measurements, or YAML file of figures with their sources.
        out: file to write the profile to.
        name: name of the profile; measurements have none.
        base: profile to copy what was not measured from, with links and network.
    """
    fitted = _fitted(source, name, base)
    from calibrate.fit.result import profile_text

    words = _words([source], (("--name", name), ("--base", base)))
    text = profile_text(fitted.data, words, measured=source.is_dir())
    _write(fitted, text, out, details, source if source.is_dir() else None)


@app.command()
def memory(
    device: Device | None = None,
    *,
    output: Output,
) -> None:
    """Compare the measured memory of layers and small GPTs with simtrain's.

    On cuda the models run, and the memory is that of the allocator. On cpu nothing is computed:
    the tensors that would exist are counted.

    Exits with 4 if the error of a peak is above the threshold.

    Example: simtrain calibrate memory --device cuda

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
        raise typer.Exit(MISSED)


@app.command()
def intervals(
    out: OutOption = None,
    *,
    output: Output,
) -> None:
    """Fit the model from which 90 % intervals follow to all measured runs that were compared.

    They are those of hw_profiles/validated_on. The table shows how the intervals hold for runs that
    the model did not know: each class, machine, software stack, data type and kind of model is left
    out in turn.

    Example: simtrain calibrate intervals

    Args:
        out: file for the parameters, such as hw_profiles/validated_on/error_model.yaml.
    """
    require("fitting intervals", "scipy")
    from calibrate.fit.error_model import ErrorModelCheck, error_model_text
    from simtrain.base.output_folder import check_suffix, check_writable, write_text
    from simtrain.hardware.interval import judged_runs, read_error_model

    if out:
        check_suffix(out, (".yaml", ".yml"), "parameters")
        check_writable(out, "the parameters")
    check = ErrorModelCheck.of(judged_runs())
    show_view(output, check.view())
    if out:
        text = error_model_text(check.model)
        write_text(out, text, "the parameters", read=read_error_model)


@app.command()
def measure(
    out: Annotated[Path, OUT],
    quick: bool = False,
    device: Device | None = None,
    minutes: float | None = None,
    dtype: Compute | None = None,
    only: list[BenchmarkPart] | None = None,
) -> None:
    """Measure this machine: matrix products, kernels, collectives, layers, training.

    A trial chooses the data type that the machine multiplies fast: bf16, or fp32 on most CPUs. Each
    record is written at once; the same command again measures the missing ones. Collectives need
    several processes, one for each GPU.

    Several GPUs: torchrun --nproc-per-node 8 -m calibrate measure -o my_node

    Example: simtrain calibrate measure --quick -o my_node

    Args:
        out: folder of the measurements; made, or continued.
        quick: few and small sizes: two minutes on two CPU cores.
        device: device to measure; cuda if there is one.
        minutes: time after which nothing more is measured; 2 with --quick, else none.
        dtype: data type of training; the one that a trial finds fast.
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
        raise typer.Exit(INTERRUPTED) from error
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


@app.command()
def validate(
    profile: Annotated[str, typer.Argument()],
    measurements: Annotated[Path, typer.Argument()],
    *,
    limits: LimitOptions,
    output: Output,
    out: OutOption = None,
) -> None:
    """Compare a profile's predictions with measured layers and iterations that no fit used.

    Nine of ten times must be within the interval that the profile states, and their mean |error| at
    most 25 %; limits of layers or iterations take their place. Exits with 4 if an error is above
    its limit. The errors of iterations are written to validated_on/ beside the profile, and give
    the intervals of later predictions.

    Example: simtrain calibrate validate my_node.yaml measured -o pictures

    Args:
        profile: name or file of a hardware profile.
        measurements: folder that `measure` wrote.
        out: folder to write a scatter plot to, PNG and SVG.
    """
    from calibrate.records.file import read_records
    from calibrate.validation.profile import (
        validate_profile,
        write_errors,
        write_validation_picture,
    )
    from simtrain.base.output_folder import make_picture_folder
    from simtrain.hardware.load import load_profile

    loaded = load_profile(profile)
    allowed = limits.of(loaded)
    header, records = read_records(measurements)
    validation = validate_profile(loaded, header, records, allowed)
    if out is not None:
        make_picture_folder(out)
        write_validation_picture(validation, allowed, out, profile)
    for warning in validation.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    source = f"{measurements.name}, measured on {header.date} on {header.device}"
    if (written := write_errors(validation, profile, source)) is not None:
        print(f"wrote {written}, from which intervals follow", file=sys.stderr)
    show(output, validation, validation.view)
    if not validation.ok:
        raise typer.Exit(MISSED)


@app.command("nccl-tests")
def nccl_tests(
    logs: Annotated[list[Path], typer.Argument()],
    op: Collective | None = None,
    ranks: Annotated[int | None, typer.Option(min=2)] = None,
    nodes: Annotated[int | None, typer.Option(min=1)] = None,
    out: OutOption = None,
    base: Path | None = None,
    name: str | None = None,
) -> None:
    """Adapt a profile's links to results of nccl-tests, or add them to measurements.

    With --base and -o, no measurement is needed: the profile is the base, with the links and the
    network as the logs show them. Without --base they join the measurements of a folder.

    Example: simtrain calibrate nccl-tests all_reduce.txt --base h100_sxm -o my_cluster.yaml

    Args:
        logs: output of nccl-tests: text, or JSON of -J.
        op: collective; by default as a log or its name says.
        ranks: GPUs that took part; by default as a log lists them.
        nodes: nodes of these GPUs; by default as a log lists them.
        base: profile whose links and network are adapted.
        out: file for the adapted profile; without --base, folder of the machine's measurements.
        name: name of the adapted profile; by default the file's.
    """
    from calibrate.records.nccl_tests import add_log, read_log

    if out is None:
        message = "results join measurements (-o DIR) or adapt a profile (--base with -o FILE)"
        raise InputError.of("E723", message, fix="--base PROFILE -o FILE, or -o DIR")
    results = [read_log(path, op, ranks, nodes) for path in logs]
    if base is None:
        print(f"{out}: {sum(add_log(out, log) for log in results)} records added")
        return
    require("adapting a profile", "scipy")
    from calibrate.fit.adapt import adapt_links
    from calibrate.fit.base import Base
    from calibrate.fit.result import adapted_text

    options = (("--op", op), ("--ranks", ranks), ("--nodes", nodes), ("--base", base))
    fitted = adapt_links(Base.load(base), results, name or out.stem)
    _write(fitted, adapted_text(fitted.data, _words(logs, options)), out, details=True)


@app.command("from-trace")
def from_trace(
    traces: Annotated[list[Path], typer.Argument()],
    out: Annotated[Path, OUT],
    gpus_per_node: Annotated[int, typer.Option(min=1)] = 8,
) -> None:
    """Read products, attention and collectives from traces of your own runs.

    `fit` makes a profile of them; what a trace does not have is copied from its --base. Kernels
    inside a run are slower than alone, and collectives wait for the slowest rank: only the faster
    half of their times counts. Shapes need record_shapes=True.

    Example: simtrain calibrate from-trace rank0.json.gz -o my_trace

    Args:
        traces: traces of PyTorch's profiler: JSON, packed or not.
        out: folder of measurements; made, or added to.
        gpus_per_node: GPUs of a node.
    """
    from calibrate.records.file import RecordFile, identity
    from calibrate.records.kineto import read_trace
    from simtrain.units import format_seconds

    for path in traces:
        trace = read_trace(path, gpus_per_node)
        file = RecordFile(out, trace.header)
        new = [record for record in trace.records if identity(record) not in file.known]
        for record in new:
            file.write(record)
        print(f"{path}: {len(new)} records of {trace.header.device} added to {out}")
        for reason, seconds in sorted(trace.left_out.items(), key=lambda item: -item[1]):
            print(f"left out: {format_seconds(seconds)} of {reason}")


@app.command("from-runs")
def from_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS")],
    base: Annotated[str, typer.Option(autocompletion=shipped_profiles)],
    out: Annotated[Path, OUT],
    iteration: str | None = None,
    software: Annotated[str | None, typer.Option(autocompletion=shipped_stacks)] = None,
    overrides: SetOption = None,
    name: str | None = None,
) -> None:
    """Fit a profile to measured iterations, near a base profile.

    A few factors are fitted: on the host's time per kernel, the rates of products, of memory-bound
    kernels and of collectives, inside a node and across nodes. Runs that are far off hardly count.
    The result says which factors the runs determine, and its errors in cross-validation. They are
    written to validated_on/ beside the profile, and give the intervals of later predictions.

    Example: simtrain calibrate from-runs runs.csv --base h100_sxm -o my_cluster.yaml

    Args:
        runs: tables of runs (CSV), logs of Megatron-LM with their arguments; or, with
            --iteration, one scenario.
        base: profile to start from.
        out: file to write the fitted profile to.
        iteration: measured time of the scenario's iteration, such as '12.4 s'.
        software: software stack of runs that name none; by default the base's usual one.
        name: name of the fitted profile; by default the file's.
    """
    from calibrate.fit.from_runs import read_measured_runs
    from simtrain.base.output_folder import (
        check_readable,
        check_suffix,
        check_writable,
        replacing,
        write_text,
        writing_to,
    )
    from simtrain.commands.progress import progress_bar
    from simtrain.hardware.evidence import read_validated_on, usual_stack
    from simtrain.hardware.load import load_profile
    from simtrain.importing.runs import RunSettings

    check_suffix(out, (".yaml", ".yml"), "profiles")
    check_writable(out, "a profile")
    settings = RunSettings(base, software, tuple(overrides or ()), usual_stack(base))
    measured = read_measured_runs(runs, settings, iteration)
    require("fitting a profile", "scipy")
    from calibrate.fit.from_runs import errors_of_fit, fit_runs
    from calibrate.fit.result import fitted_to_runs_text
    from simtrain.studies.validation import errors_text

    files = ", ".join(file.name for file in runs)
    with progress_bar() as show_progress:
        fitted = fit_runs(base, measured, name or out.stem, files, show_progress)
    options = [("--base", base), ("--iteration", iteration), ("--software", software)]
    words = _words(runs, [*options, *(("--set", override) for override in overrides or ())])
    show_view(Output(), fitted.view())
    fitted.check()
    errors_file = out.parent / "validated_on" / f"{out.stem}.yaml"
    # Both files or none: errors of another profile would set the intervals of this one.
    with writing_to(out, "a profile"), replacing(out) as unfinished:
        unfinished.write_text(fitted_to_runs_text(fitted.data, words), "utf-8", newline="\n")
        check_readable(unfinished, out, load_profile)
        errors = errors_of_fit(fitted, str(unfinished.resolve()), base, files)
        errors_file.parent.mkdir(exist_ok=True)
        write_text(errors_file, errors_text(errors), "the errors", read=read_validated_on)
    print(f"wrote {out} and {errors_file}")


def _words(paths: Iterable[Path], options: Iterable[tuple[str, object]]) -> str:
    written = [f"{option} {shlex.quote(str(value))}" for option, value in options if value]
    return " ".join([*(shlex.quote(path.as_posix()) for path in paths), *written])


def _write(
    fitted: Fit, text: str, out: Path | None, details: bool, measured: Path | None = None
) -> None:
    """Print a fit, and write or print the text of its profile.

    Args:
        fitted: the fit.
        text: its profile.
        out: where to write the profile; None prints it.
        details: whether to print the figures of each part.
        measured: folder of measurements, which the profile can be validated with.
    """
    from simtrain.base.output_folder import write_text
    from simtrain.hardware.load import load_profile
    from simtrain.render.terminal import terminal_page

    if out is None:
        Console(stderr=True).print(terminal_page(fitted.view("write it with -o FILE", details)))
        print(text, end="")
        return
    profile = shlex.quote(str(out))
    step = f"simtrain run SCENARIO --set cluster={profile}"
    if measured is not None:
        step = f"simtrain calibrate validate {profile} {shlex.quote(str(measured))}"
    write_text(out, text, "a profile", read=load_profile)
    show_view(Output(), fitted.view(step, details))
    print(f"wrote {out}")


def _fitted(source: Path, name: str | None, base: Path | None) -> Fit:
    """Fit a folder or a file.

    Raises:
        InputError: scipy is missing, or an option is missing or changes nothing.
    """
    require("fitting a profile", "scipy")
    from calibrate.fit.base import Base
    from calibrate.fit.from_records import fit_measurements
    from calibrate.fit.published import fit_figures
    from calibrate.records.file import read_records

    is_folder = source.is_dir() or (name is not None and not source.exists())
    if is_folder and name:
        header, records = read_records(source)
        return fit_measurements(header, records, name, Base.load(base) if base else None)
    if is_folder:
        reason = "measurements do not say what the machine is to be called"
        raise InputError.of("E723", "the profile has no name", fix="--name NAME", reason=reason)
    if name is not None or base is not None:
        reason = "a file of figures has a name and links of its own"
        fix = "leave them out, or give a folder of measurements"
        message = "--name and --base are for measurements"
        raise InputError.of("E723", message, fix=fix, reason=reason)
    return fit_figures(source)
