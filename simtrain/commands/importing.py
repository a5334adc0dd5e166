"""`simtrain import`: `megatron`, `hf` and `torchtitan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simtrain.commands.app import App
from simtrain.commands.shared import SetOption, emit

import_app = App(
    help="Write the scenario of a training script, a log or a model's config.",
)
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write this file instead of printing it.")
]


# Without this setting the arguments in one text, which begin with "--", are taken for options.
@import_app.command("megatron", context_settings={"ignore_unknown_options": True})
def import_the_arguments(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A shell script that starts Megatron-LM, a file with its arguments, a log in "
            "which it printed them, or the arguments themselves in quotes.",
        ),
    ],
    out: OutOption = None,
    overrides: SetOption = None,
) -> None:
    """Write the scenario of a run of Megatron-LM, each field with the argument that it comes from.

    Its first lines list the arguments that are not modelled, and what each would change. A script
    is read and not run. An unknown argument is an error.

    Example: simtrain import megatron train.sh --out scenario.yaml --set cluster=h100_sxm
    """
    from simtrain.importing import import_megatron

    _write(import_megatron(source, overrides or ())[1], out)


@import_app.command("hf")
def import_the_config(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The config.json of a model.")],
    out: OutOption = None,
    overrides: SetOption = None,
) -> None:
    """Write the scenario of a model from Hugging Face, each field with the key that it comes from.

    A config has no batch, no split and no machine: they are defaults, unless --set gives them.

    Example: simtrain import hf config.json --set parallelism.tensor=8 --set batch.global=256
    """
    from simtrain.importing import import_hugging_face

    _write(import_hugging_face(config, overrides or ())[1], out)


@import_app.command("torchtitan")
def import_the_job(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The TOML file of a job.")],
    out: OutOption = None,
    overrides: SetOption = None,
) -> None:
    """Write the scenario of a job of torchtitan, each field with the key that it comes from.

    A job does not say how many GPUs it runs on: --set parallelism.data does, if its sharding degree
    is -1. The sizes of a flavor are those of the shipped scenario of the model.

    Example: simtrain import torchtitan job.toml --set parallelism.data=16 --set cluster=h100_sxm
    """
    from simtrain.importing import import_torchtitan

    _write(import_torchtitan(job, overrides or ())[1], out)


def _write(text: str, out: Path | None) -> None:
    from simtrain.output_folder import writing_to

    if out is None:
        emit(text)
        return
    with writing_to(out, "the scenario"):
        out.write_text(text, encoding="utf-8")
    notes = sum(line.startswith("# - ") for line in text.splitlines())
    emit(f"Wrote {out}; {notes} things are not modelled. Run it with: simtrain run {out}\n")
