"""`python -m calibrate`: fit a hardware profile, and show how well it explains its figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from calibrate.fit import fit_profile
from calibrate.profile_file import profile_text
from calibrate.residuals import Residuals
from simtrain.errors import SimtrainError

_SHOWN_ROWS = 20

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def calibrate() -> None:
    """From measured and published figures to a hardware profile."""


@app.command()
def fit(
    figures: Annotated[Path, typer.Argument(help="YAML file of figures with their sources.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the profile.")
    ] = None,
) -> None:
    """Fit a profile and print its residuals.

    Example: python -m calibrate fit calibrate/published/a100_sxm4_80gb.yaml -o my_a100.yaml
    """
    try:
        fitted = fit_profile(figures)
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    console = Console(stderr=output is None)
    for residuals in fitted.residuals:
        console.print(_table(residuals))
    text = profile_text(fitted.data, figures.as_posix())
    if output is None:
        print(text, end="")
        return
    output.write_text(text, encoding="utf-8")
    console.print(f"wrote {output}")


def _table(residuals: Residuals) -> Table:
    """A part of the fit; of many points the worst are shown."""
    worst = sorted(residuals.rows, key=lambda row: -abs(row.error))[:_SHOWN_ROWS]
    shown = [row for row in residuals.rows if row in worst]
    title = f"{residuals.title}: {residuals.summary()}"
    if len(shown) < len(residuals.rows):
        title += f" (the worst {len(shown)} shown)"
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    for name in ("measured", "fitted"):
        table.add_column(f"{name}\n{residuals.unit}", justify="right")
    table.add_column("error\n%", justify="right")
    for row in shown:
        table.add_row(
            row.name, f"{row.measured:.4g}", f"{row.fitted:.4g}", f"{100 * row.error:+.1f}"
        )
    return table


if __name__ == "__main__":
    app()
