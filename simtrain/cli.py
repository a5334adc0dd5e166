"""The command line: arguments, exit codes and printing. Data to stdout, everything else to stderr.

Exit codes: 0 fine, 2 bad input, 3 does not fit in memory, 4 a threshold missed.
"""

from __future__ import annotations

import io
import sys
from enum import StrEnum
from typing import Annotated

import typer

from simtrain import paper
from simtrain.commands.cost import cost
from simtrain.commands.plot import plot
from simtrain.commands.progress import progress_bar
from simtrain.commands.search import search
from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    OutOption,
    ScenarioArgument,
    SetOption,
    emit,
    show,
    simulated,
    status,
)
from simtrain.commands.sweep import query, sweep, sweeps
from simtrain.engine import Engine
from simtrain.errors import SimtrainError
from simtrain.hardware.load import load_profile
from simtrain.paper.pictures import write_pictures
from simtrain.paper.render import render as render_reproduced
from simtrain.pictures import make_folder
from simtrain.report.memory_page import memory_page
from simtrain.report.memory_picture import write_memory_picture
from simtrain.report.profile_page import load_page, profile_page
from simtrain.report.render import render as render_result
from simtrain.resources import list_profiles, list_scenarios
from simtrain.scenario import load_scenario
from simtrain.schedules import build as build_schedule
from simtrain.simulation import simulate

DOES_NOT_FIT, THRESHOLD_MISSED = 3, 4

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

profile_app = typer.Typer(no_args_is_help=True, help="List, show and check hardware profiles.")
app.add_typer(profile_app, name="profile")
for command in (cost, sweep, sweeps, query, plot, search):
    app.command()(command)

ProfileArgument = Annotated[
    str, typer.Argument(help="A profile file, or the name of one that comes with simtrain.")
]


class Target(StrEnum):
    """What of the paper can be reproduced, in its order."""

    TABLE2 = "table2"
    TABLE4 = "table4"
    TABLE5 = "table5"
    DP530B = "dp530b"
    FIG1 = "fig1"
    FIG7 = "fig7"
    FIG8 = "fig8"
    FIG9 = "fig9"
    APPENDIX_C = "appendix-c"
    ZERO = "zero"
    ALL = "all"


@app.callback()
def simtrain() -> None:
    """How long does one training iteration of a large model take, and where does the time go?"""


@app.command()
def run(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOomOption = False,
    engine: Annotated[
        Engine,
        typer.Option("--engine", help="What runs it; all find the same to the last bit."),
    ] = "auto",
) -> None:
    """Simulate one iteration: where its time goes, and what it needs of each GPU's memory.

    What does not fit ends with exit code 3 and the cheapest change that makes it fit.

    Example: simtrain run table5_175b_present --set parallelism.interleave=1
    """
    result = simulated(load_scenario(scenario, overrides or ()), allow_oom, engine)
    show(as_json, result.to_dict, lambda: render_result(result))


@app.command()
def memory(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Say what each stage holds at its fullest, in GiB by component; exit code 3 if too much.

    Example: simtrain memory table5_530b_present --set recompute=full --out pictures
    """
    loaded = load_scenario(scenario, overrides or ())
    if out:
        make_folder(out)
    with status(f"simulating {loaded.name}"):
        result = simulate(loaded)
        if out:
            write_memory_picture(result, out)
    show(as_json, result.memory.to_json, lambda: memory_page(result.memory))
    if not result.memory.fits:
        raise typer.Exit(DOES_NOT_FIT)


@app.command()
def reproduce(
    target: Annotated[Target, typer.Argument(help="Which of the paper's results.")],
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Put the paper's figures beside ours; exit code 4 when a threshold is missed.

    Example: simtrain reproduce fig7 --out pictures
    """
    if out:
        make_folder(out)
    results: dict[str, paper.Reproduced] = {}
    with progress_bar() as report:
        for name in Target if target is Target.ALL else [target]:
            if name is not Target.ALL:
                results[name] = paper.reproduce(name, report)
                if out:
                    write_pictures(name, results[name], out)
    result = paper.Everything(results) if target is Target.ALL else results[target]
    show(as_json, result.to_json, lambda: render_reproduced(result))
    if not result.ok:
        raise typer.Exit(THRESHOLD_MISSED)


@app.command()
def schedule(scenario: ScenarioArgument, overrides: SetOption = None) -> None:
    """Print the order in which each stage acts: one row a stage, 2F0 is forward 0 of chunk 2.

    Example: simtrain schedule table5_175b_present
    """
    loaded = load_scenario(scenario, overrides or ())
    order = build_schedule(
        loaded.schedule,
        loaded.parallelism.pipeline,
        loaded.parallelism.interleave,
        loaded.num_microbatches,
    )
    emit(order.to_csv())


@app.command()
def scenarios() -> None:
    """List the scenarios that come with simtrain.

    Example: simtrain scenarios
    """
    for name in list_scenarios():
        emit(f"{name}  {load_scenario(name).description or ''}".rstrip() + "\n")


@profile_app.command("list")
def list_the_profiles() -> None:
    """List the hardware profiles that come with simtrain, and whether each is calibrated.

    Example: simtrain profile list
    """
    width = max(len(name) for name in list_profiles())
    for name in list_profiles():
        profile = load_profile(name)
        emit(f"{name:{width}}  {profile.calibration:14}  {profile.description}\n")


@profile_app.command("show")
def show_profile(profile: ProfileArgument, as_json: JsonOption = False) -> None:
    """Print every entry of a profile with its unit, its source and what it was fitted on.

    Example: simtrain profile show h100_sxm
    """
    page = load_page(profile)
    show(as_json, page.to_json, lambda: profile_page(page))


@profile_app.command()
def check(profile: ProfileArgument) -> None:
    """Refuse a profile that no machine can have; exit code 2, and what to write instead.

    An efficiency above 1, a latency below 0, a bandwidth above its link's, NaN, a number without a
    source.

    Example: simtrain profile check my_cluster.yaml
    """
    page = load_page(profile)
    fitted = sum(shown.entry.fitted_on is not None for shown in page.entries)
    emit(
        f"OK: {page.profile.name} has {len(page.entries)} entries, each with a source, "
        f"{fitted} of them fitted; {page.profile.calibration}\n"
    )


def main() -> None:
    """Entry point: errors that a user can mend are told without a traceback."""
    # A terminal or file of a narrow encoding gets "?" for what it cannot show, and not an error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
