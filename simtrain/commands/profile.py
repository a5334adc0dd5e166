"""`simtrain profile`: `list`, `show` and `check`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.completion import shipped_profiles
from simtrain.commands.output import ListOutput, Output, show, show_view
from simtrain.commands.printing import emit

profile_app = App(help="List, print and check hardware profiles.")

ProfileArgument = Annotated[
    str,
    typer.Argument(
        help="Profile file, or name of a profile that comes with simtrain.",
        autocompletion=shipped_profiles,
    ),
]


@profile_app.command("list")
def print_profiles(output: ListOutput) -> None:
    """List the hardware profiles that come with simtrain, and the evidence for each.

    Example: simtrain profile list
    """
    from simtrain.base.resources import list_profiles
    from simtrain.hardware.evidence import evidence_of
    from simtrain.hardware.load import load_profile
    from simtrain.views.view import names_view

    profiles = [(name, load_profile(name)) for name in list_profiles()]
    rows = [
        (name, evidence_of(profile, name).level.value, profile.description)
        for name, profile in profiles
    ]
    show_view(output, names_view(("profile", "evidence", "description"), rows))


@profile_app.command("show")
def print_profile(profile: ProfileArgument, output: Output) -> None:
    """Print every entry of a profile with its unit, source and, if fitted, measurements.

    Example: simtrain profile show h100_sxm
    """
    from simtrain.views.profile import load_page, profile_view

    page = load_page(profile)
    show(output, page, lambda: profile_view(page))


@profile_app.command("check")
def check_profile(profile: ProfileArgument) -> None:
    """Check that a profile is complete and physically possible. Exits with 2 if it is not.

    Errors are an efficiency above 1, a negative latency, a bandwidth above that of its link, NaN,
    and a number without a source. Each error says what to write instead.

    Example: simtrain profile check my_cluster.yaml
    """
    from simtrain.views.profile import load_page

    page = load_page(profile)
    facts = page.to_dict()
    emit(
        f"OK: {page.profile.name} has {facts['num_entries']} entries, each with a source, "
        f"{facts['num_fitted']} of them fitted; evidence: {page.evidence.level.value}\n"
    )
