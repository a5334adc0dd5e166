"""Options of commands that read files of other tools: the same for `import` and all others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simtrain.base.importer import ImportRequest
from simtrain.commands.options import refuse
from simtrain.errors import InputError, Location

if TYPE_CHECKING:
    from simtrain.base.importer import Importer

_PANEL = "Files of other tools"
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="VAR=VALUE",
        help="Value of a variable of a script, where the script does not decide it. May be "
        "repeated.",
        rich_help_panel=_PANEL,
    ),
]
GpusOption = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        min=1,
        help="Number of GPUs, in place of what the file says.",
        rich_help_panel=_PANEL,
    ),
]
IgnoreOption = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown",
        help="Leave out settings that simtrain does not know, and list them. Only import needs it.",
        rich_help_panel=_PANEL,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="config.json of the model, or the script that trains it.",
        rich_help_panel=_PANEL,
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", help="The config of the file, if it has several.", rich_help_panel=_PANEL
    ),
]
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "gpus": (GpusOption, None),
    "env": (EnvOption, None),
    "model": (ModelOption, None),
    "config": (ConfigOption, None),
    "ignore_unknown": (IgnoreOption, False),
}


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the command line says about a file of another tool.

    Args:
        gpus: the number of GPUs; None leaves it to the file.
        env: values of variables of a script.
        model: file of the model, or "".
        config: the config of the file, or "".
    """

    gpus: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    config: str = ""

    @classmethod
    def of(
        cls,
        gpus: int | None = None,
        env: list[str] | None = None,
        model: str | None = None,
        config: str | None = None,
    ) -> ImportOptions:
        """Return the options of a command line.

        Raises:
            InputError: a value of --env is not VAR=VALUE (E883).
        """
        return cls(gpus, _variables(env or []), model or "", config or "")

    def check_unused(self, scenario: str) -> None:
        """Refuse the options for a scenario of simtrain, which no importer reads (E908)."""
        message = "is only for files of other tools, which are imported"
        search = f"simtrain search {scenario} --gpus {self.gpus} finds a layout"
        refuse({"--gpus": self.gpus}, message, f"{search}; or write --set parallelism.data=N")
        refuse({"--env": self.env, "--model": self.model, "--config": self.config}, message)

    def check_read(self, importer: Importer) -> None:
        """Refuse the options that an importer does not read (E908)."""
        unread = {
            "--env": bool(self.env) and not importer.reads_variables,
            "--model": bool(self.model) and not importer.reads_model,
            "--config": bool(self.config) and not importer.reads_configs,
        }
        refuse(unread, f"has no effect on {importer.kinds[0].noun}")

    def request(
        self,
        importer: Importer,
        source: str,
        overrides: Sequence[str],
        *,
        ignore_unknown: bool,
    ) -> ImportRequest:
        """Return the request for an importer.

        Raises:
            InputError: the importer does not read one of the options (E908).
        """
        self.check_read(importer)
        return ImportRequest(
            source,
            gpus=self.gpus,
            overrides=overrides,
            env=self.env,
            model=self.model,
            config=self.config,
            ignore_unknown=ignore_unknown,
        )


_CURRENT: ContextVar[ImportOptions] = ContextVar("_CURRENT")


def current_options() -> ImportOptions:
    """Return the options of the command that runs."""
    return _CURRENT.get(ImportOptions())


def reads_other_tools(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of imports; those that it has itself keep their meaning."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in _OPTIONS.items()
        if name not in parameters
    ]

    @wraps(command)
    def with_options(*args: Any, **kwargs: Any) -> None:
        """Set the options of imports while the command runs."""
        values = {each.name: kwargs.pop(each.name, each.default) for each in added}
        values.pop("ignore_unknown", None)
        token = _CURRENT.set(ImportOptions.of(**values))
        try:
            command(*args, **kwargs)
        finally:
            _CURRENT.reset(token)

    # typer reads the options of a command from its signature.
    everything = [*parameters.values(), *added]
    with_options.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=everything
    )
    with_options.__annotations__ = {each.name: each.annotation for each in everything}
    return with_options


def _variables(texts: list[str]) -> dict[str, str]:
    """Return the variables of --env."""
    variables = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            message = "is not a variable with its value"
            fix = "write the name and the value of a variable: --env NNODES=4"
            raise InputError.of("E883", message, Location(f"--env {text}"), fix)
        variables[name] = value
    return variables
