"""`simtrain profile`: `list`, `show` and `check`."""

from __future__ import annotations

from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.shared import JsonOption, emit, listing, show

profile_app = App(help="List, show and check hardware profiles.")

ProfileArgument = Annotated[
    str, typer.Argument(help="A profile file, or the name of one that comes with simtrain.")
]


@profile_app.command("list")
def list_the_profiles() -> None:
    """List the hardware profiles that come with simtrain, and whether each is calibrated.

    Example: simtrain profile list
    """
    from simtrain.hardware.load import load_profile
    from simtrain.resources import list_profiles

    profiles = [(name, load_profile(name)) for name in list_profiles()]
    listing((name, one.calibration, one.description) for name, one in profiles)


@profile_app.command("show")
def show_profile(profile: ProfileArgument, as_json: JsonOption = False) -> None:
    """Print every entry of a profile with its unit, its source and what it was fitted on.

    Example: simtrain profile show h100_sxm
    """
    from simtrain.pages.profile_page import load_page, profile_page

    page = load_page(profile)
    show(as_json, page.to_json, lambda: profile_page(page))


@profile_app.command()
def check(profile: ProfileArgument) -> None:
    """Check that a profile is complete and physically possible; exits with 2 if it is not.

    It refuses an efficiency above 1, a latency below 0, a bandwidth above its link's, NaN, and a
    number without a source, and says what to write instead.

    Example: simtrain profile check my_cluster.yaml
    """
    from simtrain.pages.profile_page import load_page

    page = load_page(profile)
    fitted = sum(shown.entry.fitted_on is not None for shown in page.entries)
    emit(
        f"OK: {page.profile.name} has {len(page.entries)} entries, each with a source, "
        f"{fitted} of them fitted; {page.profile.calibration}\n"
    )
