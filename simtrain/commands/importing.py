"""`simtrain import`: `megatron`, `hf` and `torchtitan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.shared import SetOption, print_or_write

import_app = App(
    help="Convert a training script, a log or a model's config to a scenario.",
)
OutOption = Annotated[
    Path | None, typer.Option("--out", help="File to write. Default: print the scenario.")
]

IgnoreOption = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown", help="Leave out what simtrain does not know, and list it in the file."
    ),
]


# Without this setting typer would parse quoted Megatron-LM arguments ("--...") as options.
@import_app.command("megatron", context_settings={"ignore_unknown_options": True})
def write_megatron_scenario(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Shell script that starts Megatron-LM, file with its arguments, log of a run, or "
            "the arguments themselves in quotes.",
        ),
    ],
    out: OutOption = None,
    overrides: SetOption = None,
    ignore_unknown: IgnoreOption = False,
) -> None:
    """Convert the arguments of Megatron-LM to a scenario.

    A comment on each field names the argument that it comes from. The first lines list the
    arguments that are not modelled, with their effect. A script is parsed, not run. An unknown
    argument is an error.

    Example: simtrain import megatron train.sh --out scenario.yaml --set cluster=h100_sxm
    """
    from simtrain.importing import import_megatron

    _print_or_write(import_megatron(source, overrides or (), ignore_unknown=ignore_unknown)[1], out)


@import_app.command("hf")
def write_hugging_face_scenario(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="config.json of a model.")],
    out: OutOption = None,
    overrides: SetOption = None,
    ignore_unknown: IgnoreOption = False,
) -> None:
    """Convert the config of a model on Hugging Face to a scenario.

    A comment on each field names the key that it comes from. A config does not contain the batch,
    the parallelism or the cluster: they have default values unless --set sets them.

    Example: simtrain import hf config.json --set parallelism.tensor=8 --set batch.global=256
    """
    from simtrain.importing import import_hugging_face

    _print_or_write(
        import_hugging_face(config, overrides or (), ignore_unknown=ignore_unknown)[1], out
    )


@import_app.command("torchtitan")
def write_torchtitan_scenario(
    job: Annotated[str, typer.Argument(metavar="JOB", help="TOML file of a torchtitan job.")],
    out: OutOption = None,
    overrides: SetOption = None,
    ignore_unknown: IgnoreOption = False,
) -> None:
    """Convert the job file of torchtitan to a scenario.

    A comment on each field names the key that it comes from. A job does not contain its number of
    GPUs: if its sharding degree is -1, add --set parallelism.data. The sizes of a model's flavor
    come from the scenario of this model that comes with simtrain.

    Example: simtrain import torchtitan job.toml --set parallelism.data=16 --set cluster=h100_sxm
    """
    from simtrain.importing import import_torchtitan

    _print_or_write(import_torchtitan(job, overrides or (), ignore_unknown=ignore_unknown)[1], out)


def _print_or_write(text: str, out: Path | None) -> None:
    num_notes = sum(line.startswith("# - ") for line in text.splitlines())
    notes = f"{num_notes} settings are" if num_notes != 1 else "1 setting is"
    print_or_write(text, out, f"; {notes} not modelled")
