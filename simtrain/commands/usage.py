"""Wrong command lines: what replaces former words, and which commands and options are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from simtrain.base.resources import list_scenarios
from simtrain.commands.declare import CliOptions
from simtrain.commands.group import CliGroup
from simtrain.errors import InputError, Location


@cache
def moved() -> dict[str, dict[str, str]]:
    """Return what replaces former commands and options, by their names."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("moved.toml").read_text("utf-8"))


def unknown_option(path: str, name: str, options: Iterable[str], fix: str) -> InputError:
    """Return the error of an option that a command lacks (E902), with `fix` if none is similar."""
    place, options = Location(f"{path} {name}"), [*options, "--help"]
    if instead := moved()["options"].get(name):
        message = f"there is no option {name} any more"
        return InputError.of("E902", message, place, f"write {instead}")
    similar = get_close_matches(name, options, n=1, cutoff=0.75)
    fix = f"did you mean {similar[0]}?" if similar else fix
    setting = _setting_of(name) if "--set" in options and similar != ["--gpus"] else ""
    if setting:
        fix = f"{setting.partition('=')[0]} is a field of the scenario: --set {setting}"
    return InputError.of("E902", f"No such option: {name}", place, fix)


def former_command(path: str, word: str) -> InputError | None:
    """Return the error of a word after a command that was a command once, or None."""
    instead = moved()["commands"].get(f"{path} {word}".partition(" ")[2])
    message = f'there is no command "{word}" any more'
    return InputError.of("E901", message, Location(path), instead) if instead else None


def unknown_command(path: str, group: CliGroup, words: Sequence[str]) -> InputError:
    """Return the error of a first word that is no command of a group, nor what `show` prints."""
    import shlex

    name, *rest = words
    shown = CliOptions.of(group["show"]).in_order[0].values if "show" in group else ()
    similar = get_close_matches(name, [*group, *shown], n=1)
    if name in ("help", "version"):
        similar = [*rest, "--help"] if name == "help" else ["--version"]
    elif similar:
        is_run = similar[0] in (*group, *list_scenarios())
        similar = [*["show"] * (not is_run), *similar, *rest]
    message = f'there is no command "{name}"; the commands are {", ".join(group)}'
    fix = f"did you mean {path} {shlex.join(similar)}?" if similar else f"{path} --help"
    return former_command(path, name) or InputError.of("E901", message, Location(path), fix)


def _setting_of(option: str) -> str:
    """Return what --set takes for an option such as --tp: "parallelism.tensor=8"; "" for none."""
    from simtrain.base.strict_yaml.validation import example, names_of
    from simtrain.scenario import Scenario

    name = option.lstrip("-").replace("-", "_")
    fields = names_of(Scenario, name)
    words = fields[0] if len(fields) == 1 else Scenario.other_names().get(name, "")
    # "memory.zero_stage: 3", "hardware.cluster.num_nodes, the nodes of the cluster"
    match = re.match(r"(?!remove)([a-z_.]+)(?:: (\w+)$)?", words)
    if match is None:
        return ""
    field, value = match.groups()
    return f"{field}={value or example(Scenario, tuple(field.split('.'))) or 'VALUE'}"
